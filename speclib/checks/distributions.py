"""Checkers and answers for the exercises of notebook 01_distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from speclib.distributions import warp
from speclib.exercises import answer

Softmax = Callable[[Tensor, float], Tensor]
TopP = Callable[[Tensor, float], Tensor]
SequenceLogProb = Callable[[Tensor, list[int]], Any]


def softmax_answer(logits: Tensor, temperature: float) -> Tensor:
    """p from logits [vocab] at a temperature > 0."""
    return warp(logits, temperature=temperature)


def top_p_answer(p: Tensor, mass: float) -> Tensor:
    """p [vocab], cut to the smallest set of most likely tokens that reaches `mass`, and rescaled."""
    return warp(p.log(), top_p=mass)


def sequence_log_prob_answer(logits: Tensor, ids: list[int]) -> float:
    """log P(ids[1:] | ids[0]), when logits [len(ids), vocab] are what the model gave for ids."""
    log_p = logits.double().log_softmax(-1)
    return float(sum(log_p[i - 1, ids[i]] for i in range(1, len(ids))))


def softmax(fn: Softmax) -> None:
    """AssertionError, naming the case, unless fn(logits, temperature) is softmax(logits / temperature)."""
    z = torch.tensor([1.0, 2.0, 3.0])
    case = "With logits 1, 2, 3 at temperature 1"
    _vector(case, fn, z, 1.0, _softmax(z), "it should be e^z divided by the sum of all e^z")
    why = "the temperature divides the logits, before the exponential"
    for temperature in (2.0, 0.1):
        case = f"With logits 1, 2, 3 at temperature {temperature:g}"
        _vector(case, fn, z, temperature, _softmax(z / temperature), why)
    big = torch.tensor([1000.0, 999.0, 0.0])
    why = "e^1000 overflows: take the largest logit away from all of them first, which changes no quotient"
    _vector("With logits 1000, 999, 0 at temperature 1", fn, big, 1.0, _softmax(big), why)
    small = torch.tensor([-1000.0, -1001.0, -1002.0])
    why = "every e^z is 0 in floating point: take the largest logit away from all of them first"
    _vector("With logits −1000, −1001, −1002 at temperature 1", fn, small, 1.0, _softmax(small), why)
    holes = torch.tensor([0.0, -math.inf, 1.0])
    case = "With an impossible token (logits 0, −inf, 1) at temperature 1"
    _vector(case, fn, holes, 1.0, _softmax(holes), "a logit of −inf means probability 0")


def top_p(fn: TopP) -> None:
    """AssertionError, naming the case, unless fn(p, mass) cuts and rescales p as top-p does."""
    p = torch.tensor([0.10, 0.40, 0.05, 0.25, 0.20])
    for mass, kept, why in (
        (0.60, [1, 3], "0.40 + 0.25 reaches 0.60: the token that crosses the line stays, the rest goes"),
        (0.90, [0, 1, 3, 4], "0.40 + 0.25 + 0.20 = 0.85 is still short of it, so a fourth token is needed"),
        (0.30, [1], "the most likely token alone reaches it; never fewer than one token stays"),
        (1.00, [0, 1, 2, 3, 4], "nothing is cut at 1"),
    ):
        case = f"With p = .10 .40 .05 .25 .20 and mass {mass:.2f}"
        expected = torch.zeros_like(p)
        expected[kept] = p[kept] / p[kept].sum()
        got = _vector(case, fn, p, mass, None, why)
        kept_by_fn = [i for i, x in enumerate(got.tolist()) if x > 0]
        if kept_by_fn != kept:
            raise AssertionError(f"{case}, tokens {kept} stay, but yours keeps {kept_by_fn}: {why}.")
        if abs(float(got.sum()) - 1) > 1e-5:
            raise AssertionError(
                f"{case}, what is left must sum to 1 again, but yours sums to {float(got.sum()):.4f}: "
                "divide by what is left."
            )
        _compare(case, got, expected, "what is left keeps its proportions")


def sequence_log_prob(fn: SequenceLogProb) -> None:
    """AssertionError, naming the case, unless fn(logits, ids) is log P(ids[1:] | ids[0]).

    Row i of the logits predicts ids[i + 1].
    """
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    for ids, terms in (
        ([0, 1], "row 0 predicts token 1: log 0.2"),
        ([2, 1, 0], "log 0.2 from row 0, then log 0.5 from row 1"),
        ([1, 1, 1], "log 0.2 from row 0, then log 0.3 from row 1"),
    ):
        case = f"With ids {ids}"
        expected = sequence_log_prob_answer(rows[: len(ids)], ids)
        got = _number(case, fn, rows[: len(ids)].clone(), ids)
        _judge_sum(case, got, expected, rows[: len(ids)], ids, terms)
    shifted = rows + torch.tensor([[5.0], [-3.0], [0.5]])
    got = _number("With 5, −3 and 0.5 added to the three rows", fn, shifted, [2, 1, 0])
    if abs(got - sequence_log_prob_answer(rows, [2, 1, 0])) > 1e-4:
        raise AssertionError(
            f"With a constant added to each row the answer must not change, but yours became {got:.4f}: "
            "logits are not log-probabilities until a log-softmax has been taken."
        )
    ids = [0, 1] * 1000
    long = torch.tensor([0.3, 0.3, 0.4]).log().expand(2000, 3).clone()
    got, expected = _number("With a text of 2,000 tokens", fn, long, ids), 1999 * math.log(0.3)
    if not math.isfinite(got) or abs(got - expected) > 1.0:
        raise AssertionError(
            f"With a text of 2,000 tokens it is {expected:.1f}, but yours is {got:.1f}: the product of so "
            "many probabilities is 0 in floating point; add the logarithms instead."
        )


def _softmax(z: Tensor) -> Tensor:
    return z.double().softmax(-1)


def _vector(case: str, fn: Softmax, x: Tensor, number: float, expected: Tensor | None, why: str) -> Tensor:
    given = x.clone()
    got = answer(case, fn, given, number)
    try:
        got = torch.as_tensor(got).detach().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{case}, your function should return a tensor, not {got!r}.") from error
    if got.shape != x.shape:
        shapes = f"shape {tuple(x.shape)}, but yours has {tuple(got.shape)}"
        raise AssertionError(f"{case}, the result should have {shapes}.")
    if not torch.equal(given, x):
        raise AssertionError(f"{case}, your function changed its input; work on a copy.")
    if expected is not None:
        _compare(case, got, expected, why)
    return got


def _compare(case: str, got: Tensor, expected: Tensor, why: str) -> None:
    # Written so that NaN fails too.
    if not (got - expected.double()).abs().max() < 1e-5:
        raise AssertionError(f"{case}, it is {_row(expected)}, but yours is {_row(got)}: {why}.")


def _row(x: Tensor) -> str:
    return "[" + ", ".join(f"{v:.4f}" for v in x.tolist()) + "]"


def _number(case: str, fn: SequenceLogProb, logits: Tensor, ids: list[int]) -> float:
    got = answer(case, fn, logits, list(ids))
    try:
        return float(got)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{case}, your function should return one number, not {got!r}.") from error


def _judge_sum(case: str, got: float, expected: float, rows: Tensor, ids: list[int], terms: str) -> None:
    if abs(got - expected) < 1e-4:
        return
    log_p = rows.double().log_softmax(-1)
    same_row = sum(float(log_p[i, ids[i]]) for i in range(1, len(ids)))
    reasons = {
        same_row: "it reads each token's probability from the row after it; row i − 1 predicts token i",
        same_row + float(log_p[0, ids[0]]): "it reads row i for token i; row i − 1 predicts token i",
        expected + float(log_p[0, ids[0]]): "it counts the first token, which nothing predicts",
        expected + float(log_p[-1, ids[0]]): "it counts the first token, which nothing predicts",
        math.exp(expected): "it is the probability; its logarithm is asked for",
        -expected: "its sign is wrong",
    }
    why = next((text for value, text in reasons.items() if abs(got - value) < 1e-4), terms)
    raise AssertionError(f"{case}, it is {expected:.4f}, but yours is {got:.4f}: {why}.")
