"""A reader's rule, judged by running it for every draft and every way that its rng can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from speclib.exactness import EveryWay, sequence_distribution
from speclib.exercises import answer
from speclib.toy import WORDS

Judged = tuple[int, bool]
EXACT = 1e-6  # the vectors are fp64, but a reader may turn them into fp32
_NEVER = "your function never asked rng, and chance must come from rng.kept and rng.draw"


class Asked:
    """An rng for readers: passes on what `kept` and `draw` are asked, and says what is wrong with a question."""

    VECTOR = "rng.kept takes a vector with one probability per draft, here [1], such as ratio[None]"
    LOOP = "one token may take two questions to rng, and yours asks on and on: is there a loop?"

    def __init__(self, rng: EveryWay, most: int = 20):
        self._rng, self._most, self.asked = rng, most, 0

    def kept(self, probabilities: Tensor) -> int:
        self._count()
        if not isinstance(probabilities, Tensor) or probabilities.ndim != 1:
            raise TypeError(self.VECTOR)
        return self._rng.kept(probabilities)

    def draw(self, weights: Tensor) -> int:
        self._count()
        if not isinstance(weights, Tensor) or weights.ndim != 1:
            raise TypeError("rng.draw takes a vector of weights, one per token")
        if not (weights >= 0).all() or not weights.sum() > 0:
            raise ValueError(f"rng.draw was given weights {self._told(weights)}from which nothing can be drawn")
        return self._rng.draw(weights)

    def _told(self, weights: Tensor) -> str:
        return f"{row(weights)}, "

    def _count(self) -> None:
        self.asked += 1
        if self.asked > self._most:
            raise RuntimeError(self.LOOP)


def on_copies(case: str, fn: Callable[..., Any], *args: Any) -> Any:
    """As `answer`; AssertionError, naming the case, also where fn changes a tensor that it was given."""
    copies = [x.clone() if isinstance(x, Tensor) else x for x in args]
    got = answer(case, fn, *copies)
    if any(isinstance(x, Tensor) and not torch.equal(x, y) for x, y in zip(args, copies, strict=True)):
        raise AssertionError(f"{case}, your function changed its input; work on a copy.")
    return got


def judge_rule(case: str, judge: Callable[[Tensor, Tensor, int, Any], Judged], p: Tensor, q: Tensor) -> None:
    """AssertionError, naming the case, unless judge(p, q, d, rng) keeps with min(1, p/q) and follows p, for d from q.

    p, q: [n], each summing to 1. judge returns (token, kept).
    """
    out, asked = torch.zeros_like(p), 0
    kept = torch.zeros_like(p)  # kept[d]: how likely draft d is kept
    for d in range(len(p)):
        if q[d] == 0:
            continue
        word = word_of(d, p)

        def run(rng: EveryWay, d: int = d, word: str = word) -> Judged:
            nonlocal asked
            reader = Asked(rng)
            token, keep = _pair(case, on_copies(f"{case} and the draft {word}", judge, p, q, d, reader), len(p))
            asked += reader.asked
            if keep and token != d:
                raise AssertionError(
                    f"{case}, the draft {word} was called kept, but {word_of(token, p)} came out: a kept draft comes "
                    "out itself, and what stands in for a rejected one comes with False."
                )
            return token, keep

        for (token, keep), share in sequence_distribution(run).items():
            kept[d] += share * keep
            out[token] += q[d] * share
    for d in range(len(p)):
        wanted = min(1.0, float(p[d] / q[d])) if q[d] > 0 else 0.0
        if not abs(float(kept[d]) - wanted) < EXACT:
            facts = f"(p = {p[d]:.3f}, q = {q[d]:.3f}) is kept with probability {wanted:.4f}"
            why = _why_not_kept(float(kept[d]), float(p[d]), float(q[d])) if asked else _NEVER
            raise AssertionError(f"{case}, the draft {word_of(d, p)} {facts}, but yours keeps it with {why}.")
    if not (out - p).abs().max() < EXACT:
        y = int((out - p).abs().argmax())
        facts = f"{word_of(y, p)} comes out with probability {out[y]:.4f}, and p says {p[y]:.4f}"
        why = _why_biased(out, p, q) if asked else _NEVER
        raise AssertionError(f"{case}, over all drafts and all answers of rng, {facts}: {why}.")


def _why_not_kept(got: float, p: float, q: float) -> str:
    start = f"{got:.4f}"
    reasons = (
        (1.0, "a draft that the target likes less than the draft does is kept only in the share p/q of cases"),
        (p, "p/q is asked for: how often it came here counts too"),
        (min(1.0, q / p) if p else 1.0, "that is q/p, the wrong way round"),
        (0.0, "where p is below q, the share p/q is still kept; and where p is above q, all of it"),
        (1 - min(1.0, p / q), "kept and rejected are exchanged"),
    )
    why = next((why for value, why in reasons if abs(got - value) < EXACT), "it is min(1, p/q)")
    return f"{start}: {why}"


def _why_biased(out: Tensor, p: Tensor, q: Tensor) -> str:
    both, rejected = torch.minimum(p, q), (p - q).clamp(min=0).sum()
    rest = (p - q).clamp(min=0)
    reasons = (
        (p, "a rejection must draw from the residual, since p also holds what kept drafts have brought already"),
        (q, "a rejection drew from q again; it has to be the residual"),
        (rest.softmax(-1), "the residual is divided by its sum; a softmax gives mass to words with nothing left over"),
        ((p - q).abs() / (p - q).abs().sum().clamp(min=1e-30), "the residual is cut at 0; |p − q| is not"),
        (torch.ones_like(p) / len(p), "a rejection drew uniformly; it has to be from the residual"),
        (_argmax(rest), "a rejection takes the residual's largest entry; it has to be a draw"),
        (_argmax(p), "a rejection takes p's largest entry; it has to be a draw from the residual"),
    )
    default = "what a rejection draws from is not the residual"
    return next((why for r, why in reasons if (out - both - rejected * r).abs().max() < EXACT), default)


def _argmax(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(0, x.argmax()[None], 1.0)


def _pair(case: str, got: Any, n: int) -> Judged:
    try:
        token, kept = got
    except (TypeError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{case}, your function should return (token, kept), not {got!r}.") from error
    if not isinstance(token, int):
        raise AssertionError(f"{case}, the token that comes out is a whole number (int), not {token!r}.")
    if not 0 <= token < n:
        raise AssertionError(f"{case}, your function returned the token {token}; there are tokens 0 … {n - 1}.")
    if not isinstance(kept, int) or kept not in (0, 1):
        raise AssertionError(f"{case}, the second thing returned says whether d was kept, True or False: not {kept!r}.")
    return token, bool(kept)


def word_of(i: int, p: Tensor) -> str:
    """The i-th of the six words, or its number in another vocabulary."""
    return WORDS[i] if len(p) == len(WORDS) else str(i)


def row(x: Tensor) -> str:
    """A vector as text."""
    return "[" + ", ".join(f"{v:.4f}" for v in x.tolist()) + "]"
