"""The loop: identity with plain greedy, coverage of the caches, ends, counts, and what it refuses."""

import copy
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_llama, tiny_tokenizer

from speclib.context import Context
from speclib.decode import GREEDY, Round, Stats, decode, spec_greedy, spec_sample
from speclib.distributions import Rng, Sampling, warp
from speclib.drafters import FallbackDrafter, LookupDrafter, ModelDrafter, Proposal
from speclib.stopping import Stop
from speclib.toy import TableLM

PLAIN = Sampling()
ROOT = Path(__file__).parent.parent
# One token a byte: of its ids the first three are special and the next ones the characters ! " # $ …
TOKENIZER = tiny_tokenizer(merges=())


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
}


def test_greedy_output_is_plain_greedys_token_for_token():
    """Seeds × prompts × drafters × K: 360 combinations, and what happened in their rounds is counted."""
    outcomes = dict.fromkeys(("none kept", "some kept", "all kept", "no drafts"), 0)
    combinations = 0
    for seed, prompt in itertools.product(range(6), ([5], [7, 7, 7], [3, 1, 4, 1, 5, 9, 2, 6])):
        target = tiny_llama(seed=seed)
        answer = plain_greedy(target, prompt, 14)
        assert tokens_of(decode(Context(target), None, prompt, stop=Stop(14))) == answer
        for (name, make), k in itertools.product(DRAFTERS.items(), (1, 2, 3, 4, 7)):
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


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_a_draft_equal_to_its_target_keeps_everything_also_on_a_schedule(sampling):
    ks = itertools.cycle([3, 0, 3, 0])
    target, draft = Context(tiny_llama()), ModelDrafter(tiny_llama())
    rounds = list(decode(target, draft, [1, 2], k=lambda last: next(ks), sampling=sampling, stop=Stop(200), rng=Rng(0)))
    assert all(r.accepted == r.drafted for r in rounds)
    assert {r.drafted for r in rounds} >= {0, 3}


# --- coverage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ks", [[1], [2], [5], [3, 0, 3, 0]], ids=str)
@pytest.mark.parametrize("draft_seed", [1, 2], ids=["an equal draft", "another draft"])
def test_after_every_round_the_caches_cover_the_text_and_nothing_else(ks, sampling, draft_seed):
    schedule, prompt = itertools.cycle(ks), [1, 2, 3]
    target, draft = TableLM(6, seed=1), TableLM(6, seed=draft_seed)
    drafter, text = ModelDrafter(draft), list(prompt)
    full_keeps, lags = 0, []
    for r in decode(
        target, drafter, prompt, k=lambda last: next(schedule), sampling=sampling, stop=Stop(60), rng=Rng(3)
    ):
        text += r.tokens
        assert target.tokens == text[:-1]
        assert draft.tokens == text[: len(draft.tokens)] and len(draft.tokens) < len(text)
        lags.append(len(text) - len(draft.tokens))
        if r.drafted and r.accepted == r.drafted and r.finish_reason is None:
            full_keeps += 1
            assert lags[-1] == 2  # one short: its own last draft is fed next time
    if draft_seed == 1:
        assert full_keeps > 5 and (max(lags) > 2) == (0 in ks)  # further behind after rounds without drafts


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


def test_an_interrupted_generation_leaves_the_models_settings_as_they_were():
    model, sampling = tiny_llama(), Sampling(0.7, repetition=1.3)
    before = copy.deepcopy((model.config.to_dict(), model.generation_config.to_dict()))
    rounds = decode(Context(model), ModelDrafter(model), [1, 2], k=2, sampling=sampling, stop=Stop(9), rng=Rng(0))
    next(rounds)
    with pytest.raises(KeyboardInterrupt):
        rounds.throw(KeyboardInterrupt)
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before


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
    vocab = data.draw(st.integers(2, 7), "vocab")
    prompt = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6), "prompt")
    ks = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4), "K")
    max_new = data.draw(st.integers(0, max(ks) + 2), "max_new")
    eos = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2), "eos")
    strings = data.draw(st.lists(st.text('!"', min_size=1, max_size=2), max_size=3), "stop strings")
    sampling = data.draw(st.sampled_from([GREEDY, PLAIN, Sampling(0.5, top_k=2), Sampling(frequency=1.0)]), "sampling")
    zeros = data.draw(st.sampled_from([0.0, 0.5]), "zeros")
    target = TableLM(vocab, seed=data.draw(st.integers(0, 9), "seed"), zeros=zeros)
    draft = TableLM(data.draw(st.integers(2, 8), "draft's vocab"), seed=77, zeros=zeros)
    both = FallbackDrafter(LookupDrafter(2), ModelDrafter(draft))
    drafter = data.draw(st.sampled_from([ModelDrafter(draft), LookupDrafter(2), both, None]), "drafter")
    schedule, stop = itertools.cycle(ks), Stop(max_new, eos, strings, TOKENIZER)
    rounds = list(
        decode(
            target,
            drafter,
            prompt,
            k=lambda last: next(schedule),
            sampling=sampling,
            stop=stop,
            rng=Rng(1),
        )
    )
    new = tokens_of(rounds)

    def ending(tokens):
        """Why the text should end with these tokens, if it should."""
        found = any(s in TOKENIZER.decode(tokens, skip_special_tokens=True) for s in strings)
        return "eos" if tokens[-1] in eos else "stop" if found else "length" if len(tokens) == max_new else None

    assert target.tokens == (prompt + new)[:-1] or max_new == 0
    assert all(1 <= len(r.tokens) <= r.drafted + 1 and 0 <= r.accepted <= r.drafted for r in rounds)
    ends = [ending(new[:n]) for n in range(1, len(new) + 1)]
    assert ends == [None] * (len(new) - 1) + ([rounds[-1].finish_reason] if new else [])
    assert all(r.finish_reason is None for r in rounds[:-1]) and (max_new == 0 or ends[-1])
    text = TOKENIZER.decode(new, skip_special_tokens=True)
    assert "".join(r.text for r in rounds) == text[: min((text.find(s) for s in strings if s in text), default=None)]
    if sampling is GREEDY:
        assert new == tokens_of(decode(TableLM(vocab, seed=target._seed, zeros=zeros), None, prompt, stop=stop))


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


