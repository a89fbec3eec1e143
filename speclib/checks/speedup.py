"""Checkers and answers for the exercises of notebook 05_sweep: the formulas, and what a trace of rounds tells."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from speclib import speedup as formulas
from speclib.checks.number import judge_number, number
from speclib.exercises import answer

# Exact zeros are among the answers, of which nothing is a small part.
_judge = functools.partial(judge_number, slack=1e-9)

Rounds = Sequence[tuple[int, int]]  # (kept, drafted) of each round

Expected = Callable[[float, int], float]
Speedup = Callable[[float, int, float, float], float]
BestK = Callable[[float, float, Sequence[float]], int]
FromTrace = Callable[[Rounds], tuple[float, float]]


def expected_tokens_answer(alpha: float, K: int) -> float:
    """1 + α + … + α^K."""
    return formulas.expected_tokens(alpha, K)


def speedup_answer(alpha: float, K: int, c: float, v: float = 1.0) -> float:
    """Expected tokens ÷ (K·c + v)."""
    return formulas.speedup(alpha, K, c, v)


def best_k_answer(alpha: float, c: float, v: Sequence[float]) -> int:
    """The K in 0 … len(v) − 1 with the largest speedup, the smallest where several tie."""
    return formulas.best_k(alpha, c, v, k_max=len(v) - 1)


def alpha_hat_answer(rounds: Rounds) -> tuple[float, float]:
    """α̂ = kept ÷ checked, pooled over the rounds; AL = committed tokens per round."""
    kept = sum(k for k, _ in rounds)
    checked = sum(min(k + 1, drafted) for k, drafted in rounds)
    return kept / checked, (kept + len(rounds)) / len(rounds)


def expected_tokens(fn: Expected) -> None:
    """AssertionError, naming the case, unless fn(alpha, K) is 1 + α + … + α^K, also at α = 0 and 1."""
    for a, k in ((0.7, 4), (0.6, 1), (0.5, 3), (0.9, 8), (0.3, 0), (0.0, 4), (1.0, 4), (1.0, 0)):
        expected = expected_tokens_answer(a, k)
        got = number(f"With α = {a} and K = {k}", fn, a, k)
        reasons = {
            expected - 1: "every round brings one token more than it keeps, the fix or the bonus",
            sum(a**i for i in range(k)): "K drafts give K + 1 terms, α⁰ … α^K: the last one, α^K, is missing",
            sum(a**i for i in range(k + 2)): "the last term is α^K: there is no draft K + 1 to be kept",
            1 + a * k: "a draft is only looked at if all before it were kept: draft i counts with α^i, not with α",
            1 + a**k: "add up over all drafts, not only the last",
            float(k + 1): "not every draft is kept: draft i counts with α^i",
            a * (k + 1): "draft i counts with α^i, and the fix or bonus always comes",
            sum((i + 1) * a**i for i in range(k + 1)): "α^i is how often draft i is kept, and each brings one token",
        }
        if a < 1:
            reasons |= {
                1 / (1 - a): "that is the limit for K → ∞, and K is a number here",
                (1 - a**k) / (1 - a): "the exponent is K + 1: the terms go up to α^K",
                expected / (k + 1): "tokens per round are asked for, not per token that the target scored",
            }
        otherwise = "1 + α + … + α^K, which is K + 1 where α = 1"
        _judge(f"With α = {a} and K = {k}", got, expected, reasons, otherwise)


def speedup(fn: Speedup) -> None:
    """AssertionError, naming the case, unless fn(alpha, K, c, v) is expected tokens ÷ (K·c + v)."""
    for a, k, c, v in (
        (0.7, 4, 0.1, 1.2),
        (0.7, 6, 0.05, 1.0),
        (0.5, 3, 0.2, 1.3),
        (0.9, 8, 0.02, 1.15),
        (0.2, 4, 0.4, 1.0),
        (0.6, 0, 0.3, 1.0),
        (0.8, 5, 0.0, 1.0),
        (1.0, 4, 0.25, 1.1),
    ):
        case = f"With α = {a}, K = {k}, c = {c} and v = {v}"
        tokens = expected_tokens_answer(a, k)
        got = number(case, fn, a, k, c, v)
        reasons = {
            tokens / (k * c + 1): "the target's pass costs v, which is more than 1 where it is not flat",
            tokens / (k * c) if k * c else math.inf: "the target's own pass has to be paid too: v",
            tokens / v: "the K draft steps have to be paid: K·c",
            tokens: "divide by what a round costs, K·c + v plain steps",
            tokens / (c + v): "there are K draft steps, each of which costs c",
            tokens / ((k + 1) * c + v): "K drafts take K steps: the fix or bonus costs no step of the draft",
            tokens / (k * (c + v)) if k else math.inf: "one pass of the target checks all K drafts",
            tokens / (k * c + (k + 1) * v): "the target's pass is one, whatever K is: v already says what it costs",
            tokens / (1 + k * c * v): "K·c and v are added: first drafts, then the pass",
            (tokens - 1) / (k * c + v): "the fix or bonus counts too: K drafts give K + 1 terms",
            (tokens - a**k) / (k * c + v): "K drafts give K + 1 terms, and the last one, α^K, is missing",
            (1 + a * k) / (k * c + v): "draft i is kept only if all before it were: it counts with α^i",
            (k * c + v) / tokens: "this is the time, in plain steps per token: the speedup is its reciprocal",
            tokens / (k * c + v) - 1: "the speedup is a ratio: plain decoding has 1, not 0",
        }
        _judge(case, got, tokens / (k * c + v), reasons, "expected tokens divided by K·c + v")


_FLAT = [1.0] * 17
_STEEP = [1.0 + 0.2 * k for k in range(9)]
_STAIR = [1.0, 1.0, 1.0, 1.0, 1.6, 1.6, 1.6, 1.6, 1.6]


def best_k(fn: BestK) -> None:
    """AssertionError, naming the case, unless fn(alpha, c, v) is the smallest of the K with the largest speedup."""
    for a, c, v, what in (
        (0.7, 0.05, _FLAT, "v = 1 up to K = 16"),
        (0.7, 0.25, _FLAT, "v = 1 up to K = 16"),
        (0.9, 0.05, _STEEP, "v rising by 0.2 with each draft, up to K = 8"),
        (0.8, 0.05, _STAIR, "v = 1 up to K = 3 and 1.6 from there to K = 8"),
        (0.2, 0.5, _FLAT, "v = 1 up to K = 16"),
        (0.95, 0.0, _FLAT, "v = 1 up to K = 16"),
        (0.0, 0.0, _FLAT, "v = 1 up to K = 16"),
    ):
        case = f"With α = {a}, c = {c} and {what}"
        curve = [speedup_answer(a, k, c, v[k]) for k in range(len(v))]
        expected, got = best_k_answer(a, c, v), number(case, fn, a, c, list(v))
        flat = [speedup_answer(a, k, c) for k in range(len(v))]
        tokens = [expected_tokens_answer(a, k) for k in range(len(v))]
        shorter = [speedup_answer(a, k, c, v[max(k - 1, 0)]) for k in range(len(v))]
        # Where two mistakes give the same K, the later line speaks.
        reasons = {
            float(len(v)): f"K goes up to {len(v) - 1}, the last for which v is given",
            float(expected - 1): "it is one too small: is it the index in a list that begins with K = 1?",
            float(expected + 1): "it is one too large: K + 1 is what the pass is over",
            float(_first(curve[:-1])): f"K goes up to {len(v) - 1}, the last for which v is given",
            float(curve.index(min(curve))): "that is where the speedup is smallest",
            float(_first(curve[1:]) + 1): "K = 0 is a choice too, plain decoding, and here nothing is faster",
            float(_first(tokens)): "that brings most tokens per round; drafts and pass have to be paid",
            float(_first(shorter)): "the cost of a pass with K drafts is v[K]",
            float(_first(flat)): "the pass costs v[K], and here it is not flat",
            float(_last(curve)): "where several K tie, the smallest is asked for: it drafts least",
        }
        reasons.setdefault(max(curve), "the K is asked for, not the speedup there")
        _judge(case, got, float(expected), reasons, "the K from 0 with the largest speedup(α, K, c, v[K])")


def alpha_hat(fn: FromTrace) -> None:
    """AssertionError, naming the case, unless fn(rounds) is (α̂, AL) for rounds given as (kept, drafted)."""
    for rounds in (
        [(2, 4), (4, 4), (0, 4), (1, 4), (3, 4)],
        [(1, 2), (2, 2), (2, 2), (0, 2), (2, 2)],
        [(3, 3)],
        [(0, 5), (0, 5), (1, 5)],
        [(4, 4), (1, 4), (0, 0), (2, 3)],
    ):
        case = f"With the rounds {', '.join(f'{k} of {d}' for k, d in rounds)}"
        got = answer(case, fn, list(rounds))
        try:
            mine = tuple(float(x) for x in got)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{case}, your function should return two numbers, not {got!r}.") from error
        if len(mine) != 2:
            raise AssertionError(f"{case}, your function should return two numbers, α̂ and AL, not {len(mine)}.")
        _judge(f"{case}, as for α̂", mine[0], alpha_hat_answer(rounds)[0], _why_alpha(rounds), "kept ÷ checked")
        _judge(f"{case}, as for AL", mine[1], alpha_hat_answer(rounds)[1], _why_al(rounds), "tokens ÷ rounds")


def _why_alpha(rounds: Rounds) -> dict[float, str]:
    kept, drafted, n = sum(k for k, _ in rounds), sum(d for _, d in rounds), len(rounds)
    checked = [min(k + 1, d) for k, d in rounds]
    guessing = [(k, d, c) for (k, d), c in zip(rounds, checked, strict=True) if d]
    return {
        kept / sum(k + 1 for k, _ in rounds): "where all drafts were kept, none was rejected: the bonus is no draft",
        sum(k / c for k, _, c in guessing) / len(guessing): "pool: all kept ÷ all checked, not a mean over rounds",
        sum(k / d for k, d, _ in guessing) / len(guessing): "drafts behind a rejection were never checked; and pool",
        kept / drafted: "drafts behind a rejection were never checked, and count neither as kept nor as rejected; "
        "kept ÷ drafted is the acceptance rate, which falls with K",
        (kept + n) / (sum(checked) + n): "the fix or bonus is no draft, and is not kept",
        (kept + n) / (drafted + n): "the fix or bonus is no draft; and drafts behind a rejection were never checked",
        1 - kept / sum(checked): "that is the share that was rejected",
        kept / n: "divide by the drafts that were checked, not by the rounds",
        sum(k > 0 for k, _ in rounds) / n: "every checked draft counts, not only the first of each round",
        sum(k == d for k, d in rounds) / n: "that is how often a whole block was kept",
    }


def _why_al(rounds: Rounds) -> dict[float, str]:
    kept, drafted, n = sum(k for k, _ in rounds), sum(d for _, d in rounds), len(rounds)
    return {
        kept / n: "the fix or bonus is missing: every round commits one token more than it keeps",
        (drafted + n) / n: "rejected drafts are not committed",
        drafted / n: "that is drafts per round; committed tokens are asked for",
        float(kept + n): "divide by the number of rounds",
        (kept + sum(k < d for k, d in rounds)) / n: "where all were kept there is a bonus, which counts too",
        n / (kept + n): "that is rounds per token: turn it over",
    }


def _first(values: Sequence[float]) -> int:
    return values.index(max(values))


def _last(values: Sequence[float]) -> int:
    return len(values) - 1 - list(reversed(values)).index(max(values))
