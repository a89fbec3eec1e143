"""The draft that this project distils: a small Llama whose output matrix covers only the most frequent tokens.

The output matrix is most of the work in a small model's step, and most of its rows are for tokens that hardly ever
come. A token that it cannot say has q = 0: the target still says it, as a fix or a bonus, so the rule stays exact.
Source: Zhao et al. 2025, FR-Spec, section 3 (the cut); Li et al. 2025, EAGLE-3 (a draft vocabulary).
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from speclib.lean import Lean, LeanContext, spread


class DraftConfig(LlamaConfig):
    """A Llama's configuration, and `head_size`: for how many of the `vocab_size` tokens there is an output row."""

    model_type = "speclib_draft"
    head_size: int = 0


class CutHead(nn.Linear):
    """An output matrix for some tokens only: hidden states → logits over the whole vocabulary, −inf for the rest.

    weight [head_size, hidden]; `kept` [head_size]: the token id of each of its rows.
    """

    def __init__(self, hidden: int, head_size: int, vocab: int):
        super().__init__(hidden, head_size, bias=False)
        self.vocab = vocab
        self.register_buffer("kept", torch.arange(head_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return spread(super().forward(hidden), self.kept, self.vocab)


class DraftForCausalLM(LlamaForCausalLM):
    """A Llama that reads every token and says only those that its `CutHead` has a row for.

    Its logits are as wide as the vocabulary, so that it stands wherever a causal LM of transformers can: as
    `ModelDrafter`'s draft, or as `assistant_model` of `generate`.
    """

    config_class = DraftConfig

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        self.lm_head = CutHead(config.hidden_size, config.head_size, config.vocab_size)
        self.post_init()

    def lean_context(self) -> LeanContext:
        """What `context.as_context` makes of this model, whose weights must not change after the first one."""
        return LeanContext(self._lean)

    @cached_property
    def _lean(self) -> Lean:
        return Lean(self)


PAD = 64  # channels that `as_llama` adds: engines want widths that are multiples of it
LEVEL = 0.01  # what stands in the first of them, for every token; the rest are 0
TOP = 1e3  # no token's channels come to lie above this
NEVER = 1e4  # how far below zero the logit of a token without an output row comes to lie, at least


def as_llama(model: DraftForCausalLM) -> LlamaForCausalLM:
    """The same draft as a plain Llama, for engines that know no cut output matrix: the same logits, up to rounding.

    A matrix without a bias cannot say −inf whatever it reads, so each token carries a small constant in a channel of
    its own, which no layer reads or writes; the rows that were missing read nothing else, and put −10⁴ or less in its
    place. It adds next to nothing to the norms, whose weights take up that they now average over more channels.
    Returns a model in the dtype of the other.
    """
    old = model.config
    config = LlamaConfig(**{k: v for k, v in old.to_dict().items() if k not in ("model_type", "architectures")})
    config.head_dim = getattr(old, "head_dim", None) or old.hidden_size // old.num_attention_heads
    config.hidden_size = width = old.hidden_size + PAD
    share = old.hidden_size / width
    config.rms_norm_eps = old.rms_norm_eps * share
    state = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.kept":
            continue
        if name.endswith("norm.weight"):
            state[name] = F.pad(weight * share**0.5, (0, PAD))
        elif name.endswith(("o_proj.weight", "down_proj.weight")):  # write into the stream
            state[name] = F.pad(weight, (0, 0, 0, PAD))
        else:  # read from it
            state[name] = F.pad(weight, (0, PAD))
    state["model.embed_tokens.weight"][:, old.hidden_size] = LEVEL
    # The last norm lets the constant through, divided by the root mean square of the channels, which stays below TOP.
    state["model.norm.weight"][old.hidden_size] = 1.0
    head = torch.zeros(old.vocab_size, width, dtype=model.dtype)
    head[:, old.hidden_size] = -NEVER * TOP / LEVEL
    head[model.lm_head.kept] = state["lm_head.weight"]
    out = LlamaForCausalLM(config).to(model.dtype).eval().requires_grad_(False)
    out.load_state_dict(state | {"lm_head.weight": head})
    return out


AutoConfig.register(DraftConfig.model_type, DraftConfig, exist_ok=True)
AutoModelForCausalLM.register(DraftConfig, DraftForCausalLM, exist_ok=True)
