"""The draft that this project distils: a small Llama whose output matrix covers only the most frequent tokens.

The output matrix is most of the work in a small model's step, and most of its rows are for tokens that hardly ever
come. A token that it cannot say has q = 0: the target still says it, as a fix or a bonus, so the rule stays exact.
Source: Zhao et al. 2025, FR-Spec, section 3 (the cut); Li et al. 2025, EAGLE-3 (a draft vocabulary).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from speclib.lean import LeanContext, spread


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
        """What `context.as_context` makes of this model."""
        return LeanContext(self)


AutoConfig.register(DraftConfig.model_type, DraftConfig, exist_ok=True)
AutoModelForCausalLM.register(DraftConfig, DraftForCausalLM, exist_ok=True)
