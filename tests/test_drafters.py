"""Drafters hand over tokens with the very q they were drawn from; lookup finds what a plain scan finds."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_draft import tiny_draft
from tiny import tiny_llama

from speclib.context import Context
from speclib.decode import Stop, decode, spec_sample
from speclib.distributions import Rng, Sampling
from speclib.drafters import FallbackDrafter, LookupDrafter, ModelDrafter, lookup_draft
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
    drafter = ModelDrafter(tiny_llama(hidden=64))
    with pytest.warns(UserWarning, match="larger than its target.*swapped"):
        drafter.begin([1], Context(tiny_llama()))


# --- two in a row -------------------------------------------------------------------------------------------


class Noted(ModelDrafter):
    """A model drafter that notes what it is asked."""

    def __init__(self, draft):
        super().__init__(draft)
        self.asked = []

    def propose(self, text, k, sampling, rng):
        self.asked.append((list(text), k))
        return super().propose(text, k, sampling, rng)


def both(draft):
    second = Noted(draft)
    drafter = FallbackDrafter(LookupDrafter(max_ngram=2), second)
    return drafter, second


def test_the_second_is_asked_only_where_the_first_has_nothing():
    drafter, second = both(TableLM(9, seed=2))
    for text, found in (([1, 2, 3, 1, 2], [3, 1]), ([1, 2, 3, 4], [])):
        drafter.begin(text, TableLM(9))
        tokens, q = drafter.propose(text, 2, PLAIN, Rng(0))
        assert len(tokens) == 2 and (tokens == found and q is None if found else q.shape == (2, 9))
        assert second.asked == ([] if found else [(text, 2)])


@pytest.mark.parametrize("sampling", [PLAIN, Sampling(temperature=0)])
def test_the_second_catches_up_after_rounds_without_it(sampling):
    """Its cache falls behind while lookup answers; its guesses afterwards are those of one that never slept."""
    drafter, second = both(TableLM(6, seed=2))
    rounds, lags, text = [], [], [0, 1, 2]
    target = TableLM(6, seed=1)
    for r in decode(target, drafter, text, k=3, sampling=sampling, stop=Stop(60), rng=Rng(3)):
        text += r.tokens
        rounds.append(r)
        lags.append(len(text) - len(second.context.tokens))
        assert second.context.tokens == text[: len(second.context.tokens)]
    assert second.asked and len(second.asked) < len([r for r in rounds if r.drafted])
    assert max(lags) > 4  # it did fall behind
    late, k = second.asked[-1]
    fresh = ModelDrafter(TableLM(6, seed=2))
    fresh.begin(late, target)
    second.begin(late, target)
    again = second.propose(late, k, sampling, Rng(5)).tokens
    assert again == fresh.propose(late, k, sampling, Rng(5)).tokens


def test_an_equal_model_behind_lookup_is_kept_whenever_it_is_asked():
    drafter, second = both(TableLM(20, seed=1))
    text, asked = [0, 1, 2], 0
    for r in decode(TableLM(20, seed=1), drafter, text, k=3, sampling=PLAIN, stop=Stop(60), rng=Rng(3)):
        if len(second.asked) > asked:
            assert r.accepted == r.drafted  # a cache with a gap or a ghost would guess otherwise
        asked = len(second.asked)
    assert asked >= 5


def test_a_new_text_begins_for_both():
    drafter, second = both(TableLM(9, seed=2))
    for text in ([1, 2, 3, 1], [4, 5], [1, 2]):
        drafter.begin(text, TableLM(9))
        drafter.propose(text, 2, PLAIN, Rng(0))
        drafter.rollback(len(text))
    assert [text for text, _ in second.asked] == [[4, 5], [1, 2]]
    assert second.context.tokens == [1, 2]


def test_on_real_caches_the_text_is_that_of_plain_greedy():
    def text(drafter):
        rounds = list(decode(Context(tiny_llama()), drafter, [1, 2, 3], k=3, stop=Stop(80)))
        return [t for r in rounds for t in r.tokens], rounds

    drafter, second = both(Context(tiny_llama()))
    tokens, rounds = text(drafter)
    assert tokens == text(None)[0]
    assert 0 < len(second.asked) < sum(r.drafted > 0 for r in rounds)
    assert {0, 3} <= {r.accepted for r in rounds if r.drafted}


def test_an_rng_that_answers_only_two_questions_serves_a_lean_draft_too():
    class Two:
        def __init__(self):
            self.kept, self.draw = Rng(3).kept, Rng(4).draw

    for draft in (tiny_draft(), tiny_llama(seed=2)):
        tokens, _ = spec_sample(tiny_llama(), draft, [1, 2, 3], 8, 2, rng=Two())
        assert len(tokens) == 8
