"""A Llama's forward pass with nothing around the matrix products: for steps on one token, and for many chats at once.

A step on a few tokens should take as long as reading the weights once, and transformers' eager forward spends several
times that between its operations. Here the projections of a layer are fused and laid out for the device, the cache is
one buffer that is written in place, and cutting it back is the move of a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from speclib.context import check_feed
from speclib.distributions import NEG_INF, NO_DISTRIBUTION, Rng, Sampling
from speclib.graphs import Graphs
from speclib.packed import BYTES, Product, product


class Cache:
    """Keys and values of every layer in one buffer, for rows of equal length; `length` says how much of it counts.

    What stands behind `length` is never read: to cut back is to lower that number.
    """

    def __init__(self, lean: Lean, batch: int, positions: int):
        self.lean, self.batch, self.length = lean, batch, 0
        self.reserve(positions)

    def reserve(self, positions: int) -> None:
        """Make room for so many tokens, keeping those that count."""
        lean = self.lean
        weight = lean.norm
        shape = (lean.depth, 2, self.batch, lean.kv_heads, positions, lean.head_dim)
        held = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        if self.length:
            held[..., : self.length, :] = self.held[..., : self.length, :]
        cos, sin = lean.rotary(weight, torch.arange(positions, device=weight.device)[None])
        half = lean.head_dim // 2
        # rotate_half(x) · sin as roll(x) · (−sin, sin): one operation instead of three.
        self.cos, self.sin = cos[0, :, None].contiguous(), torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None]
        self.held, self.positions = held, positions


class Lean:
    """The layers and the output matrix of a Llama (or a Qwen2), for any number of caches.

    model: LlamaForCausalLM, Qwen2ForCausalLM, or a subclass with the same layers; its weights are copied into fused
    matrices, so a later change of the model goes unseen. quantize: as in `packed.product`.
    ValueError: another architecture, attention with a window, an activation other than SiLU.
    """

    def __init__(self, model: PreTrainedModel, quantize: str | None = None):
        _refuse_other(model)
        self.model = model
        config, inner = model.config, model.model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps, self.width = config.rms_norm_eps, (config.hidden_size,)
        self.scale, self.depth = self.head_dim**-0.5, config.num_hidden_layers
        self.layers = [
            (
                self._norm_of(layer.input_layernorm),
                _fused(quantize, *(getattr(layer.self_attn, f"{x}_proj") for x in "qkv")),
                _fused(quantize, layer.self_attn.o_proj),
                self._norm_of(layer.post_attention_layernorm),
                _fused(quantize, layer.mlp.gate_proj, layer.mlp.up_proj),
                _fused(quantize, layer.mlp.down_proj),
            )
            for layer in inner.layers
        ]
        self.norm, self.rotary = self._norm_of(inner.norm), inner.rotary_emb
        self.embedding, self.head = model.get_input_embeddings().weight.detach(), _fused(quantize, model.lm_head)
        # The token of each row of a cut output matrix (`draft.CutHead`).
        self.kept: Tensor | None = getattr(model.lm_head, "kept", None)
        self.vocab_size: int = config.vocab_size
        self.max_length: int = config.max_position_embeddings
        self.size: int = model.num_parameters()
        self.device = self.norm.device
        # What a step reads: every matrix but an embedding in which it only looks rows up.
        per_weight = BYTES[quantize] or self.norm.element_size()
        matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
        self.bytes = int(per_weight * sum(weight.numel() for weight in matrices))

    def cache(self, batch: int = 1, positions: int = 512) -> Cache:
        """An empty cache for so many rows, with room for so many tokens; it grows where that is not enough."""
        return Cache(self, batch, positions)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, cache: Cache, rows: int | None = None) -> Tensor:
        """Tokens [batch, n] on top of the cache → logits [batch, rows or n, output rows] in the model's dtype."""
        n, start, end = ids.shape[1], cache.length, cache.length + ids.shape[1]
        if end > cache.positions:
            cache.reserve(max(end, 2 * cache.positions))
        mask = None
        if n > 1:
            mask = torch.ones(n, end, dtype=torch.bool, device=ids.device).tril(start)
        cache.length = end
        at = slice(start, end)
        return self.run(ids, cache.cos[at], cache.sin[at], cache.held[..., :end, :], at, mask, rows)

    def run(
        self, ids: Tensor, cos: Tensor, sin: Tensor, held: Tensor, at: slice | Tensor, mask: Tensor | None, rows: Any
    ) -> Tensor:
        """The layers: keys and values are written into `held` at the places `at` and read where mask [n, …] allows."""
        batch, n = ids.shape
        kv, groups, dim = self.kv_heads, self.heads // self.kv_heads, self.head_dim
        half, rotated = dim // 2, self.heads + kv
        if mask is not None:
            mask = mask[:, None].expand(n, groups, -1).reshape(n * groups, -1)
        x = F.embedding(ids, self.embedding)
        for i, (norm1, qkv_of, out_of, norm2, gate_up_of, down_of) in enumerate(self.layers):
            qkv = qkv_of(self._normed(x, norm1)).view(batch, n, -1, dim)
            qk = qkv[:, :, :rotated]
            qk = qk * cos + qk.roll(half, -1) * sin
            keys, values = held[i, 0], held[i, 1]
            keys[:, :, at] = qk[:, :, self.heads :].transpose(1, 2)
            values[:, :, at] = qkv[:, :, rotated:].transpose(1, 2)
            # The queries that share a key–value head stand in one sequence, so that its keys are read once, uncopied.
            q = qk[:, :, : self.heads].reshape(batch, n, kv, groups, dim).transpose(1, 2)
            q = q.reshape(batch, kv, n * groups, dim)
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=self.scale)
            out = out.view(batch, kv, n, groups, dim).transpose(1, 2).reshape(batch, n, -1)
            x = x + out_of(out)
            gate, up = gate_up_of(self._normed(x, norm2)).chunk(2, -1)
            x = x + down_of(F.silu(gate) * up)
        return self.head(self._normed(x[:, -(rows or 0) :], self.norm))

    @staticmethod
    def _norm_of(module: nn.Module) -> Tensor:
        weight = module.weight.detach()
        return torch.cat((weight, weight)) if weight.device.type == "cpu" else weight

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.rms_norm(x, self.width, weight, self.eps)
        # PyTorch's is ten kernels on a CPU. Its layer norm is one, and the same thing where the mean is zero.
        width = x.shape[-1]
        return F.layer_norm(torch.cat((x, -x), -1), (2 * width,), weight, None, self.eps)[..., :width]


