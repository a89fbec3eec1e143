"""A Llama's forward pass with nothing around the matrix products: for drafts of one token, and for many chats at once.

A draft of three narrow layers is over in half a millisecond, and transformers' eager forward spends several times that
between its operations. Here the projections of a layer are fused, the cache is one buffer that is written in place,
and cutting it back is the move of a number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from speclib.context import check_feed
from speclib.distributions import NEG_INF


class Lean:
    """The layers of a Llama over a preallocated KV cache; every row of the batch is equally long.

    model: LlamaForCausalLM, or a subclass with the same layers; its weights are copied into fused matrices, so a
    later change of the model goes unseen. batch, positions: rows, and tokens that the cache has room for. `length` is
    how many tokens the cache covers: lower it to cut back.
    ValueError: biases, or an activation other than SiLU, which the fused layers do not know.
    """

    def __init__(self, model: LlamaForCausalLM, batch: int = 1, positions: int = 512):
        config, inner = model.config, model.model
        if config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
            raise ValueError(f"{type(model).__name__} has biases or no SiLU: the lean forward is for plain Llamas only")
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps, self.width = config.rms_norm_eps, (config.hidden_size,)
        self.scale = self.head_dim**-0.5
        self.layers = [
            (
                layer.input_layernorm.weight.detach(),
                torch.cat([getattr(layer.self_attn, f"{x}_proj").weight.detach() for x in "qkv"]),
                layer.self_attn.o_proj.weight.detach(),
                layer.post_attention_layernorm.weight.detach(),
                torch.cat([layer.mlp.gate_proj.weight.detach(), layer.mlp.up_proj.weight.detach()]),
                layer.mlp.down_proj.weight.detach(),
            )
            for layer in inner.layers
        ]
        self.norm, self.rotary = inner.norm.weight.detach(), inner.rotary_emb
        self.batch, self.length = batch, 0
        self._reserve(positions)

    def _reserve(self, positions: int) -> None:
        weight = self.norm
        shape = (len(self.layers), 2, self.batch, self.kv_heads, positions, self.head_dim)
        cache = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        if self.length:
            cache[..., : self.length, :] = self.cache[..., : self.length, :]
        cos, sin = self.rotary(weight, torch.arange(positions, device=weight.device)[None])
        half = self.head_dim // 2
        # rotate_half(x) · sin as roll(x) · (−sin, sin): one operation instead of three.
        self.cos, self.sin = cos[0].contiguous(), torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
        self.cache, self.positions = cache, positions

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        """Embedded tokens [batch, n, hidden] on top of the cache → hidden states after the last norm, same shape."""
        batch, n, _ = x.shape
        start, end = self.length, self.length + n
        if end > self.positions:
            self._reserve(max(end, 2 * self.positions))
        cos, sin = self.cos[start:end, None], self.sin[start:end, None]
        kv, half, groups = self.kv_heads, self.head_dim // 2, self.heads // self.kv_heads
        rotated = self.heads + kv
        mask = None
        if n > 1:
            mask = torch.ones(n, end, dtype=torch.bool, device=x.device).tril(start)
        for i, (norm1, qkv_w, out_w, norm2, gate_up_w, down_w) in enumerate(self.layers):
            qkv = F.linear(F.rms_norm(x, self.width, norm1, self.eps), qkv_w).view(batch, n, -1, self.head_dim)
            qk = qkv[:, :, :rotated]
            qk = qk * cos + qk.roll(half, -1) * sin
            keys, values = self.cache[i, 0, :, :, :end], self.cache[i, 1, :, :, :end]
            keys[:, :, start:] = qk[:, :, self.heads :].transpose(1, 2)
            values[:, :, start:] = qkv[:, :, rotated:].transpose(1, 2)
            if n == 1:  # the queries that share a key–value head stand in for a sequence: no copy of keys, no mask
                q = qk[:, 0, : self.heads].view(batch, kv, groups, self.head_dim)
                out = F.scaled_dot_product_attention(q, keys, values, scale=self.scale)
                out = out.reshape(batch, 1, -1)
            else:
                q = qk[:, :, : self.heads].transpose(1, 2)
                out = F.scaled_dot_product_attention(
                    q, keys, values, attn_mask=mask, scale=self.scale, enable_gqa=groups > 1
                )
                out = out.transpose(1, 2).reshape(batch, n, -1)
            x = x + F.linear(out, out_w)
            gate, up = F.linear(F.rms_norm(x, self.width, norm2, self.eps), gate_up_w).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down_w)
        self.length = end
        return F.rms_norm(x, self.width, self.norm, self.eps)


class LeanContext:
    """`context.Context` for a distilled draft: the same answers, at a fraction of transformers' time per step.

    model: DraftForCausalLM or LlamaForCausalLM, as for `Lean`.
    """

    def __init__(self, model: LlamaForCausalLM):
        self.model, self._lean = model, Lean(model)
        self.tokens: list[int] = []
        self.vocab_size: int = model.config.vocab_size
        self.max_length: int = model.config.max_position_embeddings
        self.size: int = model.num_parameters()
        self._embedding, self._head = model.get_input_embeddings().weight.detach(), model.lm_head.weight.detach()
        self._kept: Tensor | None = getattr(model.lm_head, "kept", None)

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        """As `Context.feed`."""
        check_feed(self, ids, rows)
        self._lean.length = len(self.tokens)  # a pass that was interrupted may have moved it
        with torch.inference_mode():
            x = F.embedding(torch.tensor([ids], device=self._embedding.device), self._embedding)
            hidden = self._lean(x)[0, -(rows or 0) :]
            logits = F.linear(hidden, self._head)
        self.tokens += ids
        # Outside of inference mode, so that the caller may change it in place.
        if self._kept is None:
            return logits.to(torch.float32, copy=True)
        return spread(logits.float(), self._kept, self.vocab_size)

    def rollback(self, length: int) -> None:
        """As `Context.rollback`."""
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot roll back to {length} tokens: the cache covers {len(self.tokens)}")
        del self.tokens[length:]
        self._lean.length = length


def spread(logits: Tensor, kept: Tensor, vocab: int) -> Tensor:
    """Logits [..., len(kept)] put in their places among `vocab` entries, −inf elsewhere. Same dtype."""
    full = logits.new_full((*logits.shape[:-1], vocab), NEG_INF)
    return full.index_copy_(-1, kept, logits)
