"""warp equals transformers' own processors; drawing follows its weights; bad input is refused in a sentence."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.logits_process import TemperatureLogitsWarper

from speclib.distributions import Rng, Sampling, overlap, penalise, slice_at, warp

INF = float("inf")


def theirs(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """transformers' processors in the order in which generate() applies them."""
    steps = LogitsProcessorList()
    if temperature != 1.0:
        steps.append(TemperatureLogitsWarper(temperature))
    if top_k is not None:
        steps.append(TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1.0:
        steps.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        steps.append(MinPLogitsWarper(min_p))
    return steps(None, logits.clone()).softmax(-1)


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.05},
    {"top_p": 0.9},
    {"top_p": 1.0},
    {"min_p": 0.1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.95},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [3, 200, 5_000])
def test_equal_to_transformers(settings, vocab):
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    assert torch.allclose(warp(logits, **settings), theirs(logits, **settings), atol=1e-6)


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.45}, {"top_p": 0.3}, {"min_p": 1.0}], ids=str)
def test_ties_fall_as_in_transformers(settings):
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0]])
    assert torch.allclose(warp(logits, **settings), theirs(logits, **settings), atol=1e-6)


def test_where_many_tie_at_the_edge_the_kept_probabilities_are_those_of_transformers():
    # Logits of a bf16 model tie often; which of the tied ids stay is left to transformers' sort, which keeps no order.
    logits = torch.randn(4, 49_152, generator=torch.Generator().manual_seed(1)).mul(3).bfloat16().float()
    for top_p in (0.5, 0.9, 0.95):
        ours, other = warp(logits, top_p=top_p), theirs(logits, top_p=top_p)
        assert torch.allclose(ours.sort(-1).values, other.sort(-1).values, atol=1e-6)


def test_a_flat_distribution_widens_the_search_for_the_nucleus():
    logits = torch.linspace(0, 1e-3, 5_000)[None]  # 90 % of the mass needs 4,500 tokens, not 128
    p = warp(logits, top_p=0.9)
    assert abs(int((p > 0).sum()) - 4_500) <= 2
    assert torch.allclose(p, theirs(logits, top_p=0.9), atol=1e-6)


def test_top_p_keeps_the_token_that_crosses_the_line():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert torch.allclose(warp(p.log(), top_p=0.6), torch.tensor([0.625, 0.375, 0.0], dtype=torch.float64))


def test_a_top_p_too_small_for_fp32_keeps_the_likeliest_token():
    assert warp(torch.tensor([1.0, 3.0, 2.0]), top_p=5e-324).tolist() == [0, 1, 0]


def test_top_p_that_is_reached_exactly_keeps_no_token_more():
    p = torch.tensor([0.5, 0.25, 0.25])
    assert warp(p.log(), top_p=0.5).tolist() == [1, 0, 0]
    assert torch.equal(warp(p.log()[None], top_p=0.5), theirs(p.log()[None], top_p=0.5))


def test_a_block_is_warped_row_by_row():
    block = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    settings = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    for row, p in zip(block.reshape(-1, 50), warp(block, **settings).reshape(-1, 50), strict=True):
        assert torch.allclose(warp(row, **settings), p, atol=1e-7)


