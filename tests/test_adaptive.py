"""What a schedule would have done is what the loop does, and no schedule beats the oracle."""

from __future__ import annotations

import itertools
import math

import pytest

from speclib.adaptive import Heuristic, agreement, oracle, replay, run_lengths
from speclib.checks.greedy import Near
from speclib.context import Context
from speclib.decode import Round, decode
from speclib.distributions import Rng
from speclib.drafters import ModelDrafter
from speclib.speedup import speedup
from speclib.stopping import Stop
from speclib.toy import TableLM

PROMPT = [0, 2, 5]
MIXED = [True, True, False, True, False, False, True, True, True, False, True, True]
V = [1.0, 1.05, 1.1, 1.2, 1.3, 1.35, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1]


def table():
    return TableLM(6, seed=3, sharpness=2)


def draft():
    """A draft that agrees with the table on some of the texts."""
    return Near(table(), 12, 0.7)


def seen(drafted, accepted):
    return Round([0] * (accepted + 1), drafted, accepted, None, "", 0.0, 0.0)


def facts(stats):
    return [(r.drafted, r.accepted, len(r.tokens)) for r in stats.rounds]


def test_run_lengths():
    assert run_lengths(MIXED) == [2, 1, 0, 1, 0, 0, 3, 2, 1, 0, 2, 1]
    assert run_lengths([]) == []


def test_agreement_is_that_of_the_draft_on_the_true_text():
    tokens, agrees = agreement(table(), draft(), PROMPT, 40)
    assert tokens == [t for r in decode(table(), None, PROMPT, stop=Stop(40)) for t in r.tokens]
    other = draft()
    rows = other.feed(PROMPT + tokens[:-1], rows=len(tokens))
    assert agrees == [int(row.argmax()) == token for row, token in zip(rows, tokens, strict=True)]
    assert 5 < sum(agrees) < 35
    assert agreement(table(), table(), PROMPT, 9)[1] == [True] * 9


def test_agreement_ends_with_the_text():
    tokens, _ = agreement(table(), draft(), PROMPT, 40)
    cut, agrees = agreement(table(), draft(), PROMPT, 40, eos=tokens[4])
    assert cut == tokens[: tokens.index(tokens[4]) + 1] and len(agrees) == len(cut)


SCHEDULES = {"0": 0, "1": 1, "3": 3, "8": 8, "from 2": Heuristic(2), "from 5": Heuristic(5, most=6)}


@pytest.mark.parametrize("k", SCHEDULES.values(), ids=SCHEDULES)
def test_a_replay_makes_the_rounds_that_the_loop_makes(k):
    """Also with a schedule, whose K follows from what was kept; and again with the same schedule."""
    _, agrees = agreement(table(), draft(), PROMPT, 40)
    for _ in range(2):
        live = list(decode(table(), ModelDrafter(draft()), PROMPT, k=k, stop=Stop(40)))
        replayed = replay(agrees, k, 0.1)
        assert facts(replayed) == [(r.drafted, r.accepted, len(r.tokens)) for r in live]
        assert replayed.rounds[-1].finish_reason == "length"
        assert k == 0 or {0, 1} <= {min(r.accepted, 1) for r in live}


def test_a_replay_of_a_transformers_model_makes_the_rounds_of_the_loop():
    from tiny import tiny_llama

    target, small = tiny_llama(0), tiny_llama(0, hidden=32, layers=1)
    _, agrees = agreement(target, small, PROMPT, 20)
    live = list(decode(Context(target), ModelDrafter(small), PROMPT, k=Heuristic(3), stop=Stop(20)))
    assert facts(replay(agrees, Heuristic(3), 0.1)) == [(r.drafted, r.accepted, len(r.tokens)) for r in live]


def test_a_replay_costs_what_the_formula_says():
    stats = replay(MIXED, 3, 0.2, V)
    assert facts(stats) == [(3, 2, 3), (3, 1, 2), (3, 0, 1), (3, 3, 4), (1, 1, 2)]
    assert stats.seconds == pytest.approx(4 * (3 * 0.2 + 1.2) + 0.2 + 1.05)
    assert stats.tokens == list(range(12))
    assert replay(MIXED, 0, 0.2).seconds == pytest.approx(12)


def test_where_acceptance_is_independent_a_replay_agrees_with_the_formula():
    agrees = (Rng(1).uniform(40_000) < 0.7).tolist()
    for k, c in ((4, 0.1), (2, 0.25)):
        stats = replay(agrees, k, c)
        assert len(stats.tokens) / stats.seconds == pytest.approx(speedup(0.7, k, c), rel=0.02)
        assert stats.alpha_hat == pytest.approx(0.7, abs=0.01)


def test_the_heuristic_goes_up_by_two_and_down_by_one():
    policy = Heuristic(5, most=8)
    rounds = [None, (5, 5), (7, 7), (8, 3), (7, 7), None, (5, 0), (4, 0), (3, 0), (2, 0), (1, 0), (1, 1), (0, 0)]
    asked = [policy(r and seen(*r)) for r in rounds]
    assert asked == [5, 7, 8, 7, 8, 5, 4, 3, 2, 1, 1, 3, 3]
    assert Heuristic()(None) == 5


def cheapest(agrees, c, v, most):
    """By trying every K at every place."""
    if not agrees:
        return 0.0
    lengths = run_lengths(agrees)
    return min(
        k * c + (v[k] if v else 1) + cheapest(agrees[min(k, lengths[0]) + 1 :], c, v, most)
        for k in range(min(most, len(agrees) - 1) + 1)
    )


@pytest.mark.parametrize("c, v", [(0.05, None), (0.3, None), (0.1, V), (1.5, None)])
def test_the_oracle_is_the_cheapest_of_all_ways(c, v):
    for agrees in itertools.product([True, False], repeat=6):
        assert oracle(agrees, c, v, most=3).seconds == pytest.approx(cheapest(agrees, c, v, 3))


def test_no_schedule_beats_the_oracle():
    agrees = (Rng(2).uniform(300) < 0.6).tolist()
    for c, v in ((0.02, None), (0.2, V), (0.9, None)):
        bound = oracle(agrees, c, v, most=8).seconds
        for k in [*range(9), Heuristic(4, most=8)]:
            assert bound <= replay(agrees, k, c, v).seconds + 1e-9
    best = oracle(agrees, 0.02, most=8)
    assert all(r.drafted == r.accepted for r in best.rounds)  # a draft that costs something and is rejected is left out
    assert all(r.drafted == 0 for r in oracle(agrees, 1.1).rounds)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: replay([], 2, 0.1), "empty"),
        (lambda: replay(MIXED, -1, 0.1), "k must be"),
        (lambda: replay(MIXED, 4, 0.1, [1.0, 1.1]), "measured for K up to 1"),
        (lambda: replay(MIXED, 4, -0.1), "c must be"),
        (lambda: Heuristic(0), "start must be"),
        (lambda: Heuristic(9, most=8), "start must be"),
    ],
)
def test_bad_values_are_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_text_of_one_token():
    stats = oracle([True], 0.1)
    assert facts(stats) == [(0, 0, 1)] and not math.isnan(stats.mean_accepted_length)
