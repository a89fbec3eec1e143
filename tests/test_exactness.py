"""The proof: every outcome of the real loop, enumerated, against the target's own product of probabilities.

Then the controls: each mistake that others made is switched on, and the same proof must notice it.
"""

import math
import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from test_draft import tiny_draft
from tiny import tiny_llama

from speclib import accept, wrong
from speclib.context import Context, LanguageModel, as_context
from speclib.decode import Stats, decode, spec_sample
from speclib.distributions import Rng, Sampling, warp
from speclib.drafters import FallbackDrafter, LookupDrafter, ModelDrafter, Proposal
from speclib.exactness import (
    LEVEL,
    EveryWay,
    MemoLM,
    chi_square,
    draws_needed,
    largest_difference,
    sequence_distribution,
    target_distribution,
)
from speclib.stopping import Stop
from speclib.toy import FixedLM, P, Q, TableLM

EXACT = 1e-9
MOST_PATHS = 20_000
PLAIN = Sampling()
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


@dataclass
class Case:
    """A target, who drafts for it, and how. `sizes` of a table: vocab and seed, then TableLM's options."""

    vocab: int = 2
    k: object = 2
    max_new: int = 4
    draft: object = None  # another TableLM, "lookup", or a function that makes a drafter; None is plain decoding
    sampling: Sampling = PLAIN
    prompt: list = field(default_factory=lambda: [0, 1, 0])
    eos: tuple = ()
    target: object = None
    kept: set = field(default_factory=set)  # of their drafts, what the rounds of `output` kept: none, some, all

    def models(self):
        return self.target or TableLM(self.vocab, seed=1), self.draft

    def output(self, mistake=None):
        """The exact distribution of what the loop commits, with a mistake switched on or without."""
        target, draft = self.models()

        def run(rng):
            model, drafter = target, None
            target.rollback(0)
            if isinstance(draft, TableLM):
                draft.rollback(0)
                drafter = ModelDrafter(mistake.draft(draft) if mistake else draft)
            elif draft == "lookup":
                drafter = LookupDrafter(max_ngram=2)
            elif draft is not None:
                drafter = draft()
            if mistake:
                model = mistake.target(target)
            stop = Stop(self.max_new, eos=self.eos)
            rounds = list(decode(model, drafter, self.prompt, k=self.k, sampling=self.sampling, stop=stop, rng=rng))
            self.kept |= {{0: "none", r.drafted: "all"}.get(r.accepted, "some") for r in rounds if r.drafted}
            return [t for r in rounds for t in r.tokens]

        with mistake.patch() if mistake else nullcontext():
            return sequence_distribution(run, max_paths=MOST_PATHS)

    def wanted(self):
        target, _ = self.models()
        return target_distribution(target, self.prompt, self.sampling, self.max_new, frozenset(self.eos))


class Reluctant(ModelDrafter):
    """Drafts fewer than it is asked for, or none: settled by position, before anything is drawn."""

    def propose(self, text, k, sampling, rng):
        return super().propose(text, len(text) % 3 if k else 0, sampling, rng) if len(text) % 3 <= k else Proposal([])


def table(vocab, **more):
    return TableLM(vocab, seed=2, **more)


def lookup_then_model():
    return FallbackDrafter(LookupDrafter(max_ngram=2), ModelDrafter(table(3)))


def disjoint(vocab, evens):
    row = torch.tensor([float(t % 2 == (0 if evens else 1)) for t in range(vocab)], dtype=torch.float64)
    return FixedLM(row / row.sum())