class LeanContext:
    """`context.Context` over a `Lean`: the same answers up to rounding, at a fraction of transformers' time per step.

    On a GPU, passes over a few tokens are recorded once and replayed (`graphs.Graphs`).
    Taught in notebook 07_serve_and_bench, section 'Faster still'.
    """

    def __init__(self, lean: Lean):
        self.lean, self.model = lean, lean.model
        self.tokens: list[int] = []
        self.vocab_size, self.max_length, self.size = lean.vocab_size, lean.max_length, lean.size
        self._cache = lean.cache()
        self._pass = Graphs(lean, self._cache) if lean.device.type == "cuda" else lean

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        """As `Context.feed`."""
        check_feed(self, ids, rows)
        logits = self._feed(torch.tensor([ids], device=self.lean.device), rows)
        self.tokens += ids
        return self._rows(logits)

    def rollback(self, length: int) -> None:
        """As `Context.rollback`."""
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot roll back to {length} tokens: the cache covers {len(self.tokens)}")
        del self.tokens[length:]

    def greedy(self, ids: list[int], k: int) -> list[int]:
        """The k ≥ 1 likeliest tokens one after another behind ids, all but the last of them fed as well.

        The same as k calls of `feed`, without a row of the whole vocabulary or a word to the host for each.
        """
        kept = self.lean.kept

        def likeliest(logits: Tensor) -> Tensor:
            token = logits.argmax(-1, keepdim=True)
            return token if kept is None else kept[token]

        return self._chain(ids, k, likeliest)

    def sample(self, ids: list[int], k: int, sampling: Sampling, rng: Rng) -> tuple[list[int], Tensor]:
        """As `greedy`, with tokens that are drawn, and the q of each: [k, vocab], fp32. ValueError: as `warp`.

        The tokens are those of k calls of `feed`, and so are the numbers that are asked of rng.
        """
        q: list[Tensor] = []

        def drawn(logits: Tensor) -> Tensor:
            q.append(sampling.warp(self._rows(logits), check=False))
            return rng.drawn(q[-1]).clamp(max=self.vocab_size - 1)  # behind the last where q is NaN

        length = len(self.tokens)
        tokens, rows = self._chain(ids, k, drawn), torch.stack(q)
        if not rows.isfinite().all():
            self.rollback(length)
            raise ValueError(NO_DISTRIBUTION)
        return tokens, rows

    def _chain(self, ids: list[int], k: int, choose: Callable[[Tensor], Tensor]) -> list[int]:
        """k tokens as `choose` makes them, on the device, of the logits before each."""
        check_feed(self, ids, 1)
        feed, chosen = torch.tensor([ids], device=self.lean.device), []
        for i in range(k):
            chosen.append(choose(self._feed(feed, 1, i and len(ids) + i - 1)[-1]))
            feed = chosen[-1][None]
        tokens = torch.cat(chosen).tolist()
        self.tokens += ids + tokens[:-1]
        return tokens

    def _rows(self, logits: Tensor) -> Tensor:
        # Outside of inference mode, so that the caller may change it in place.
        if self.lean.kept is None:
            return logits.to(torch.float32, copy=True)
        return spread(logits.float(), self.lean.kept, self.vocab_size)

    def _feed(self, ids: Tensor, rows: int | None, ahead: int = 0) -> Tensor:
        # Said anew each time: a pass that was interrupted may have moved it.
        self._cache.length = len(self.tokens) + ahead
        return self._pass(ids, self._cache, rows)[0]