def test_temperature_zero_is_the_argmax_as_a_one_hot():
    assert warp(torch.tensor([0.0, 3.0, 3.0, -INF]), temperature=0).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("temperature", [1e-320, 1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e4, 1e38])
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_sums_to_one_at_every_scale(temperature, scale, settings):
    logits = torch.tensor([0.3, -INF, -1.0, 1.0, 0.999, -1.0]) * scale
    p = warp(logits, temperature=temperature, **settings)
    assert abs(float(p.sum()) - 1) < 1e-6 and float(p.min()) >= 0 and p[1] == 0


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("vocab", [49_152, 128_256, 256_000])
def test_sums_to_one_over_a_real_vocabulary(vocab, temperature):
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    assert float((warp(logits, temperature).double().sum(-1) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("given_dtype", "out"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_dtype(given_dtype, out):
    assert warp(torch.zeros(3, dtype=given_dtype)).dtype == out
    assert warp(torch.zeros(3, dtype=given_dtype), temperature=0).dtype == out


@pytest.mark.parametrize(
    ("logits", "settings", "names"),
    [
        ([0.0, math.nan], {}, "NaN"),
        ([-INF, -INF], {}, "−inf"),
        ([0.0, INF], {}, "inf"),
        ([], {}, "vocabulary"),
        ([0.0, 1.0], {"temperature": -0.1}, "temperature"),
        ([0.0, 1.0], {"temperature": INF}, "temperature"),
        ([0.0, 1.0], {"temperature": math.nan}, "temperature"),
        ([0.0, 1.0], {"top_k": 0}, "top_k"),
        ([0.0, 1.0], {"top_k": 1.5}, "top_k"),
        ([0.0, 1.0], {"top_k": 2.0}, "top_k"),
        ([0.0, 1.0], {"top_k": math.nan}, "top_k"),
        ([0.0, 1.0], {"top_k": True}, "top_k"),
        (1.0, {}, "vocabulary"),
        ([0.0, 1.0], {"top_p": 0.0}, "top_p"),
        ([0.0, 1.0], {"top_p": 1.1}, "top_p"),
        ([0.0, 1.0], {"top_p": math.nan}, "top_p"),
        ([0.0, 1.0], {"min_p": -0.1}, "min_p"),
        ([0.0, 1.0], {"min_p": 1.1}, "min_p"),
    ],
    ids=str,
)
def test_bad_input_is_refused_by_name(logits, settings, names):
    with pytest.raises(ValueError, match=names):
        warp(torch.tensor(logits), **settings)


def test_one_bad_row_spoils_the_block():
    with pytest.raises(ValueError, match="−inf"):
        warp(torch.tensor([[0.0, 1.0], [-INF, -INF]]))


def test_draws_follow_their_weights():
    weights = torch.tensor([4.0, 0.0, 1.0, 3.0, 2.0])  # not normalised, one impossible
    rng, n = Rng(seed=1), 20_000
    counts = np.bincount([rng.draw(weights) for _ in range(n)], minlength=5)
    assert counts[1] == 0
    possible = [0, 2, 3, 4]
    expected = weights.numpy()[possible] / 10 * n
    assert stats.chisquare(counts[possible], expected).pvalue > 1e-4
    # The test can fail: the same draws are far from weights that differ by a tenth.
    assert stats.chisquare(counts[possible], np.array([0.5, 0.1, 0.25, 0.15]) * n).pvalue < 1e-4


def test_kept_counts_leading_drafts_only():
    rng, n = Rng(seed=2), 20_000
    counts = np.bincount([rng.kept(torch.tensor([0.5, 0.0, 1.0])) for _ in range(n)], minlength=4)
    assert counts[2] == counts[3] == 0  # a draft of probability 0 is never kept, nor what stands behind it
    assert stats.binomtest(int(counts[1]), n, 0.5).pvalue > 1e-4
    assert all(rng.kept(torch.ones(4)) == 4 for _ in range(100))
    assert rng.kept(torch.ones(0)) == 0


def test_a_draft_of_probability_0_is_not_kept_even_when_u_is_0():
    class Lowest(Rng):
        def uniform(self, n):
            return torch.zeros(n, dtype=torch.float64)

    assert Lowest(0).kept(torch.tensor([0.0, 1.0])) == 0
    assert Lowest(0).draw(torch.tensor([0.0, 2.0])) == 1


def test_slices_lie_end_to_end_and_empty_ones_never_come_out():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])
    below = math.nextafter(1.0, 0.0)
    assert [slice_at(weights, u) for u in (0.0, 0.2499, 0.25, 0.9, below)] == [1, 1, 3, 3, 3]


def test_a_seed_gives_the_same_draws_and_another_seed_others():
    def draws(seed):
        rng = Rng(seed)
        return [rng.draw(torch.ones(100)) for _ in range(10)]

    assert draws(3) == draws(3) != draws(4)
    assert draws(None) != draws(None)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.integers(0, 1000))
def test_overlap_is_one_minus_the_total_variation(logits, seed):
    p = warp(torch.tensor(logits, dtype=torch.float64))
    q = warp(torch.randn(len(logits), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    alpha = float(overlap(p, q))
    assert alpha == pytest.approx(1 - 0.5 * float((p - q).abs().sum()), abs=1e-12)
    assert float(overlap(p, p)) == pytest.approx(1)


def test_overlap_refuses_unequal_widths():
    with pytest.raises(ValueError, match="same shape"):
        overlap(torch.ones(3) / 3, torch.ones(4) / 4)


# --- penalties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_the_repetition_penalty_equals_transformers(penalty):
    logits = torch.randn(40, generator=torch.Generator().manual_seed(0)) * 3
    history = [3, 7, 7, 12, 39]
    reference = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), logits[None].clone())[0]
    assert torch.allclose(penalise(logits, history, repetition=penalty), reference)


def test_frequency_and_presence_are_openais_over_generated_tokens():
    logits, history = torch.zeros(6), [5, 5, 1, 2, 2, 2]  # the first two are the prompt
    out = penalise(logits, history, frequency=0.5, presence=0.25, prompt_length=2)
    assert out.tolist() == [0.0, -0.75, -1.75, 0.0, 0.0, 0.0]
    assert torch.equal(logits, torch.zeros(6))  # the caller's logits are left alone


def test_banned_ids_become_impossible():
    assert penalise(torch.zeros(3), [], banned=[1]).tolist() == [0.0, -INF, 0.0]


def test_ids_that_a_narrow_draft_lacks_are_passed_over():
    out = penalise(torch.ones(3), [7, 2], repetition=2.0, frequency=1.0)
    assert out.tolist() == [1.0, 1.0, -0.5]


def test_each_row_of_a_block_knows_the_drafts_before_it():
    text, drafts, logits = [4, 1], [2, 2, 3], torch.ones(4, 6)
    sampling = Sampling(repetition=2.0, frequency=0.5, presence=0.1, banned=(0,), prompt_length=1)
    block = sampling.penalise(logits, text, drafts)
    settings = dict(repetition=2.0, frequency=0.5, presence=0.1, banned=(0,), prompt_length=1)
    for i, row in enumerate(block):
        assert torch.equal(row, penalise(torch.ones(6), text + drafts[:i], **settings))
    assert torch.equal(sampling.penalise(logits[:1], text, drafts)[0], block[-1])  # a draft's own step


@pytest.mark.parametrize(
    ("setting", "value"),
    [("repetition", 0.0), ("repetition", -1.0), ("repetition", math.nan), ("frequency", 2.1), ("presence", -2.5),
     ("frequency", math.nan), ("temperature", -1.0), ("top_k", 0), ("top_p", 2.0), ("min_p", 2.0)],
)  # fmt: skip
def test_settings_out_of_range_are_refused_before_anything_runs(setting, value):
    with pytest.raises(ValueError, match=setting):
        Sampling(**{setting: value})


def test_a_banned_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"banned id 9 is not in 0 … 2"):
        penalise(torch.zeros(3), [], banned=[9])
