"""The loop: identity with plain greedy, coverage of the caches, ends, counts, and what it refuses."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_llama

from speclib.context import Context
from speclib.decode import GREEDY, Round, Stats, decode, spec_greedy, spec_sample
from speclib.distributions import Rng, Sampling
from speclib.drafters import LookupDrafter, ModelDrafter, Proposal
from speclib.stopping import Stop
from speclib.toy import TableLM

PLAIN = Sampling()


def plain_greedy(model, prompt, max_new):
    """Greedy decoding with no cache and no loop of ours: the argmax after the whole text, again and again."""
    text = list(prompt)
    for _ in range(max_new):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(prompt) :]


def tokens_of(rounds):
    return [t for r in rounds for t in r.tokens]


class Scheduled:
    """Drafts that are right, wrong, or missing as a script says: rounds with 0, some and all kept for certain."""

    def __init__(self, answer, script):
        self.answer, self.script = answer, itertools.cycle(script)

    def begin(self, text, target):
        self.start = len(text)

    def propose(self, text, k, sampling, rng):
        right = next(self.script)
        ahead = self.answer[len(text) - self.start :][:k]
        return Proposal([t if i < right else (t + 1) % 64 for i, t in enumerate(ahead)])

    def rollback(self, length):
        pass


# --- identity -----------------------------------------------------------------------------------------------

DRAFTERS = {
    "the target itself": lambda target, answer: ModelDrafter(target),
    "another model": lambda target, answer: ModelDrafter(tiny_llama(seed=99)),
    "lookup": lambda target, answer: LookupDrafter(),
    "a script of right and wrong drafts": lambda target, answer: Scheduled(answer, [0, 1, 9, 2]),
    "none": lambda target, answer: None,
}


def test_greedy_output_is_plain_greedys_token_for_token():
    """Seeds × prompts × drafters × K: 360 combinations, and what happened in their rounds is counted."""
    outcomes = dict.fromkeys(("none kept", "some kept", "all kept", "no drafts"), 0)
    combinations = 0
    for seed, prompt in itertools.product(range(4), ([5], [7, 7, 7], [3, 1, 4, 1, 5, 9, 2, 6])):
        target = tiny_llama(seed=seed)
        answer = plain_greedy(target, prompt, 14)
        for (name, make), k in itertools.product(DRAFTERS.items(), (0, 1, 2, 3, 4, 7)):
            rounds = list(decode(Context(target), make(target, answer), prompt, k=k, stop=Stop(14)))
            assert tokens_of(rounds) == answer, (seed, prompt, name, k)
            combinations += 1
            for r in rounds:
                kind = "no" if not r.drafted else {0: "none", r.drafted: "all"}.get(r.accepted, "some")
                outcomes[kind + (" drafts" if kind == "no" else " kept")] += 1
    assert combinations >= 300 and min(outcomes.values()) >= 50, outcomes


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_spec_greedy_and_spec_sample_take_models_and_give_tokens_and_stats(K):
    target, draft = tiny_llama(seed=1), tiny_llama(seed=2)
    tokens, stats = spec_greedy(target, draft, [5, 6], 20, K)
    assert tokens == plain_greedy(target, [5, 6], 20) == stats.tokens
    assert sum(len(r.tokens) for r in stats.rounds) == 20
    tokens, stats = spec_sample(target, draft, [5, 6], 20, K, rng=Rng(0))
    assert len(tokens) == 20 and tokens == spec_sample(target, draft, [5, 6], 20, K, rng=Rng(0))[0]
    assert tokens != spec_sample(target, draft, [5, 6], 20, K, rng=Rng(1))[0]


def test_sampling_with_draft_equal_to_target_keeps_everything_also_on_a_schedule():
    ks = itertools.cycle([3, 0, 3, 0])
    target, draft = Context(tiny_llama()), ModelDrafter(tiny_llama())
    rounds = list(decode(target, draft, [1, 2], k=lambda last: next(ks), stop=Stop(200)))
    assert all(r.accepted == r.drafted for r in rounds)
    assert {r.drafted for r in rounds} >= {0, 3}


# --- coverage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ks", [[1], [2], [5], [3, 0, 3, 0]], ids=str)
def test_after_every_round_the_caches_cover_the_text_and_nothing_else(ks, sampling):
    schedule, prompt = itertools.cycle(ks), [1, 2, 3]
    target, draft = TableLM(6, seed=1), TableLM(6, seed=2)
    drafter, text = ModelDrafter(draft), list(prompt)
    for r in decode(
        target, drafter, prompt, k=lambda last: next(schedule), sampling=sampling, stop=Stop(60), rng=Rng(3)
    ):
        text += r.tokens
        assert target.tokens == text[:-1]
        assert draft.tokens == text[: len(draft.tokens)] and len(draft.tokens) < len(text)
        if r.drafted and r.accepted == r.drafted and r.finish_reason is None:
            assert len(draft.tokens) == len(text) - 2  # one short: its own last draft is fed next time


def test_a_context_is_taken_over_from_the_generation_before():
    """A chat's next turn: what the caches already cover of the new prompt is not computed again."""

    class Counting(TableLM):
        fed = 0

        def feed(self, ids, rows=None):
            self.fed += len(ids)
            return super().feed(ids, rows)

    target, drafter = Counting(6, seed=1), ModelDrafter(TableLM(6, seed=2))
    first = tokens_of(decode(target, drafter, [1] * 50, k=3, stop=Stop(10)))
    for prompt in ([1] * 50 + first + [2, 3], [1] * 50, [1] * 50 + first, [4], [1] * 20):
        target.fed = 0
        again = tokens_of(decode(target, drafter, prompt, k=3, stop=Stop(10)))
        assert again == tokens_of(decode(TableLM(6, seed=1), None, prompt, stop=Stop(10)))
        assert target.fed < 60


