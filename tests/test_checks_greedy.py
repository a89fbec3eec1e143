"""The checkers of notebook 03 accept right answers and name what is wrong with others."""

from __future__ import annotations

import re

import pytest
import torch

from speclib import decode
from speclib.accept import judge_greedy
from speclib.checks import greedy as checks
from speclib.context import Context
from speclib.exercises import Todo
from speclib.toy import TableLM


@pytest.fixture(autouse=True)
def exercises_as_found(monkeypatch):
    monkeypatch.delenv("SPECLIB_SOLUTIONS", raising=False)


# --- walk ---------------------------------------------------------------------------------------------------


def by_hand(logits, drafts):
    best = logits.argmax(-1).tolist()
    for i, d in enumerate(drafts):
        if d != best[i]:
            return i, best[i]
    return len(drafts), best[-1]


def matches(logits, drafts):
    return [d == b for d, b in zip(drafts, logits.argmax(-1).tolist(), strict=False)]


WRONG_WALK = {
    "no return": (lambda z, d: None, "return"),
    "one number": (lambda z, d: judge_greedy(z, d)[0], "two whole numbers"),
    "swapped": (lambda z, d: judge_greedy(z, d)[::-1], "it is"),
    "counts all matches": (lambda z, d: (sum(matches(z, d)), int(z[sum(matches(z, d))].argmax())), "rejected"),
    "one row too late": (lambda z, d: by_hand(z.roll(-1, 0), d), "first draft is row 0"),
    "no bonus": (lambda z, d: (min(judge_greedy(z, d)[0], len(d) - 1), judge_greedy(z, d)[1]), "bonus"),
    "the draft as its own fix": (
        lambda z, d: (
            judge_greedy(z, d)[0],
            d[judge_greedy(z, d)[0]] if not all(matches(z, d)) else judge_greedy(z, d)[1],
        ),
        "that is the fix",
    ),
    "always the last row": (lambda z, d: (judge_greedy(z, d)[0], int(z[-1].argmax())), "that is the fix"),
    "crash without drafts": (lambda z, d: (d[0], 0)[:0] or judge_greedy(z, d), "drafts \\[\\].*IndexError"),
    "token 0 is none": (
        lambda z, d: (sum(1 for t in d[: judge_greedy(z, d)[0]] if t), judge_greedy(z, d)[1]),
        "token 0",
    ),
}


def test_right_walks_pass():
    for fn in (checks.walk_answer, by_hand, lambda z, d: [torch.tensor(x) for x in judge_greedy(z, d)]):
        checks.walk(fn)


@pytest.mark.parametrize("name", WRONG_WALK)
def test_wrong_walks_are_told_what_is_wrong(name):
    fn, fragment = WRONG_WALK[name]
    with pytest.raises(AssertionError, match=fragment) as caught:
        checks.walk(fn)
    assert str(caught.value).startswith("With drafts")


# --- spec_greedy --------------------------------------------------------------------------------------------


def spec(
    prefill=True, bonus=True, fix=True, cut=0, cut_draft=0, cut_at_all=True, cut_draft_at_all=True, overshoot=False,
    run_over=False, shift=0, one_by_one=False, unread=False, drop_eos=False, too_many=False, wrong_counts=False,
    afresh=False, keep_all=False, newest_only=False,
):  # fmt: skip
    """Greedy speculation as the lesson writes it, right but for what is asked to be wrong."""

    def fn(target, draft, prompt_ids, max_new, K, eos=None):
        seq, end, stats = list(prompt_ids), len(prompt_ids) + max_new, {"rounds": 0, "accepted": 0, "rejected": 0}
        if prefill and len(seq) > 1:
            target.feed(seq[:-1])
            draft.feed(seq[:-1])
        while len(seq) < end:
            k, drafts = K if overshoot else min(K, end - len(seq) - 1), []
            if afresh:
                draft.rollback(0)
            feed = seq[-1:] if (newest_only or unread) and draft.tokens else seq[len(draft.tokens) :]
            for _ in range(k):
                drafts.append(int(draft.feed(feed)[-1].argmax()))
                feed = drafts[-1:]
            head = seq[-1:] if newest_only and target.tokens else seq[len(target.tokens) :]
            if one_by_one:
                rows = torch.stack([target.feed([t])[-1] for t in head + drafts])
            else:
                rows = target.feed(head + drafts)
            rows = rows[-(len(drafts) + 1) :]
            best = rows.roll(-shift, 0).argmax(-1).tolist()
            kept = 0
            while kept < len(drafts) and (drafts[kept] == best[kept] or keep_all):
                kept += 1
            token = [best[kept]] if (bonus or kept < len(drafts) or not drafts) and (fix or kept == len(drafts)) else []
            block = drafts[:kept] + token
            stats["rounds"] += 1
            stats["accepted"] += kept
            stats["rejected"] += len(drafts) - kept if wrong_counts else kept < len(drafts)
            seq += block
            if eos in block and not run_over:
                seq = seq[: len(seq) - len(block) + block.index(eos) + (not drop_eos)]
                break
            if cut_at_all:
                target.rollback(min(len(target.tokens), len(seq) - 1 + cut))
            if cut_draft_at_all:
                draft.rollback(min(len(draft.tokens), len(seq) - 1 + cut_draft))
        new = seq[len(prompt_ids) :]
        return new if too_many else new[:max_new], stats

    return fn


