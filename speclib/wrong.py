"""Speculation as others got it wrong: each mistake as a switch that changes one thing in the code that runs.

They are the negative controls of the proofs, which must catch every one, and the switches that the
notebooks let the reader turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from speclib import accept
from speclib.context import LanguageModel
from speclib.distributions import Rng, Sampling
from speclib.drafters import ModelDrafter, Proposal
from speclib.stopping import Trimmer


@dataclass(frozen=True)
class Wrong:
    """One mistake. seen: where it was found. patch: turns it on while the context is open.

    draws: how many texts show it at p-value 1e-4 (`exactness.draws_needed`, on the tests' case of it); inf: none do.
    target, draft: wrap a model, where the mistake lies in how its cache is used.
    """

    name: str
    seen: str
    draws: float
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext
    target: Callable[[LanguageModel], LanguageModel] = lambda model: model
    draft: Callable[[LanguageModel], LanguageModel] = lambda model: model


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """While open, owner.name is new."""
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


# --- the rule -----------------------------------------------------------------------------------------------


def _softmax_residual(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).clamp(min=0).softmax(-1)


def _judge_then(change: Callable[[int, Tensor, list[int]], tuple[int, Tensor]]) -> Callable[..., Any]:
    """judge, with another answer where every draft was kept."""
    right = accept.judge

    def judge(p: Tensor, q: Tensor | None, drafts: list[int], rng: Rng) -> tuple[int, Tensor | None]:
        kept, weights = right(p, q, drafts, rng)
        return change(kept, weights, drafts) if drafts and kept == len(drafts) else (kept, weights)

    return judge


def _one_hot(like: Tensor, at: int) -> Tensor:
    out = torch.zeros_like(like)
    out[at] = 1
    return out


def _argmax_bonus(kept: int, weights: Tensor, drafts: list[int]) -> tuple[int, Tensor]:
    return kept, _one_hot(weights, int(weights.argmax()))


def _no_bonus(kept: int, weights: Tensor, drafts: list[int]) -> tuple[int, Tensor]:
    return kept - 1, _one_hot(weights, drafts[-1])


# --- the drafter --------------------------------------------------------------------------------------------


def _propose(token: Callable[..., int], row: Callable[..., Tensor], go_on: Callable[[int], bool]) -> Callable[..., Any]:
    """A ModelDrafter's propose in which how a token is chosen, the q handed over, and when it ends can differ."""

    def propose(self: ModelDrafter, text: list[int], k: int, sampling: Sampling, rng: Rng) -> Proposal:
        feed, tokens, rows = self._as_fed(text[len(self.context.tokens) :]), [], []
        for _ in range(k):
            logits = sampling.penalise(self._fit(self.context.feed(feed, rows=1)), text, tokens)[-1]
            d = token(logits, sampling, rng)
            if not go_on(d):
                break
            tokens.append(d)
            rows.append(row(logits, sampling))
            feed = [d]
        return Proposal(tokens, torch.stack(rows) if rows else None)

    return propose


def _drawn(logits: Tensor, sampling: Sampling, rng: Rng) -> int:
    return rng.draw(sampling.warp(logits))


def _warped(logits: Tensor, sampling: Sampling) -> Tensor:
    return sampling.warp(logits)


def _greedy_claims_softmax() -> AbstractContextManager[Any]:
    return replaced(ModelDrafter, "propose", _propose(lambda z, s, r: int(z.argmax()), _warped, lambda d: True))


def _q_unwarped() -> AbstractContextManager[Any]:
    return replaced(ModelDrafter, "propose", _propose(_drawn, lambda z, s: z.softmax(-1), lambda d: True))


def _withheld_by_value() -> AbstractContextManager[Any]:
    return replaced(ModelDrafter, "propose", _propose(_drawn, _warped, lambda d: d == 0))


# --- processors, stopping, seeds ----------------------------------------------------------------------------


def _penalise_without_drafts() -> AbstractContextManager[Any]:
    right = Sampling.penalise

    def penalise(self: Sampling, logits: Tensor, text: list[int], drafts: list[int]) -> Tensor:
        return torch.cat([right(self, row[None], text, []) for row in logits])

    return replaced(Sampling, "penalise", penalise)


def _warp_last_row_only() -> AbstractContextManager[Any]:
    right = Sampling.warp

    def warp(self: Sampling, logits: Tensor, *, check: bool = True) -> Tensor:
        if logits.ndim == 1:  # the draft's, one step at a time
            return right(self, logits, check=check)
        return torch.cat([logits[:-1].softmax(-1), right(self, logits[-1:], check=check)])

    return replaced(Sampling, "warp", warp)


def _eos_at_block_end_only() -> AbstractContextManager[Any]:
    right = Trimmer.trim

    def trim(self: Trimmer, block: list[int]) -> Any:
        if any(t in self._stop.eos for t in block[:-1]) and self._committed + len(block) < self._stop.max_new:
            self._committed += len(block)
            return block, "", "eos" if block[-1] in self._stop.eos else None
        return right(self, block)

    return replaced(Trimmer, "trim", trim)


def _seeded_again() -> AbstractContextManager[Any]:
    right = Rng.uniform

    def uniform(self: Rng, n: int) -> Tensor:
        self.generator.manual_seed(self.generator.initial_seed())
        return right(self, n)

    return replaced(Rng, "uniform", uniform)


# --- the caches ---------------------------------------------------------------------------------------------


class Ghosts:
    """Says it was cut back and was not: rejected tokens stay in the cache and new ones are fed behind them."""

    def __init__(self, model: LanguageModel):
        self.model, self.tokens = model, []
        self.vocab_size, self.max_length, self.size = model.vocab_size, model.max_length, model.size

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        self.tokens = self.tokens + ids
        return self.model.feed(ids, rows)

    def rollback(self, length: int) -> None:
        self.tokens = self.tokens[:length]


class FedAgain(Ghosts):
    """Feeds the whole text again, on top of what the cache holds."""

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        self.tokens = self.tokens + ids
        return self.model.feed(self.tokens, rows)


class OwnLastUnread(Ghosts):
    """Feeds only the newest token: after a full keep, the draft never reads its own last one."""

    def __init__(self, model: LanguageModel):
        super().__init__(model)
        self._read: list[bool] = []

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        skip = len(ids) - 1 if self.tokens else 0
        self.tokens = self.tokens + ids
        self._read += [False] * skip + [True] * (len(ids) - skip)
        return self.model.feed(ids[skip:], rows)

    def rollback(self, length: int) -> None:
        del self._read[length:]
        self.tokens = self.tokens[:length]
        self.model.rollback(sum(self._read))


# Caught by enumeration, each on some case by more than 1e-3.
BIASED = (
    Wrong(
        "a rejection draws from p",
        "our own: notebook 04, 'Break it'",
        629,
        lambda: replaced(accept, "residual", lambda p, q: p),
    ),
    Wrong(
        "a rejected lookup draws from p",
        "romsto/Speculative-Decoding, n-gram mode",
        110,
        lambda: replaced(accept, "residual_one_hot", lambda p, d: p),
    ),
    Wrong(
        "the residual goes through a softmax",
        "our own: no public thread known",
        435,
        lambda: replaced(accept, "residual", _softmax_residual),
    ),
    Wrong("greedy drafts, softmax as q", "transformers #32867, #47932", 80, _greedy_claims_softmax),
    Wrong(
        "the bonus is the argmax",
        "shreyansh26/Speculative-Sampling",
        202,
        lambda: replaced(accept, "judge", _judge_then(_argmax_bonus)),
    ),
    Wrong("only the last row is warped", "transformers #28166", 111, _warp_last_row_only),
    Wrong("q is handed over unwarped", "sglang #33643", 3671, _q_unwarped),
    Wrong("penalties leave the drafts out", "TensorRT-LLM #17701", 29, _penalise_without_drafts),
    Wrong(
        "a draft is withheld because of its value",
        "our own: notebook 04, 'A whole block'",
        307,
        _withheld_by_value,
    ),
    Wrong("an EOS inside a block runs on", "transformers #47912; EAGLE; Medusa", 6, _eos_at_block_end_only),
    Wrong("no rollback: ghosts", "our own: notebook 03, 'Break it'", 334, target=Ghosts),
    Wrong("the text is fed again on its cache", "romsto/Speculative-Decoding", 17, target=FedAgain),
)
# Right output, less speed: caught because draft = target must keep every draft.
WASTEFUL = (
    Wrong(
        "no bonus", "openvinotoolkit/openvino_notebooks", inf, lambda: replaced(accept, "judge", _judge_then(_no_bonus))
    ),
    Wrong("the draft's last token is unread", "vLLM #9730, mlxcel #994", inf, draft=OwnLastUnread),
)
# Each answer is right alone, but all of them hang together: caught by runs under many seeds.
SEEDED = (Wrong("seeded again at each step", "feifeibear/LLMSpeculativeSampling", 2_000, _seeded_again),)
