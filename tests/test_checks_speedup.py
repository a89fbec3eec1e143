"""The checkers of notebook 05 accept right answers, and say what is wrong with every other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from answers import held_to

from speclib import speedup as formulas
from speclib.checks import speedup as checks


@pytest.fixture(autouse=True)
def exercises_as_found(monkeypatch):
    monkeypatch.delenv("SPECLIB_SOLUTIONS", raising=False)


def tokens(a, k):
    return sum(a**i for i in range(k + 1))


def closed(a, k):
    return k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a)


RIGHT_TOKENS = [
    checks.expected_tokens_answer,
    tokens,
    closed,
    lambda a, k: np.float64(closed(a, k)),
    lambda a, k: 1 + a * (tokens(a, k - 1) if k else 0),
    lambda a, k: 1 + sum(np.cumprod([a] * k)),
]
WRONG_TOKENS = {
    "without the fix or bonus": (lambda a, k: tokens(a, k) - 1, "the fix or the bonus"),
    "sum from 1": (lambda a, k: sum(a**i for i in range(1, k + 1)), "the fix or the bonus"),
    "K terms": (lambda a, k: sum(a**i for i in range(k)), "K drafts give K \\+ 1 terms|exponent is K \\+ 1"),
    "K + 1 forgotten": (lambda a, k: k if a == 1 else (1 - a**k) / (1 - a), "the last one, α\\^K, is missing"),
    "K + 2 terms": (lambda a, k: sum(a**i for i in range(k + 2)), "no draft K \\+ 1"),
    "each with α": (lambda a, k: 1 + a * k, "draft i counts with α\\^i|only looked at if all before"),
    "only the last": (lambda a, k: 1 + a**k, "not only the last"),
    "all kept": (lambda a, k: k + 1, "not every draft is kept"),
    "for ever": (lambda a, k: math.inf if a == 1 else 1 / (1 - a), "limit for K → ∞"),
    "per scored token": (lambda a, k: tokens(a, k) / (k + 1), "not per token"),
    "expected run, ending": (lambda a, k: sum((i + 1) * a**i for i in range(k + 1)), "each brings one token"),
    "α (K + 1)": (lambda a, k: a * (k + 1), "α\\^i, and the fix"),
    "0/0 at α = 1": (lambda a, k: (1 - a ** (k + 1)) / (1 - a), "α = 1.0 and K = 4.*ZeroDivisionError"),
    "NaN at α = 1": (lambda a, k: math.nan if a == 1 else closed(a, k), "α = 1.0 and K = 4"),
    "a list": (lambda a, k: [a**i for i in range(k + 1)], "one number"),
    "no return": (lambda a, k: None, "return"),
}


def times(a, k, c, v):
    return tokens(a, k) / (k * c + v)


RIGHT_SPEEDUP = [
    checks.speedup_answer,
    times,
    lambda a, k, c, v: closed(a, k) / (v + c * k),
    lambda a, k, c, v: formulas.speedup(a, k, c, v),
]
WRONG_SPEEDUP = {
    "v taken for 1": (lambda a, k, c, v: tokens(a, k) / (k * c + 1), "v, which is more than 1"),
    "without the pass": (lambda a, k, c, v: tokens(a, k) / (k * c) if k * c else 1.0, "own pass has to be paid"),
    "without the drafts": (lambda a, k, c, v: tokens(a, k) / v, "draft steps have to be paid"),
    "tokens only": (lambda a, k, c, v: tokens(a, k), "divide by what a round costs|have to be paid"),
    "one draft step": (lambda a, k, c, v: tokens(a, k) / (c + v), "there are K draft steps"),
    "K + 1 draft steps": (lambda a, k, c, v: tokens(a, k) / ((k + 1) * c + v), "take K steps"),
    "a pass for each draft": (
        lambda a, k, c, v: tokens(a, k) / (k * (c + v) or 1),
        "pass of the target checks all",
    ),
    "a pass for each token": (lambda a, k, c, v: tokens(a, k) / (k * c + (k + 1) * v), "pass is one, whatever K"),
    "c times v": (lambda a, k, c, v: tokens(a, k) / (1 + k * c * v), "added"),
    "without the bonus": (lambda a, k, c, v: (tokens(a, k) - 1) / (k * c + v), "fix or bonus counts"),
    "K + 1 forgotten": (lambda a, k, c, v: (tokens(a, k) - a**k) / (k * c + v), "α\\^K, is missing"),
    "each with α": (lambda a, k, c, v: (1 + a * k) / (k * c + v), "only if all before it were"),
    "time": (lambda a, k, c, v: 1 / times(a, k, c, v), "reciprocal"),
    "gain": (lambda a, k, c, v: times(a, k, c, v) - 1, "plain decoding has 1"),
    "divided by K + 1": (lambda a, k, c, v: times(a, k, c, v) / (k + 1), "K·c \\+ v"),
    "never below 1": (lambda a, k, c, v: max(1.0, times(a, k, c, v)), "but yours is 1:"),
    "a crash": (lambda a, k, c, v: tokens(a, k) / (k * c + v[k]), "raised TypeError"),
    "no return": (lambda a, k, c, v: None, "return"),
}


def curve(a, c, v):
    return [times(a, k, c, v[k]) for k in range(len(v))]


def argmax(values):
    return values.index(max(values))


def last_argmax(values):
    return max(range(len(values)), key=lambda k: (values[k], k))


RIGHT_BEST = [
    checks.best_k_answer,
    lambda a, c, v: argmax(curve(a, c, v)),
    lambda a, c, v: max(range(len(v)), key=lambda k: times(a, k, c, v[k])),
    lambda a, c, v: np.argmax(curve(a, c, v)),
    lambda a, c, v: float(np.argmax(curve(a, c, v))),
]
WRONG_BEST = {
    "the speedup": (lambda a, c, v: max(curve(a, c, v)), "not the speedup there"),
    "argmin": (lambda a, c, v: curve(a, c, v).index(min(curve(a, c, v))), "smallest|plain decoding"),
    "the last of those that tie": (lambda a, c, v: last_argmax(curve(a, c, v)), "tie"),
    "from K = 1": (lambda a, c, v: argmax(curve(a, c, v)[1:]) + 1, "K = 0 is a choice"),
    "index of a list from 1": (lambda a, c, v: argmax(curve(a, c, v)[1:]), "one too small"),
    "not the last K": (lambda a, c, v: argmax(curve(a, c, v)[:-1]), "up to 16|up to 8"),
    "v taken for 1": (lambda a, c, v: argmax([times(a, k, c, 1.0) for k in range(len(v))]), "not flat"),
    "v of one less": (
        lambda a, c, v: argmax([times(a, k, c, v[max(k - 1, 0)]) for k in range(len(v))]),
        "with K drafts is v\\[K\\]",
    ),
    "without the drafts": (lambda a, c, v: argmax([tokens(a, k) / v[k] for k in range(len(v))]), "to be paid|K from 0"),
    "without the pass": (
        lambda a, c, v: argmax([0.0] + [tokens(a, k) / (k * c + 1e-9) for k in range(1, len(v))]),
        "α = 0.7, c = 0.05",
    ),
    "most tokens": (lambda a, c, v: argmax([tokens(a, k) for k in range(len(v))]), "most tokens per round"),
    "tokens of the pass": (lambda a, c, v: argmax(curve(a, c, v)) + 1, "one too large"),
    "greedy from the left": (
        lambda a, c, v: (
            next((k for k in range(len(v) - 1) if times(a, k + 1, c, v[k + 1]) <= times(a, k, c, v[k])), len(v) - 1)
            if a < 0.8
            else 8
        ),
        "α = 0.9",
    ),
    "always 4": (lambda a, c, v: 4, "α = 0.7, c = 0.05"),
    "no return": (lambda a, c, v: None, "return"),
}


def both(alpha=None, length=None):
    """alpha_hat with one of its two numbers made in another way."""

    def fn(rounds):
        a, al = checks.alpha_hat_answer(rounds)
        return (alpha(rounds) if alpha else a), (length(rounds) if length else al)

    return fn


def kept(rounds):
    return sum(k for k, _ in rounds)


def drafted(rounds):
    return sum(d for _, d in rounds)


def by_walking(rounds):
    checked = good = committed = 0
    for k, d in rounds:
        for i in range(d):
            checked += 1
            if i >= k:
                break
            good += 1
        committed += k + 1
    return good / checked, committed / len(rounds)


RIGHT_TRACE = [checks.alpha_hat_answer, by_walking, lambda rounds: list(by_walking(rounds))]
WRONG_TRACE = {
    "α from the acceptance rate": (both(alpha=lambda r: kept(r) / drafted(r)), "α̂.*acceptance rate"),
    "the bonus is a rejection": (both(alpha=lambda r: kept(r) / sum(k + 1 for k, _ in r)), "the bonus is no draft"),
    "a mean over rounds": (
        both(alpha=lambda r: np.mean([k / min(k + 1, d) for k, d in r if d])),
        "pool",
    ),
    "a mean of acceptance rates": (both(alpha=lambda r: np.mean([k / d for k, d in r if d])), "never checked"),
    "with the fix": (
        both(alpha=lambda r: (kept(r) + len(r)) / (sum(min(k + 1, d) for k, d in r) + len(r))),
        "fix or bonus is no draft",
    ),
    "per round": (both(alpha=lambda r: kept(r) / len(r)), "not by the rounds"),
    "rejected": (both(alpha=lambda r: 1 - by_walking(r)[0]), "was rejected"),
    "first drafts only": (both(alpha=lambda r: sum(k > 0 for k, _ in r) / len(r)), "not only the first"),
    "whole blocks": (both(alpha=lambda r: sum(k == d for k, d in r) / len(r)), "whole block"),
    "AL without the fix or bonus": (both(length=lambda r: kept(r) / len(r)), "AL.*fix or bonus is missing"),
    "AL without the bonus": (
        both(length=lambda r: (kept(r) + sum(k < d for k, d in r)) / len(r)),
        "AL.*there is a bonus",
    ),
    "AL of what was drafted": (both(length=lambda r: (drafted(r) + len(r)) / len(r)), "not committed"),
    "drafts per round": (both(length=lambda r: drafted(r) / len(r)), "drafts per round"),
    "all tokens": (both(length=lambda r: kept(r) + len(r)), "divide by the number of rounds"),
    "rounds per token": (both(length=lambda r: len(r) / (kept(r) + len(r))), "turn it over"),
    "AL from the formula": (
        both(length=lambda r: tokens(by_walking(r)[0], max(d for _, d in r))),
        "AL",
    ),
    "turned round": (lambda r: by_walking(r)[::-1], "α̂"),
    "one number": (lambda r: by_walking(r)[0], "two numbers"),
    "three numbers": (lambda r: (*by_walking(r), 1.0), "not 3"),
    "no return": (lambda r: None, "return"),
}

EXERCISES = {
    "expected_tokens": (checks.expected_tokens, RIGHT_TOKENS, WRONG_TOKENS),
    "speedup": (checks.speedup, RIGHT_SPEEDUP, WRONG_SPEEDUP),
    "best_k": (checks.best_k, RIGHT_BEST, WRONG_BEST),
    "alpha_hat": (checks.alpha_hat, RIGHT_TRACE, WRONG_TRACE),
}


(
    test_right_answers_pass,
    test_a_wrong_answer_is_rejected_with_a_sentence,
    test_an_exercise_that_is_not_done_is_handed_over,
) = held_to(EXERCISES)


def test_the_answers_are_the_packages_own():
    assert checks.expected_tokens_answer(0.7, 4) == formulas.expected_tokens(0.7, 4) == pytest.approx(tokens(0.7, 4))
    assert checks.speedup_answer(0.7, 4, 0.1) == pytest.approx(1.98, abs=0.005)
    assert checks.best_k_answer(0.7, 0.05, [1.0] * 17) == 6
    assert checks.alpha_hat_answer([(2, 4), (4, 4), (0, 4)]) == (6 / 8, 3.0)