class Stepwise:
    """The lesson's own words, with no prefill and with decode's drafter asked for as many as fit."""

    def __call__(self, target, draft, prompt_ids, max_new, K, eos=None):
        stats = decode.Stats()
        for r in decode.decode(target, decode.ModelDrafter(draft), prompt_ids, k=K, stop=decode.Stop(max_new, eos=eos)):
            stats.rounds.append(r)
        accepted, checked = (sum(getattr(r, x) for r in stats.rounds) for x in ("accepted", "checked"))
        return stats.tokens, {"rounds": len(stats.rounds), "accepted": accepted, "rejected": checked - accepted}


def no_dict(*args):
    return spec()(*args)[0], 3


def as_kind(kind):
    def fn(*args):
        tokens, stats = spec()(*args)
        return kind(tokens), stats

    return fn


def stub(*args):
    raise Todo


WRONG_SPEC = {
    "no bonus": (spec(bonus=False), "add the bonus"),
    "fix missing": (spec(fix=False), "the fix or the bonus"),
    "cut one too few": (spec(cut=1), "the target's cache held token"),
    "draft cut one too few": (spec(cut_draft=1), "nothing to feed: the draft's cache .* was it cut back"),
    "cut one too many": (spec(cut=-1), "target read token .* twice"),
    "draft cut one too many": (spec(cut_draft=-1), "draft read token .* twice"),
    "draft begins anew each round": (spec(afresh=True), "draft read token .* twice"),
    "no cache is cut": (spec(cut_at_all=False, cut_draft_at_all=False), "the target's cache held token"),
    "the target's is not cut": (spec(cut_at_all=False, newest_only=True), "target's cache held token"),
    "the draft's is not cut": (spec(cut_draft_at_all=False, newest_only=True), "draft's cache held token"),
    "the draft's last token is unread": (spec(unread=True), "draft's cache held token"),
    "drafts past the budget": (spec(overshoot=True), "scored . drafts when only . could be used"),
    "more than max_new": (spec(overshoot=True, too_many=True), "at most 14 new tokens|could be used"),
    "EOS runs on": (spec(run_over=True), "EOS = .*runs on behind it"),
    "EOS is dropped": (spec(drop_eos=True), "EOS itself is part of the text"),
    "one row too late": (spec(shift=1), "row i is what the target says"),
    "one row too early": (spec(shift=-1), "row i is what the target says"),
    "every draft is kept": (spec(keep_all=True), "a draft that the target does not say"),
    "drafts scored one by one": (spec(one_by_one=True), "score all drafts in one pass"),
    "counts the unchecked": (spec(wrong_counts=True), "the counts are"),
    "no dict": (no_dict, "a dict with rounds"),
    "a tuple of tokens": (as_kind(tuple), "a list of whole numbers"),
    "a tensor of tokens": (as_kind(torch.tensor), "a list of whole numbers"),
    "a list of tensors": (as_kind(lambda new: list(torch.tensor(new))), "a list of whole numbers"),
    "no return": (lambda *args: None, "return"),
    "tokens only": (lambda *args: spec()(*args)[0], "list of new tokens and a dict|a dict with"),
    "the prompt comes back too": (lambda t, d, p, n, k, *e: (p + spec()(t, d, p, n, k, *e)[0], {}), "at most 40 new"),
    "a loop without end": (lambda t, d, p, *rest: [t.feed(p) for _ in iter(int, 1)], "does it grow in every round"),
    "plain greedy": (spec_plain := lambda t, d, p, n, k, *e: spec()(t, d, p, n, 0, *e), "the counts are|one pass"),
    "a crash": (lambda t, d, p, n, k, *e: t.crop(3), "your function raised AttributeError"),
}


@pytest.mark.parametrize("fn", [checks.spec_greedy_answer, spec(), spec(prefill=False), Stepwise()])
def test_right_answers_pass(fn):
    checks.spec_greedy(fn)


@pytest.mark.parametrize("name", WRONG_SPEC)
def test_wrong_answers_are_told_what_is_wrong(name):
    fn, fragment = WRONG_SPEC[name]
    with pytest.raises(AssertionError, match=fragment) as caught:
        checks.spec_greedy(fn)
    text = str(caught.value)
    assert text.startswith("With ") and "\n" not in text and len(text) < 400


@pytest.mark.parametrize("check", [checks.walk, checks.spec_greedy])
def test_a_stub_reaches_attempt_as_not_done(check):
    with pytest.raises(Todo):
        check(stub)


def test_the_cases_have_rounds_with_none_some_and_all_kept():
    """An identity test that never had an accepted token would prove nothing."""
    seen = []
    for k in (2, 4):
        table = TableLM(6, seed=3, sharpness=2)
        seen += decode.spec_greedy(table, checks.Near(table, 12, 1.0), [0, 2, 5], 14, k)[1].rounds
    llamas = Context(checks._llama(0.0)), Context(checks._llama(0.02))
    real = decode.spec_greedy(*llamas, [3, 1, 4, 1, 5], 16, 3)[1].rounds
    for rounds in (seen, real):
        assert any(r.accepted == 0 and r.drafted for r in rounds)
        assert any(0 < r.accepted < r.drafted for r in rounds)
        assert any(r.accepted == r.drafted > 1 for r in rounds)


def test_the_checks_leave_the_global_randomness_alone():
    state = torch.random.get_rng_state()
    checks._llama.cache_clear()
    checks.spec_greedy(checks.spec_greedy_answer)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_wrong_row_is_told_from_a_ghost():
    for shift in (1, -1):
        with pytest.raises(AssertionError) as caught:
            checks.spec_greedy(spec(shift=shift))
        assert not re.search("cache held", str(caught.value))