# --- what the loop costs ------------------------------------------------------------------------------------


class Drawn(Fixed):
    """Always the same tokens, said to be drawn from a uniform q."""

    def propose(self, text, k, sampling, rng):
        return Proposal(self.tokens[:k], torch.full((k, 64), 1 / 64))


@pytest.mark.parametrize(
    ("kind", "sampling"), [(Fixed, GREEDY), (Drawn, PLAIN), (Fixed, PLAIN)], ids=["greedy", "sampled", "one-hot"]
)
def test_a_round_waits_for_the_device_equally_often_however_many_drafts_it_judges(monkeypatch, kind, sampling):
    waits = []

    def counted(name):
        known = getattr(torch.Tensor, name)

        def call(tensor, *arguments):
            waits.append(name)
            return known(tensor, *arguments)

        monkeypatch.setattr(torch.Tensor, name, call)

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy"):
        counted(name)
    per_round, drafter, rng = [], kind(plain_greedy(tiny_llama(), [1, 2, 3], 16)), Rng(0)
    rng.uniform = lambda n: torch.zeros(n, dtype=torch.float64)  # keeps every draft, so that each is looked at
    for k in (1, 4, 16):
        rounds = decode(Context(tiny_llama()), drafter, [1, 2, 3], k=k, sampling=sampling, stop=Stop(40), rng=rng)
        waits.clear()
        assert next(rounds).accepted == k
        per_round.append(len(waits))
    assert per_round[0] == per_round[1] == per_round[2] <= 4, per_round


def test_top_p_sorts_no_vocabulary_where_few_tokens_hold_the_mass(monkeypatch):
    """A full sort of five rows of 49,152 takes as long as a small model's step."""
    peaked, sorted_entries = torch.randn(5, 49_152, generator=torch.Generator().manual_seed(0)), []
    peaked[:, :20] += 20

    def counted(owner, name):
        known = getattr(owner, name)

        def call(tensor, k=None, *arguments, **more):
            sorted_entries.append(k if name == "topk" else tensor.shape[-1])
            return known(tensor, *([] if k is None else [k]), *arguments, **more)

        monkeypatch.setattr(owner, name, call)

    for owner, name in itertools.product((torch, torch.Tensor), ("topk", "sort", "argsort", "msort")):
        counted(owner, name)
    p = warp(peaked, top_p=0.9)
    assert ((p > 0).sum(-1) <= 20).all()
    assert 0 < max(sorted_entries) <= 128


def test_the_record_of_the_loops_share_keeps_to_three_percent_and_the_page_says_so():
    record = json.loads((ROOT / "results" / "loop-share.json").read_text(encoding="utf-8"))
    greedy, sampled = record["greedy"], record["temperature 0.7, top-p 0.9"]
    assert record["dtype"] == "torch.bfloat16" and record["k"] == 4
    assert greedy["share outside the forward"] <= 0.03
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "tools/loop_share.py" in page
    assert all(f"{100 * of['share outside the forward']:.1f} %" in page for of in (greedy, sampled))


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "more", "says"),
    [
        ([], {}, "prompt is empty"),
        ([0, 64], {}, "prompt id 64 is not in 0 … 63"),
        ([-1], {}, "prompt id -1"),
        ([1], {"k": -1}, "K must be a whole number of at least 0, .*not -1"),
        ([1], {"k": 2.0}, "K must be a whole number .*not 2.0"),
        ([1], {"k": None}, "K must be a whole number .*not None"),
        ("a text", {}, "must be a list of token ids"),
        (torch.tensor([[1, 2]]), {}, "must be a list of token ids"),
        ([1], {"sampling": Sampling(banned=(64,))}, "banned id 64 is not in 0 … 63"),
        ([1] * 500, {"stop": Stop(20)}, "500 tokens and 20 new ones do not fit into the target's 512 positions"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(prompt, more, says):
    target = Context(tiny_llama())
    with pytest.raises(ValueError, match=says):
        next(decode(target, LookupDrafter(), prompt, **more))
    assert target.tokens == []


def test_one_context_cannot_be_target_and_draft():
    target = Context(tiny_llama())
    with pytest.raises(ValueError, match="target and draft share one cache"):
        spec_greedy(target, target, [1, 2], 8, 3)


def test_a_number_of_drafts_from_numpy_is_a_number():
    rounds = decode(TableLM(4), Fixed([1, 1, 1]), [1], k=np.int64(2))
    assert next(rounds).drafted == 2


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
