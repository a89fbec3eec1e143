"""Drafters hand over tokens with the very q they were drawn from; lookup finds what a plain scan finds."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_llama

from speclib.distributions import Rng, Sampling
from speclib.drafters import LookupDrafter, ModelDrafter, lookup_draft
from speclib.toy import TableLM

PLAIN = Sampling()


@pytest.mark.parametrize(
    ("seq", "K", "max_ngram", "proposed"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 4, 3, [9, 1, 2, 3]),
        ([1, 2, 3, 9, 1, 2, 3], 2, 3, [9, 1]),
        ([5, 2, 3, 9, 1, 2, 3], 3, 3, [9, 1, 2]),  # no trigram, so the bigram
        ([7, 1, 8, 1, 9, 1], 2, 3, [9, 1]),  # the most recent, not the leftmost
        ([1, 2, 3, 4, 1, 2], 5, 2, [3, 4, 1, 2]),  # the tail is shorter than K and is taken all the same
        ([4, 4, 4], 3, 3, [4]),  # an occurrence may overlap the suffix
        ([1, 2, 3], 3, 3, []),  # a miss; the suffix is no occurrence of itself
        ([1], 3, 3, []),
        ([], 3, 3, []),
        ([1, 1], 3, 5, [1]),  # a text shorter than the n-gram
        ([1, 2, 1, 2], 0, 3, []),
        ([0, 5, 0], 1, 3, [5]),  # id 0 is a token
    ],
)
def test_lookup_proposes(seq, K, max_ngram, proposed):
    assert lookup_draft(seq, K, max_ngram) == proposed


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=5),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_the_index_finds_what_the_scan_finds(prompt, blocks, max_ngram, K):
    drafter, text = LookupDrafter(max_ngram), list(prompt)
    drafter.begin(text, TableLM(4))
    for block in [[], *blocks]:
        text += block
        assert drafter.propose(text, K, PLAIN, Rng(0)).tokens == lookup_draft(text, K, max_ngram)
        drafter.rollback(len(text))


def test_a_new_text_starts_with_an_empty_index():
    drafter = LookupDrafter()
    for text, proposed in (([1, 2, 3, 1], [2]), ([9, 1], [])):
        drafter.begin(text, TableLM(10))
        assert drafter.propose(text, 1, PLAIN, Rng(0)).tokens == proposed


def test_a_long_context_costs_no_more_per_token():
    def seconds_per_token(length):
        text = [(i * 7919) % 5_003 for i in range(length)]
        drafter = LookupDrafter()
        drafter.begin(text, TableLM(5_003))
        drafter.propose(text, 4, PLAIN, Rng(0))
        best = float("inf")
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(20):
                text.append(len(text) % 11)
                drafter.propose(text, 4, PLAIN, Rng(0))
            best = min(best, time.perf_counter() - started)
        return best / 20

    # A scan of 32,000 tokens would be hundreds of times dearer than one of 100.
    assert seconds_per_token(32_000) < 20 * seconds_per_token(100)


@pytest.mark.parametrize(("K", "n", "says"), [(-1, 3, "K must be"), (2, 0, "max_ngram must be")])
def test_bad_settings_are_refused(K, n, says):
    with pytest.raises(ValueError, match=says):
        lookup_draft([1, 2], K, n)
    if n < 1:
        with pytest.raises(ValueError, match=says):
            LookupDrafter(n)


# --- a model as drafter -------------------------------------------------------------------------------------


def proposal(draft, sampling, k=3, text=(1, 2), vocab=5, **more):
    drafter = ModelDrafter(draft, **more)
    drafter.begin(list(text), TableLM(vocab))
    return drafter, drafter.propose(list(text), k, sampling, Rng(0))


def test_q_is_the_warped_distribution_that_the_token_was_drawn_from():
    sampling = Sampling(temperature=0.7, top_k=3, repetition=1.5)
    _, (tokens, q) = proposal(TableLM(5, seed=2), sampling)
    text = [1, 2]
    for d, row in zip(tokens, q, strict=True):
        logits = TableLM(5, seed=2).feed(text)[-1:]
        assert torch.allclose(row, sampling.warp(sampling.penalise(logits, text, []))[0])
        assert row[d] > 0
        text.append(d)


@pytest.mark.parametrize(("sampling", "greedy"), [(Sampling(temperature=0), False), (PLAIN, True)])
def test_a_greedy_drafter_says_that_its_drafts_were_certain(sampling, greedy):
    _, (tokens, q) = proposal(TableLM(5, seed=2), sampling, greedy=greedy)
    text = [1, 2]
    for d in tokens:
        assert d == int(TableLM(5, seed=2).feed(text)[-1].argmax())
        text.append(d)
    assert q is None


def test_the_last_draft_is_not_fed_and_what_is_missing_comes_first():
    drafter, (tokens, _) = proposal(TableLM(5, seed=2), PLAIN)
    assert drafter.context.tokens == [1, 2, *tokens[:-1]]
    drafter.rollback(2 + 3)  # all kept: one token short
    text = [1, 2, *tokens, 4]
    drafter.propose(text, 1, PLAIN, Rng(0))
    assert drafter.context.tokens == text


def test_a_wider_draft_never_draws_what_the_target_lacks():
    draft = TableLM(50, seed=2)
    drafter, _ = proposal(draft, PLAIN, vocab=3, text=(1, 2))
    for seed in range(100):
        drafter.begin([1, 2], TableLM(3))
        tokens, q = drafter.propose([1, 2], 3, PLAIN, Rng(seed))
        assert max(tokens) < 3 and q.shape == (3, 3)
        assert torch.allclose(q.sum(-1), torch.ones(3, dtype=torch.float64))


def test_a_draft_with_no_token_that_the_target_has_proposes_none():
    class Elsewhere(TableLM):
        def logits_after(self, text):
            return torch.tensor([float("-inf")] * 3 + [0.0] * 2, dtype=torch.float64)

    for sampling in (PLAIN, Sampling(temperature=0)):
        _, (tokens, q) = proposal(Elsewhere(5), sampling, vocab=3)
        assert tokens == [] and q is None


def test_a_narrower_draft_reads_a_stand_in_and_q_is_zero_where_it_has_no_row():
    drafter, (tokens, q) = proposal(TableLM(3, seed=2), PLAIN, vocab=5, text=(4, 1, 3))
    assert drafter.context.tokens[:3] == [0, 1, 0]
    assert q.shape == (3, 5) and bool((q[:, 3:] == 0).all()) and max(tokens) < 3


def test_near_the_end_of_its_positions_a_draft_drafts_fewer():
    draft = tiny_llama(positions=8)
    for length, drafted in ((5, 4), (7, 2), (8, 1), (9, 0), (12, 0)):
        drafter = ModelDrafter(draft)
        drafter.begin([1] * length, TableLM(64))
        assert len(drafter.propose([1] * length, 4, PLAIN, Rng(0)).tokens) == drafted


def test_a_cache_that_covers_another_text_is_noticed():
    drafter, _ = proposal(TableLM(5, seed=2), PLAIN)
    with pytest.raises(RuntimeError, match="a rollback is missing"):
        drafter.propose([1, 3, 3, 3, 3], 1, PLAIN, Rng(0))


def test_a_draft_larger_than_its_target_is_warned_of():
    from speclib.context import Context

    drafter = ModelDrafter(tiny_llama(hidden=64))
    with pytest.warns(UserWarning, match="larger than its target.*swapped"):
        drafter.begin([1], Context(tiny_llama()))
