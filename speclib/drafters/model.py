"""A smaller language model as drafter."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from speclib.context import LanguageModel, as_context, shared
from speclib.distributions import NEG_INF, Rng, Sampling
from speclib.drafters.protocol import Proposal


class ModelDrafter:
    """Any language model with the target's tokenizer, drafting one token after another.

    draft: a context, a table model or a transformers model. greedy: always take the draft's argmax, whose q
    is one-hot; otherwise tokens are drawn, warped as the target's, and q travels with them (at
    temperature 0 both are the same).

    Its vocabulary may be wider or narrower than the target's (padding of one tokenizer's embedding). Ids
    that the target lacks are never drawn; ids that the draft lacks have q = 0 and, once committed, are fed to it as
    id 0. That costs acceptance and never exactness.
    Source: Leviathan et al. 2023, algorithm 1. Taught in notebook 03_greedy, section 'Draft four tokens'.
    """

    def __init__(self, draft: LanguageModel | PreTrainedModel, greedy: bool = False):
        self.context = as_context(draft)
        self.greedy = greedy
        self._vocab = self.context.vocab_size

    def begin(self, text: list[int], target: LanguageModel) -> None:
        if self.context.size > target.size > 0:
            warnings.warn(
                f"the draft ({self.context.size:,} parameters) is larger than its target ({target.size:,}): "
                "are the two swapped?",
                stacklevel=2,
            )
        if self.context is target:
            raise ValueError("target and draft share one cache: make a context for each; they may share the model")
        self._vocab = target.vocab_size
        # The text's last token is always fed, also when an earlier generation left it in the cache.
        self.rollback(shared(self.context.tokens, self._as_fed(text[:-1])))

    def propose(self, text: list[int], k: int, sampling: Sampling, rng: Rng) -> Proposal:
        covered = len(self.context.tokens)
        if self.context.tokens != self._as_fed(text[:covered]):
            raise RuntimeError("the draft's cache covers something else than the text: a rollback is missing")
        feed = self._as_fed(text[covered:])
        # The last draft is not fed, so k drafts need room for k − 1 of them behind the text.
        k = min(k, self.context.max_length - len(text) + 1)
        greedy = self.greedy or sampling.temperature == 0
        # Where only the draft's own logits count, a context may know a way without a word to the host for each draft.
        plain = not sampling.penalises and self._vocab == self.context.vocab_size
        if plain and k > 0 and hasattr(self.context, "greedy"):
            if greedy:
                return Proposal(self.context.greedy(feed, k))
            if hasattr(rng, "drawn"):
                return Proposal(*self.context.sample(feed, k, sampling, rng))
        tokens: list[int] = []
        rows: list[Tensor] = []
        for _ in range(k):
            logits = self._fit(self.context.feed(feed, rows=1))
            logits = sampling.penalise(logits, text, tokens)[-1]
            if logits.max() == NEG_INF:
                break  # no token that both models have is possible here: known before one is drawn
            if greedy:
                tokens.append(int(logits.argmax()))
            else:
                rows.append(sampling.warp(logits))
                tokens.append(rng.draw(rows[-1]))
            feed = tokens[-1:]
        return Proposal(tokens, torch.stack(rows) if rows else None)

    def rollback(self, length: int) -> None:
        self.context.rollback(min(length, len(self.context.tokens)))

    def _fit(self, logits: Tensor) -> Tensor:
        """The draft's logits at the target's width: cut, or filled up with impossible tokens."""
        surplus = self._vocab - logits.shape[-1]
        return F.pad(logits, (0, surplus), value=NEG_INF) if surplus else logits

    def _as_fed(self, text: list[int]) -> list[int]:
        """The text as the draft reads it: ids that it has no row for become a stand-in."""
        width = self.context.vocab_size
        return text if self._vocab <= width else [t if t < width else 0 for t in text]