CASES = {
    "plain decoding": Case(3, 0, 4),
    "K = 1, four tokens": Case(3, 1, 4, table(3)),
    "K = 2, three rounds and more": Case(2, 2, 6, table(2)),
    "K = 3, two rounds and more": Case(2, 3, 6, table(2)),
    "K = 4": Case(2, 4, 5, table(2)),
    "three tokens, K = 2": Case(3, 2, 3, table(3)),
    "three tokens, K = 2, four of them": Case(3, 2, 4, table(3)),
    "draft equal to the target": Case(3, 2, 4, TableLM(3, seed=1)),
    "draft far worse": Case(2, 2, 4, table(2, sharpness=4.0)),
    "uniform draft": Case(3, 2, 3, table(3, sharpness=0.0)),
    "disjoint supports": Case(4, 2, 3, disjoint(4, False), target=disjoint(4, True)),
    "both with zeros": Case(4, 2, 3, table(4, zeros=0.4), target=TableLM(4, seed=1, zeros=0.4)),
    "q has zeros where p has mass": Case(3, 2, 3, table(3, zeros=0.6)),
    "p has one entry of 1": Case(3, 2, 3, table(3), target=TableLM(3, seed=1, zeros=1.0)),
    "the course's P and Q": Case(6, 1, 2, FixedLM(Q), target=FixedLM(P)),
    "greedy": Case(3, 2, 8, TableLM(3, seed=8), Sampling(temperature=0)),
    "T = 0.5": Case(2, 2, 4, table(2), Sampling(temperature=0.5)),
    "T = 1.7": Case(2, 3, 4, table(2), Sampling(temperature=1.7)),
    "top-k": Case(5, 2, 4, table(5), Sampling(top_k=2)),
    "top-p": Case(4, 2, 3, table(4), Sampling(top_p=0.7)),
    "min-p": Case(4, 2, 4, TableLM(4, seed=3), Sampling(min_p=0.5)),
    "T, top-k and top-p": Case(5, 2, 3, TableLM(5, seed=5), Sampling(0.7, top_k=3, top_p=0.8)),
    "repetition penalty": Case(2, 2, 4, table(2), Sampling(repetition=3.0)),
    "frequency and presence": Case(2, 3, 4, table(2), Sampling(frequency=1.5, presence=-0.5)),
    "a banned id": Case(3, 2, 4, table(3), Sampling(banned=(1,))),
    "drafts are the draft's argmax": Case(2, 3, 5, lambda: ModelDrafter(table(2), greedy=True)),
    "lookup": Case(2, 3, 5, "lookup"),
    "lookup, three words": Case(3, 2, 4, "lookup", Sampling(temperature=0.8), prompt=[0, 1, 2, 0, 1]),
    "lookup, a model on a miss": Case(3, 2, 4, lookup_then_model, prompt=[0, 1]),
    "lookup, a model on a miss, K = 3": Case(2, 3, 6, lookup_then_model, Sampling(temperature=0.7), prompt=[0]),
    "EOS inside a block": Case(3, 3, 4, table(3), eos=(0,)),
    "several EOS ids": Case(4, 2, 3, table(4), eos=(0, 3)),
    "EOS under lookup": Case(3, 2, 4, "lookup", prompt=[0, 2, 1, 0], eos=(1,)),
    "draft with a narrower vocabulary": Case(4, 2, 3, table(2)),
    "draft with a wider vocabulary": Case(3, 2, 3, table(5)),
    "wider, top-k": Case(3, 2, 4, table(6), Sampling(top_k=2)),
    "fewer drafts than asked for, or none": Case(2, 3, 5, lambda: Reluctant(table(2))),
    "K as a schedule: 2, 0, 1": Case(2, lambda last: 2 if last is None else 0 if last.drafted else 1, 5, table(2)),
    "a prompt of one token": Case(2, 2, 4, table(2), prompt=[1]),
    "fewer tokens than K": Case(2, 4, 2, table(2)),
}


# Where not every end of a round can come about: one draft is kept or not, and some drafts are always or never right.
KEPT = {
    "plain decoding": set(),
    "K = 1, four tokens": {"none", "all"},
    "draft equal to the target": {"all"},
    "disjoint supports": {"none"},
    "the course's P and Q": {"none", "all"},
    "fewer tokens than K": {"none", "all"},
}