def test_an_abandoned_generation_leaves_nothing_behind():
    target, drafter = TableLM(6, seed=1), ModelDrafter(TableLM(6, seed=2))
    wanted = tokens_of(decode(TableLM(6, seed=1), None, [1, 2], stop=Stop(9)))
    for rounds_taken in range(3):
        for _ in zip(range(rounds_taken), decode(target, drafter, [5, 5, 5], k=3, stop=Stop(9)), strict=False):
            pass
        assert tokens_of(decode(target, drafter, [1, 2], k=3, stop=Stop(9))) == wanted


# --- ends and counts ----------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_any_table_any_schedule_any_end(data):
    vocab = data.draw(st.integers(2, 6), "vocab")
    prompt = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6), "prompt")
    ks = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4), "K")
    max_new = data.draw(st.integers(0, max(ks) + 2), "max_new")
    eos = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2), "eos")
    sampling = data.draw(st.sampled_from([GREEDY, PLAIN, Sampling(0.5, top_k=2), Sampling(frequency=1.0)]), "sampling")
    zeros = data.draw(st.sampled_from([0.0, 0.5]), "zeros")
    target = TableLM(vocab, seed=data.draw(st.integers(0, 9), "seed"), zeros=zeros)
    draft = TableLM(data.draw(st.integers(2, 8), "draft's vocab"), seed=77, zeros=zeros)
    drafter = data.draw(st.sampled_from([ModelDrafter(draft), LookupDrafter(2), None]), "drafter")
    schedule = itertools.cycle(ks)
    rounds = list(
        decode(
            target,
            drafter,
            prompt,
            k=lambda last: next(schedule),
            sampling=sampling,
            stop=Stop(max_new, eos=eos),
            rng=Rng(1),
        )
    )
    new = tokens_of(rounds)
    assert target.tokens == (prompt + new)[:-1] or max_new == 0
    assert [r.finish_reason for r in rounds[:-1]] == [None] * (len(rounds) - 1)
    assert all(1 <= len(r.tokens) <= r.drafted + 1 and 0 <= r.accepted <= r.drafted for r in rounds)
    ended_early = bool(new) and new[-1] in eos
    assert not any(t in eos for t in new[:-1])
    assert len(new) == max_new or (ended_early and len(new) < max_new)
    assert max_new == 0 or rounds[-1].finish_reason == ("eos" if ended_early else "length")
    if sampling is GREEDY:
        assert new == tokens_of(decode(TableLM(vocab, seed=target._seed, zeros=zeros), None, prompt,
                                       stop=Stop(max_new, eos=eos)))  # fmt: skip


class Fixed:
    """Always proposes the same tokens, as certain."""

    def __init__(self, tokens):
        self.tokens = tokens

    def begin(self, text, target):
        pass

    def propose(self, text, k, sampling, rng):
        return Proposal(self.tokens[:k])

    def rollback(self, length):
        pass


class Always(TableLM):
    """Greedy text: 1, 2, 3, … one after the other."""

    def logits_after(self, text):
        row = torch.zeros(self.vocab_size, dtype=torch.float64)
        row[(text[-1] + 1) % self.vocab_size] = 9.0
        return row


