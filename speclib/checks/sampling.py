"""Checkers and answers for the exercises of notebook 04_sampling_proof: the rule is judged by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from speclib import accept
from speclib.checks.rule import EXACT, Judged, judge_rule, on_copies, row, word_of
from speclib.distributions import Rng
from speclib.toy import P, Q

Residual = Callable[[Tensor, Tensor], Tensor]
Statistic = Callable[[Tensor, Tensor], Any]

residual_answer = accept.residual
accept_or_fix_answer = accept.accept_or_fix


def one_guess_answer(p: Tensor, d: int, rng: Rng) -> Judged:
    """The rule for a draft that was certain: (token, kept)."""
    return accept.accept_or_fix(p, None, d, rng)


def chi_square_answer(counts: Tensor, p: Tensor) -> float:
    """Pearson's statistic of counts [cells] against p [cells]."""
    expected = counts.sum() * p
    return float(((counts - expected) ** 2 / expected).sum())


def _v(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


CASES = {
    "the six words": (P, Q),
    "a uniform q": (P, torch.full((6,), 1 / 6, dtype=torch.float64)),
    "q equal to p": (P, P.clone()),
    "q 0 where p has mass": (_v(0.5, 0.3, 0.2), _v(0.0, 0.6, 0.4)),
    "p 0 where q has mass": (_v(0.0, 0.7, 0.3), _v(0.5, 0.25, 0.25)),
    "no token in common": (_v(0.6, 0.4, 0.0, 0.0), _v(0.0, 0.0, 0.1, 0.9)),
    "a q that is certain": (P, _v(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    "a p that is certain": (_v(0.0, 1.0, 0.0), _v(0.3, 0.3, 0.4)),
}


def residual(fn: Residual) -> None:
    """AssertionError, naming the case, unless fn(p, q) is max(0, p − q), rescaled to sum to 1."""
    for name, (p, q) in CASES.items():
        case = f"With {name}"
        got, expected = _vector(case, on_copies(case, fn, p, q), len(p)), accept.residual(p, q)
        # Written so that NaN fails too.
        if not (got - expected).abs().max() < EXACT:
            why = _why_not_residual(got, p, q)
            raise AssertionError(f"{case}, it is {row(expected)}, but yours is {row(got)}: {why}.")


def _why_not_residual(got: Tensor, p: Tensor, q: Tensor) -> str:
    rest = (p - q).clamp(min=0)
    if not got.isfinite().all():
        return "nothing is left over where q equals p, and 0/0 is no number: return p there"
    reasons = (
        (rest, "it has to sum to 1: divide by its sum"),
        (p, "that is p: only what q leaves over of p may be drawn"),
        ((p - q).abs() / (p - q).abs().sum(), "where q is above p nothing is left over: cut at 0, don't take |p − q|"),
        (accept.residual(q, p), "it is p − q, not q − p: what the draft proposes too rarely"),
        (rest.softmax(-1), "divide by the sum: a softmax gives mass also to words with nothing left over"),
        (p - q, "where q is above p nothing is left over: cut at 0"),
    )
    default = "max(0, p − q) for each entry, then divided by the sum"
    return next((why for value, why in reasons if (got - value).abs().max() < EXACT), default)


def accept_or_fix(fn: Callable[[Tensor, Tensor, int, Any], Judged]) -> None:
    """AssertionError, naming the case, unless fn(p, q, d, rng) keeps with min(1, p/q) and follows p exactly.

    fn is run for every draft and every way that its rng can answer, so luck plays no part.
    """
    for name, (p, q) in CASES.items():
        judge_rule(f"With {name}", fn, p, q)


def one_guess(fn: Callable[[Tensor, int, Any], Judged]) -> None:
    """AssertionError, naming the case, unless fn(p, d, rng) is the rule for a draft d that was certain."""
    for name, p in {"the six words": P, "an impossible guess": _v(0.0, 0.7, 0.3), "p = 1": _v(1.0, 0.0)}.items():
        for d in range(len(p)):
            q = torch.zeros_like(p)
            q[d] = 1
            word = word_of(d, p)
            judge_rule(f"With {name} and the guess {word}", lambda p, q, g, rng: fn(p, g, rng), p, q)


def chi_square(fn: Statistic) -> None:
    """AssertionError, naming the case, unless fn(counts, p) is Σ (count − expected)² / expected."""
    p = _v(0.4, 0.3, 0.2, 0.1)
    for counts, what in (
        ([40, 30, 20, 10], "counts as expected"),
        ([45, 25, 22, 8], "counts 45, 25, 22, 8"),
        ([450, 250, 220, 80], "counts 450, 250, 220, 80"),
        ([100, 0, 0, 0], "counts 100, 0, 0, 0"),
    ):
        case, counts = f"With {what} and p = .4 .3 .2 .1", torch.tensor(counts)  # whole numbers, as the notebook's are
        got, expected = on_copies(case, fn, counts, p), chi_square_answer(counts, p)
        try:
            got = float(got)
        except (TypeError, ValueError, RuntimeError) as error:
            raise AssertionError(f"{case}, your function should return one number, not {got!r}.") from error
        if not abs(got - expected) < 1e-4:
            why = _why_not_statistic(got, counts, p)
            raise AssertionError(f"{case}, it is {expected:.4f}, but yours is {got:.4f}: {why}.")


def _why_not_statistic(got: float, counts: Tensor, p: Tensor) -> str:
    n = counts.sum()
    e, d = n * p, counts - n * p
    reasons = (
        (d.abs() / e, "square the differences"),
        (d / e, "square the differences"),
        (d**2, "divide each square by what was expected in that cell"),
        (d**2 / counts, "divide by what was expected, not by what was counted"),
        (d**2 / (e * (1 - p)), "divide by n · p; the share 1 − p is accounted for by counting one degree less"),
        (d**2 / e / n, "compare counts with n · p, not shares with p: the number of draws has to matter"),
        (d**2 / e / len(p), "add up, don't average"),
        ((counts - p) ** 2 / p, "compare counts with n · p, not with p"),
    )
    if abs(got - float((d**2 / e).sum().sqrt())) < 1e-4:
        return "no root is taken at the end"
    default = "Σ (count − n · p)² / (n · p)"
    return next((why for terms, why in reasons if abs(got - float(terms.sum())) < 1e-4), default)


def _vector(case: str, got: Any, n: int) -> Tensor:
    if not isinstance(got, Tensor):
        raise AssertionError(f"{case}, your function should return a tensor, which rng.draw will take, not {got!r}.")
    if got.shape != (n,):
        raise AssertionError(f"{case}, the result should have shape ({n},), but yours has {tuple(got.shape)}.")
    return got.detach().double()