@lru_cache
def every_way(name):
    return CASES[name].output()


@pytest.mark.parametrize("name", CASES)
def test_the_loop_follows_the_target_exactly(name):
    output, wanted = every_way(name), CASES[name].wanted()
    assert sum(output.values()) == pytest.approx(1, abs=EXACT)
    assert largest_difference(output, wanted) < EXACT


@pytest.mark.parametrize("name", CASES)
def test_rounds_kept_none_some_and_all_of_their_drafts(name):
    """Exact output says little where no draft was ever kept, or none ever rejected."""
    every_way(name)
    assert CASES[name].kept == KEPT.get(name, {"none", "some", "all"})


def test_spec_sample_follows_the_target_with_all_that_it_is_given():
    sampling, target, draft = Sampling(0.5, top_k=2), TableLM(3, seed=1), TableLM(3, seed=2)

    def run(rng):
        target.rollback(0)
        draft.rollback(0)
        return spec_sample(target, draft, [0, 1, 0], 4, 2, sampling, rng, eos=[1])[0]

    wanted = target_distribution(TableLM(3, seed=1), [0, 1, 0], sampling, 4, eos=frozenset({1}))
    assert largest_difference(sequence_distribution(run), wanted) < EXACT


@pytest.mark.parametrize(("temperature", "q_is"), [(1.0, "drawn"), (0.0, "one-hot"), (1.0, "one-hot")])
def test_accept_or_fix_follows_p(temperature, q_is):
    p, q = warp(P.log(), temperature), warp(Q.log(), temperature)

    def run(rng):
        d = 0 if q_is == "one-hot" else rng.draw(q)
        return [accept.accept_or_fix(p, None if q_is == "one-hot" else q, d, rng)[0]]

    output = sequence_distribution(run)
    assert all(abs(output.get((t,), 0.0) - float(p[t])) < EXACT for t in range(6))


def test_draw_and_compare_is_exact_too_but_keeps_less():
    """Keep the draft if the target's own draw equals it, and emit that draw: Σ p·q instead of Σ min(p, q)."""
    kept = 0.0

    def run(rng):
        nonlocal kept
        d, own = rng.draw(Q), rng.draw(P)
        kept += rng.probability * (d == own)
        return [own]

    output = sequence_distribution(run)
    assert all(abs(output[(t,)] - float(P[t])) < EXACT for t in range(6))
    assert kept == pytest.approx(float((P * Q).sum())) and kept < 0.70


# --- the controls: each mistake must be found ---------------------------------------------------------------

MODEL, LOOKUP = Case(2, 2, 4, table(2)), Case(2, 2, 4, "lookup")
FINDS = {
    "a rejection draws from p": MODEL,
    "a rejected lookup draws from p": LOOKUP,
    "the residual goes through a softmax": MODEL,
    "greedy drafts, softmax as q": MODEL,
    "the bonus is the argmax": MODEL,
    "only the last row is warped": Case(2, 2, 4, table(2), Sampling(temperature=0.5)),
    "q is handed over unwarped": Case(2, 2, 4, table(2), Sampling(temperature=0.5)),
    "penalties leave the drafts out": Case(2, 2, 4, table(2), Sampling(frequency=1.5)),
    "a draft is withheld because of its value": MODEL,
    "an EOS inside a block runs on": Case(2, 2, 4, table(2), eos=(0,)),
    "no rollback: ghosts": MODEL,
    "the text is fed again on its cache": MODEL,
}


@pytest.mark.parametrize("mistake", wrong.BIASED, ids=lambda m: m.name)
def test_every_bias_is_found_by_enumeration(mistake):
    case = FINDS[mistake.name]
    assert largest_difference(case.output(), case.wanted()) < EXACT
    assert largest_difference(case.output(mistake), case.wanted()) > 1e-3
    assert largest_difference(case.output(), case.wanted()) < EXACT  # and is gone when switched off