@pytest.mark.parametrize(
    ("drafts", "eos", "max_new", "tokens", "drafted", "accepted", "why"),
    [
        ([1, 2, 3, 4], (), 9, [1, 2, 3, 4, 5], 4, 4, None),
        ([1, 2, 9, 9], (), 9, [1, 2, 3], 4, 2, None),
        ([1, 2, 3, 4], (2,), 9, [1, 2], 2, 2, "eos"),  # what stands behind the EOS was never text
        ([1, 2, 9, 9], (3,), 9, [1, 2, 3], 4, 2, "eos"),  # the fix is the EOS: the rejection counts
        ([1, 2, 3, 4], (5,), 9, [1, 2, 3, 4, 5], 4, 4, "eos"),  # the bonus is
        ([1, 2, 3, 4], (4,), 9, [1, 2, 3, 4], 4, 4, "eos"),  # the last draft is: no bonus behind it
        ([1, 2, 3, 4], (), 3, [1, 2, 3], 2, 2, "length"),  # two drafts and the bonus fill the budget
        ([1, 2, 3, 4], (), 1, [1], 0, 0, "length"),
    ],
)
def test_counts_hold_committed_tokens_only(drafts, eos, max_new, tokens, drafted, accepted, why):
    stop = Stop(max_new, eos=eos)
    first = next(decode(Always(20), Fixed(drafts), [0], k=4, stop=stop))
    assert (first.tokens, first.drafted, first.accepted, first.finish_reason) == (tokens, drafted, accepted, why)


def test_no_tokens_asked_for_is_no_round():
    assert list(decode(TableLM(4), None, [1], stop=Stop(0))) == []


def test_the_figures_follow_from_the_rounds():
    def made(tokens, drafted, accepted):
        return Round(tokens, drafted, accepted, None, "", 0.25, 0.75)

    stats = Stats([made([1, 2, 3], 4, 2), made([4, 5, 6, 7, 8], 4, 4), made([9], 4, 0), made([1], 0, 0)])
    assert stats.alpha_hat == 6 / (3 + 4 + 1)  # kept ÷ checked: behind a rejection nothing is checked
    assert stats.acceptance_rate == 6 / 12
    assert stats.mean_accepted_length == 10 / 4
    assert stats.seconds == 4.0
    nothing = Stats([made([1], 0, 0)])
    assert nothing.mean_accepted_length == 1 and nothing.alpha_hat != nothing.alpha_hat


def test_an_adaptive_k_is_asked_with_the_round_before():
    asked = []

    def k(last):
        asked.append(last)
        return 1 if last is None else last.accepted + 1

    rounds = list(decode(Always(50), Scheduled([*range(1, 30)], [9]), [0], k=k, stop=Stop(12)))
    assert asked[0] is None and asked[1:] == rounds[:-1]
    assert [r.drafted for r in rounds] == [1, 2, 3, 2]  # the budget cuts the last


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "more", "says"),
    [
        ([], {}, "prompt is empty"),
        ([0, 64], {}, "prompt id 64 is not in 0 … 63"),
        ([-1], {}, "prompt id -1"),
        ([1], {"k": -1}, "K must be at least 0, not -1"),
        ([1] * 500, {"stop": Stop(20)}, "500 tokens and 20 new ones do not fit into the target's 512 positions"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(prompt, more, says):
    target = Context(tiny_llama())
    with pytest.raises(ValueError, match=says):
        next(decode(target, LookupDrafter(), prompt, **more))
    assert target.tokens == []


def test_every_position_of_the_target_can_be_used():
    assert len(tokens_of(decode(Context(tiny_llama(positions=16)), LookupDrafter(), [1] * 6, stop=Stop(10)))) == 10


def test_a_draft_with_fewer_positions_than_the_target_costs_speed_only():
    target, draft = tiny_llama(seed=1), tiny_llama(seed=1, positions=20)
    tokens, stats = spec_greedy(target, draft, [5, 6], 40, 3)
    assert tokens == plain_greedy(target, [5, 6], 40)
    assert stats.rounds[0].drafted == 3 and stats.rounds[-1].drafted == 0


def test_a_drafter_that_proposes_more_than_it_was_asked_for_is_refused():
    class Eager(Fixed):
        def propose(self, text, k, sampling, rng):
            return Proposal([1] * (k + 1))

    with pytest.raises(ValueError, match="asked for at most 2 tokens and proposed 3"):
        next(decode(TableLM(4), Eager([]), [1], k=2))


def test_a_draft_outside_the_targets_vocabulary_never_reaches_its_embedding():
    with pytest.raises(ValueError, match=r"64 is not in 0 … 63"):
        next(decode(Context(tiny_llama()), Fixed([64]), [1]))