def hurry(model: PreTrainedModel, quantize: str | None = None) -> None:
    """Give a model a lean forward: every context that is made of it from now on (`context.as_context`) takes it.

    The model itself stays as it was, for whoever calls it. quantize, ValueError: as `Lean`.
    """
    lean = Lean(model, quantize)
    model.lean_context = lambda: LeanContext(lean)


def spread(logits: Tensor, kept: Tensor, vocab: int) -> Tensor:
    """Logits [..., len(kept)] put in their places among `vocab` entries, −inf elsewhere. Same dtype."""
    full = logits.new_full((*logits.shape[:-1], vocab), NEG_INF)
    return full.index_copy_(-1, kept, logits)


def _fused(quantize: str | None, *layers: nn.Linear) -> Product:
    """One product for linear layers that read the same input."""
    weight = torch.cat([layer.weight.detach() for layer in layers]) if len(layers) > 1 else layers[0].weight.detach()
    biases = [layer.bias for layer in layers]
    return product(weight, None if biases[0] is None else torch.cat(biases).detach(), quantize)


def _refuse_other(model: PreTrainedModel) -> None:
    name, config = type(model).__name__, model.config
    what = None
    if not isinstance(model, LlamaForCausalLM | Qwen2ForCausalLM):
        what = "another architecture"
    elif config.hidden_act != "silu":
        what = f"the activation {config.hidden_act}"
    elif set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        what = "attention with a window"
    elif (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") in ("dynamic", "longrope"):
        what = "positions that are scaled as the text grows"
    if what:
        raise ValueError(f"{name} has {what}: the lean forward is for plain Llamas and Qwen2s; load it without compile")