def in_cells(case, mistake):
    """Two lists of probabilities, text by text: with the mistake, and as wanted."""
    biased, wanted = case.output(mistake), case.wanted()
    cells = sorted(biased.keys() | wanted.keys())
    return [[of.get(c, 0.0) for c in cells] for of in (biased, wanted)]


@pytest.mark.parametrize("mistake", wrong.BIASED, ids=lambda m: m.name)
def test_how_many_draws_find_each_bias(mistake):
    """Power, from the mistake's exact distribution; and with the draws that draws_needed advises, it is there."""
    biased, p = in_cells(FINDS[mistake.name], mistake)
    assert mistake.draws == math.ceil(draws_needed(biased, p)) <= 20_000
    rng, size, share = np.random.default_rng(0), max(2 * mistake.draws, 300), np.array(biased) / sum(biased)
    found = np.mean([chi_square(rng.multinomial(size, share), p).p_value < LEVEL for _ in range(200)])
    assert found >= 0.99


def test_the_first_round_is_right_without_a_rollback():
    """Why bugs of speculation hide in round two: the first finds nothing that should have been cut back."""
    drafted = []

    def first_round(wrap):
        def run(rng):
            target, drafter = wrap(TableLM(2, seed=1)), ModelDrafter(TableLM(2, seed=2))
            first = next(decode(target, drafter, [0, 1, 0], k=2, sampling=PLAIN, stop=Stop(9), rng=rng))
            drafted.append(first.drafted)
            return first.tokens

        return sequence_distribution(run)

    assert largest_difference(first_round(wrong.Ghosts), first_round(lambda model: model)) < EXACT
    assert set(drafted) == {2}


def test_the_lessons_numbers_for_sampling_p_on_rejection():
    mistake = next(m for m in wrong.BIASED if m.name == "a rejection draws from p")
    output = Case(6, 1, 2, FixedLM(Q), target=FixedLM(P)).output(mistake)
    first = [sum(pr for text, pr in output.items() if text[0] == t) for t in range(6)]
    assert first == pytest.approx([0.32, 0.325, 0.145, 0.08, 0.078, 0.052], abs=1e-12)
    expected_statistic = 10_000 * sum((w - p) ** 2 / p for w, p in zip(first, P.tolist(), strict=True))
    assert expected_statistic == pytest.approx(517, abs=0.5)


WITH_A_MODEL = [m for m in (*wrong.BIASED, *wrong.WASTEFUL, *wrong.SEEDED) if FINDS.get(m.name) is not LOOKUP]


@pytest.mark.parametrize(("wide", "narrow"), [(5, 4), (4, 5)])
@pytest.mark.parametrize("mistake", WITH_A_MODEL, ids=lambda m: m.name)
def test_a_mistake_runs_also_where_the_vocabularies_differ(mistake, wide, narrow):
    target, draft = TableLM(wide, seed=1), TableLM(narrow, seed=2)
    with mistake.patch():
        tokens, _ = spec_sample(target, draft, [0], 60, K=3, sampling=Sampling(0.8), rng=Rng(1))
    assert len(tokens) == 60 and max(tokens) < wide


@pytest.mark.parametrize("mistake", WITH_A_MODEL, ids=lambda m: m.name)
def test_a_mistake_runs_also_with_the_distilled_drafts_own_context(mistake):
    target, draft = mistake.target(TableLM(64, seed=1)), mistake.draft(as_context(tiny_draft()))
    with mistake.patch():
        tokens, _ = spec_sample(target, draft, [1, 2, 1], 20, K=3, sampling=Sampling(0.7), rng=Rng(0))
    assert len(tokens) == 20


