"""The formulas equal a simulation of the loop and the lesson's numbers, also at their edges."""

import numpy as np
import pytest
import torch

from speclib.decode import decode
from speclib.distributions import Rng, Sampling, overlap
from speclib.drafters import ModelDrafter
from speclib.speedup import best_k, break_even_c, expected_tokens, speedup
from speclib.stopping import Stop
from speclib.toy import FixedLM


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("K", [0, 1, 4, 8])
def test_expected_tokens_equals_a_simulation(alpha, K):
    rounds = 20_000
    kept = (np.random.default_rng(K).random((rounds, K)) < alpha).cumprod(axis=1).sum(axis=1)
    error = max(kept.std() / np.sqrt(rounds), 1e-9)
    assert abs(expected_tokens(alpha, K) - (kept.mean() + 1)) < 4.5 * error


@pytest.mark.parametrize(("p", "q"), [([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), ([0.6, 0.4, 0.0], [0.5, 0.3, 0.2])])
@pytest.mark.parametrize("K", [1, 3, 6])
def test_expected_tokens_equals_the_loop_itself(p, q, K):
    """`decode` on a pair whose p and q never change, so that each draft is kept with α, whatever came before."""
    p, q = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    target, drafter, rng = FixedLM(p), ModelDrafter(FixedLM(q)), Rng(K)
    tokens = []
    for _ in range(12):
        target.rollback(0)
        found = decode(target, drafter, [0], k=K, sampling=Sampling(1.0), stop=Stop(120), rng=rng)
        # Whether a round is full depends on where it begins, never on what comes out of it.
        tokens += [len(r.tokens) for r in found if r.drafted == K]
    error = np.std(tokens) / np.sqrt(len(tokens))
    assert len(tokens) > 200 and abs(np.mean(tokens) - expected_tokens(float(overlap(p, q)), K)) < 4.5 * error
    assert error < 0.15


@pytest.mark.parametrize(
    ("alpha", "c", "K", "times"),
    [(0.7, 0.05, 6, 2.35), (0.7, 0.1, 4, 1.98), (0.7, 0.25, 2, 1.46), (0.7, 0.3, 2, 1.37), (0.7, 0.15, 3, 1.75),
     (0.5, 0.05, 3, 1.63)],
)  # fmt: skip
def test_the_lessons_numbers(alpha, c, K, times):
    assert best_k(alpha, c) == K
    assert speedup(alpha, K, c) == pytest.approx(times, abs=0.005)


def test_more_of_the_lessons_facts():
    assert speedup(0.9, best_k(0.9, 0.05), 0.05) > 4
    assert speedup(0.3, 4, 0.4) < 1  # low α and a dear draft lose
    assert best_k(0.2, 0.5) == 0 and speedup(0.2, 0, 0.5) == pytest.approx(1)


def test_edges():
    assert expected_tokens(1.0, 4) == 5 and expected_tokens(0.0, 4) == 1 and expected_tokens(0.5, 0) == 1
    assert expected_tokens(1 - 1e-12, 4) == pytest.approx(5)
    assert speedup(1.0, 4, 0.0) == 5 and speedup(0.0, 4, 0.0) == 1
    assert best_k(1.0, 0.0, k_max=9) == 9
    assert best_k(0.0, 0.0) == 0  # all K tie: the smallest


def test_arrays_broadcast():
    table = speedup(np.array([[0.5], [0.9]]), np.arange(4), 0.1)
    assert table.shape == (2, 4)
    assert table[1, 3] == speedup(0.9, 3, 0.1)
    assert isinstance(speedup(0.5, 2, 0.1), float)


def test_v_may_be_a_number_a_measured_curve_or_a_function():
    curve = [1.0, 1.04, 1.08, 1.2]
    assert speedup(0.7, 2, 0.1, curve) == pytest.approx(2.19 / (0.2 + 1.08))
    assert speedup(0.7, 2, 0.1, 1.08) == pytest.approx(speedup(0.7, 2, 0.1, curve))
    assert speedup(0.7, 2, 0.1, lambda k: 1 + 0.04 * k) == pytest.approx(speedup(0.7, 2, 0.1, curve))
    assert speedup(0.7, np.array([1, 3]), 0.1, curve) == pytest.approx([1.7 / 1.14, 2.533 / 1.5])
    assert best_k(0.99, 0.0, curve) == 3  # as far as was measured
    with pytest.raises(ValueError, match="measured for K up to 3, and K = 4"):
        speedup(0.7, 4, 0.1, curve)


def test_at_the_break_even_c_the_best_k_neither_wins_nor_loses():
    assert break_even_c(0.37) == pytest.approx(0.37)
    for v in (None, 1.1, [1.0, 1.05, 1.1, 1.15]):
        c = break_even_c(0.7, v, k_max=3)
        ks = np.arange(1, 4)
        assert speedup(0.7, ks, c, v).max() == pytest.approx(1)
    assert break_even_c(0.1, 1.5) < 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: expected_tokens(1.1, 2), "alpha"),
        (lambda: expected_tokens(-0.1, 2), "alpha"),
        (lambda: expected_tokens(float("nan"), 2), "alpha"),
        (lambda: expected_tokens(0.5, -1), "K must be"),
        (lambda: expected_tokens(0.5, 1.5), "K must be"),
        (lambda: speedup(0.5, 2, -0.1), "c must be"),
        (lambda: best_k(0.5, 0.1, k_max=0), "no K"),
        (lambda: best_k(0.5, 0.1, [1.0]), "no K"),
    ],
)
def test_bad_values_are_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