def kept_by_an_equal_draft(mistake, k, make, sampling=PLAIN):
    """AL and the share of drafts that were kept, when the draft is the target itself."""
    with mistake.patch() if mistake else nullcontext():
        target, draft = make(), mistake.draft(make()) if mistake else make()
        rounds = decode(target, ModelDrafter(draft), [1, 2, 3], k=k, sampling=sampling, stop=Stop(200), rng=Rng(0))
        stats = Stats(list(rounds))
    return stats.mean_accepted_length, stats.acceptance_rate


EQUALS = {"table": lambda: TableLM(7, seed=4), "llama": lambda: Context(tiny_llama())}


@pytest.mark.parametrize("make", EQUALS.values(), ids=EQUALS)
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_equal_to_its_target_keeps_everything(k, temperature, make):
    mean_length, rate = kept_by_an_equal_draft(None, k, make, Sampling(temperature))
    assert rate == 1.0 and mean_length == pytest.approx(k + 1, rel=0.02)  # the budget cuts the last round


@pytest.mark.parametrize("mistake", wrong.WASTEFUL, ids=lambda m: m.name)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_every_waste_is_found_where_the_draft_equals_its_target(mistake, k):
    right, _ = kept_by_an_equal_draft(None, k, EQUALS["table"])
    assert kept_by_an_equal_draft(mistake, k, EQUALS["table"])[0] < right - 0.2
    assert largest_difference(MODEL.output(mistake), MODEL.wanted()) < EXACT  # the output stays right
    assert mistake.draws == draws_needed(*in_cells(MODEL, mistake)) == math.inf


def first_two_tokens(seeds):
    counts = np.zeros(16)
    target, draft = TableLM(4, seed=1), TableLM(4, seed=2)
    for seed in range(seeds):
        rounds = decode(target, ModelDrafter(draft), [0], k=2, sampling=PLAIN, stop=Stop(2), rng=Rng(seed))
        first, second = [t for r in rounds for t in r.tokens]
        counts[4 * first + second] += 1
    wanted = target_distribution(TableLM(4, seed=1), [0], PLAIN, 2)
    return chi_square(counts, [wanted[a, b] for a in range(4) for b in range(4)]).p_value


def test_seeding_again_at_each_step_is_found_by_runs_under_many_seeds():
    (again,) = wrong.SEEDED
    assert first_two_tokens(again.draws) > LEVEL
    with again.patch():
        assert first_two_tokens(again.draws) < LEVEL


PLACE = r"#\d|\w+/\w+|^our own: (notebook (?P<number>\d\d), '(?P<section>.+)'|no public thread known)$"


@pytest.mark.parametrize("mistake", [*wrong.BIASED, *wrong.WASTEFUL, *wrong.SEEDED], ids=lambda m: m.name)
def test_every_control_names_where_it_was_seen(mistake):
    """A thread, a repository, or the section of ours that breaks it."""
    place = re.search(PLACE, mistake.seen)
    assert place, mistake.seen
    if place["number"]:
        (notebook,) = NOTEBOOKS.glob(f"{place['number']}_*.ipynb")
        assert f'"## {place["section"]}' in notebook.read_text(encoding="utf-8")


def test_every_control_has_a_name_of_its_own_and_every_bias_a_case():
    names = [m.name for m in (*wrong.BIASED, *wrong.WASTEFUL, *wrong.SEEDED)]
    assert len(set(names)) == len(names)
    assert set(FINDS) == {m.name for m in wrong.BIASED}


def test_a_mistake_is_gone_also_where_its_run_was_broken_off():
    right = accept.residual
    with pytest.raises(KeyboardInterrupt), wrong.replaced(accept, "residual", None):
        raise KeyboardInterrupt
    assert accept.residual is right


# --- the enumerator itself ----------------------------------------------------------------------------------


def test_the_enumerator_walks_every_way_once_and_no_impossible_one():
    seen = []

    def run(rng):
        first = rng.draw(torch.tensor([1.0, 0.0, 3.0]))
        kept = rng.kept(torch.tensor([0.5, 1.0, 0.25])) if first == 2 else -1
        seen.append((first, kept))
        return [first, kept]

    output = sequence_distribution(run)
    assert output == {(0, -1): 0.25, (2, 0): 0.375, (2, 2): 0.28125, (2, 3): 0.09375}
    assert sorted(seen) == sorted(output)


def test_the_enumerator_answers_as_the_random_one_does():
    def run(rng):
        return [rng.kept(torch.tensor([0.7, 0.4])), rng.draw(torch.tensor([2.0, 0.0, 1.0]))]

    output = sequence_distribution(run)
    rng, n = Rng(5), 5_000
    cells = sorted(output)
    counts = dict.fromkeys(cells, 0)
    for _ in range(n):
        counts[tuple(run(rng))] += 1
    assert chi_square([counts[c] for c in cells], [output[c] for c in cells]).p_value > LEVEL


def test_too_many_ways_are_refused():
    with pytest.raises(RuntimeError, match="more than 100 ways"):
        sequence_distribution(lambda rng: [rng.draw(torch.ones(10)) for _ in range(3)], max_paths=100)


def test_no_randomness_is_one_way():
    assert sequence_distribution(lambda rng: [3]) == {(3,): 1.0}
    assert EveryWay().advance() is False


# --- chi-square ---------------------------------------------------------------------------------------------


def test_chi_square_equals_scipys_and_pools_small_cells():
    from scipy import stats

    counts = [40, 30, 20, 10]
    result, reference = chi_square(counts, [0.35, 0.35, 0.2, 0.1]), stats.chisquare(counts, [35, 35, 20, 10])
    assert result.statistic == pytest.approx(reference.statistic) and result.p_value == pytest.approx(reference.pvalue)
    assert result.degrees == 3
    assert chi_square([50, 45, 3, 2], [0.5, 0.44, 0.03, 0.03]).degrees == 2
    assert chi_square([500, 250, 150, 0, 60, 40], [0.5, 0.25, 0.15, 0.0, 0.06, 0.04]).degrees == 4
    assert chi_square(np.full(6, 100), np.full(6, 1 / 6)).threshold == pytest.approx(11.07, abs=0.01)


def test_a_count_where_p_is_zero_settles_it():
    assert chi_square([60, 39, 1], [0.6, 0.4, 0.0]).p_value == 0


@pytest.mark.parametrize(
    ("counts", "p", "says"),
    [([1, 2], [1.0], "per cell"), ([0, 0], [0.5, 0.5], "no counts"), ([5, 5], [0.5, 0.4], "sum to 1"),
     ([3, 3], [0.5, 0.5], "draw more")],
)  # fmt: skip
def test_chi_square_refuses(counts, p, says):
    with pytest.raises(ValueError, match=says):
        chi_square(counts, p)


def test_draws_needed_is_where_the_test_begins_to_notice():
    biased = [0.32, 0.325, 0.145, 0.08, 0.078, 0.052]
    n = draws_needed(biased, P.tolist())
    rng = np.random.default_rng(0)

    def found(size):
        return np.mean([chi_square(rng.multinomial(int(size), biased), P.tolist()).p_value < LEVEL for _ in range(300)])

    assert found(n) > 0.97 and found(n / 3) < 0.9
    assert draws_needed(P.tolist(), P.tolist()) == float("inf")
    assert 0.5 ** draws_needed([0.5, 0.5], [1.0, 0.0]) == pytest.approx(0.01)  # that the excluded one never comes up


def test_a_memoised_model_says_what_the_model_says():
    model: LanguageModel = MemoLM(Context(tiny_llama()))
    fresh = Context(tiny_llama())
    assert torch.allclose(model.feed([1, 2, 3]), fresh.feed([1, 2, 3]), atol=1e-4)
    model.rollback(1)
    fresh.rollback(1)
    assert torch.allclose(model.feed([5, 6], rows=1), fresh.feed([5, 6], rows=1), atol=1e-4)
