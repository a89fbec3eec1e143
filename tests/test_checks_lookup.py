"""The checkers of notebook 06 accept right answers, and say what is wrong with every other."""

from __future__ import annotations

import pytest
import torch
from answers import held_to

from speclib import accept
from speclib.checks import lookup as checks
from speclib.drafters import LookupDrafter


@pytest.fixture(autouse=True)
def exercises_as_found(monkeypatch):
    monkeypatch.delenv("SPECLIB_SOLUTIONS", raising=False)


def scan(sizes=None, starts=None, found=None, miss=None, least=0):
    """lookup_draft with its parts exchanged: which sizes, which places, what is proposed, and what on a miss."""
    sizes = sizes or (lambda seq, n: range(min(n, len(seq) - 1), 0, -1))
    starts = starts or (lambda seq, n: range(len(seq) - n - 1, -1, -1))
    found = found or (lambda seq, end, K: seq[end : end + K])

    def fn(seq, K, max_ngram=3):
        if len(seq) < least:
            return []
        for n in sizes(seq, max_ngram):
            for start in starts(seq, n):
                if seq[start : start + n] == seq[len(seq) - n :]:
                    return found(seq, start + n, K)
        return miss(seq, K) if miss else []

    return fn


def by_index(seq, K, max_ngram=3):
    drafter = LookupDrafter(max_ngram)
    drafter.begin(seq, None)
    return drafter.propose(seq, K, None, None).tokens


def with_tensors(seq, K, max_ngram=3):
    x = torch.tensor(seq)
    for n in range(min(max_ngram, len(seq) - 1), 0, -1):
        hits = (x.unfold(0, n, 1)[:-1] == x[-n:]).all(1).nonzero()
        if len(hits):
            return x[int(hits[-1]) + n :][:K]
    return x[:0]


def finds_itself(seq, K, max_ngram=3):
    return scan(starts=lambda seq, n: range(len(seq) - n, -1, -1))(seq, K, max_ngram)


def short_tail_dropped(seq, K, max_ngram=3):
    """The original notebook: a match whose tail is shorter than K is no match."""
    for n in range(min(max_ngram, len(seq) - 1), 0, -1):
        for start in range(len(seq) - n - 1, -1, -1):
            if seq[start : start + n] == seq[-n:] and start + n + K <= len(seq):
                return seq[start + n : start + n + K]
    return []


def raises_on_short(seq, K, max_ngram=3):
    if len(seq) < max_ngram:
        raise ValueError("the prompt is shorter than the n-gram")
    return checks.lookup_draft_answer(seq, K, max_ngram)


def eats_the_text(seq, K, max_ngram=3):
    out = checks.lookup_draft_answer(seq, K, max_ngram)
    while seq:
        seq.pop()
    return out


def text_grows(seq, K, max_ngram=3):
    """Goes on copying from its own proposal when the text ends."""
    out, text = [], list(seq)
    while len(out) < K:
        more = checks.lookup_draft_answer(text, 1, max_ngram)
        if not more:
            break
        out, text = out + more, text + more
    return out


def falsy_is_a_miss(seq, K, max_ngram=3):
    return [t for t in checks.lookup_draft_answer(seq, K, max_ngram) if t]


RIGHT_LOOKUP = [checks.lookup_draft_answer, scan(), by_index, with_tensors, lambda s, K, n: tuple(scan()(s, K, n))]
WRONG_LOOKUP = {
    "the end finds itself": (finds_itself, "no occurrence of itself"),
    "a short tail is thrown away": (short_tail_dropped, "fewer than K tokens follow"),
    "a short text raises": (raises_on_short, "raised ValueError"),
    "a short text is not looked at": (
        lambda s, K, n: [] if len(s) < n else checks.lookup_draft_answer(s, K, n),
        "shorter than max_ngram",
    ),
    "a dummy on a miss": (scan(miss=lambda s, K: [s[-1]] if s else []), "no token is made up"),
    "a dummy of the first tokens": (scan(miss=lambda s, K: s[:K]), "no token is made up"),
    "a dummy only where nothing can match": (lambda s, K, n: scan()(s, K, n) if len(s) > 1 else [0], "one token|empty"),
    "None on a miss": (scan(miss=lambda s, K: None), r"return"),
    "the leftmost": (scan(starts=lambda s, n: range(len(s) - n)), "most recent match"),
    "no overlap": (scan(starts=lambda s, n: range(len(s) - 2 * n, -1, -1)), "overlap"),
    "shortest first": (scan(sizes=lambda s, n: range(1, min(n, len(s) - 1) + 1)), "longer end|what follows"),
    "only the longest": (scan(sizes=lambda s, n: [n] if n < len(s) else []), "shorter ends"),
    "never a single token": (scan(sizes=lambda s, n: range(min(n, len(s) - 1), 1, -1)), "one token is enough"),
    "max_ngram is always 3": (lambda s, K, n: scan()(s, K, 3), "no more than max_ngram|longest end"),
    "max_ngram is one more": (lambda s, K, n: scan()(s, K, n + 1), "no more than max_ngram|longest end"),
    "K is ignored": (scan(found=lambda s, end, K: s[end:]), "at most K"),
    "K tokens too many by one": (scan(found=lambda s, end, K: s[end : end + K + 1]), "at most K|what follows"),
    "one token only": (scan(found=lambda s, end, K: s[end : end + min(K, 1)]), "what follows the earlier"),
    "K = 0 proposes one": (lambda s, K, n: scan()(s, max(1, K), n), "asks for nothing"),
    "from the match itself": (
        lambda s, K, n: scan(found=lambda s, end, K: s[max(0, end - 1) : end - 1 + K])(s, K, n),
        "what follows",
    ),
    "one place too far": (scan(found=lambda s, end, K: s[end + 1 : end + 1 + K]), "what follows"),
    "reversed": (scan(found=lambda s, end, K: s[end : end + K][::-1]), "what follows"),
    "copies on from its own proposal": (text_grows, "fewer than K|what follows"),
    "0 is nothing": (falsy_is_a_miss, "0 is a token"),
    "the text is eaten": (eats_the_text, "changed the text"),
    "a number": (lambda s, K, n: 3, "list of tokens"),
    "words": (lambda s, K, n: ["nine"], "list of tokens"),
    "no return": (lambda s, K, n: None, "return"),
    "a crash": (lambda s, K, n: s[999], "1, 2, 3, 9.*raised IndexError"),
}


def one_by_one(p, drafts, rng):
    for i, d in enumerate(drafts):
        if not rng.kept(p[i, d][None]):
            rest = p[i].clone()
            rest[d] = 0
            return i, rng.draw(rest)
    return len(drafts), rng.draw(p[-1])


def block(keep=None, source=None, bonus=None):
    """judge_certain with its parts exchanged. keep, source: from (p, i, d); bonus: from p to weights."""
    keep = keep or (lambda p, i, d: p[i, d])
    source = source or (lambda p, i, d: accept.residual_one_hot(p[i], d))
    bonus = bonus or (lambda p: p[-1])

    def fn(p, drafts, rng):
        for i, d in enumerate(drafts):
            if not rng.kept(keep(p, i, d)[None]):
                return i, rng.draw(source(p, i, d))
        return len(drafts), rng.draw(bonus(p))

    return fn


def argmax_of(x):
    return torch.zeros_like(x).scatter(0, x.argmax()[None], 1.0)


def without(x, d):
    return x.clone().index_fill(0, torch.tensor([d]), 0)


def draws_until_another(p, drafts, rng):
    for i, d in enumerate(drafts):
        if not rng.kept(p[i, d][None]):
            while (token := rng.draw(p[i])) == d:
                pass
            return i, token
    return len(drafts), rng.draw(p[-1])


def goes_on_after_a_rejection(p, drafts, rng):
    kept = sum(rng.kept(p[i, d][None]) for i, d in enumerate(drafts))
    return (kept, rng.draw(without(p[kept], drafts[kept]))) if kept < len(drafts) else (kept, rng.draw(p[-1]))


def own_chance(p, drafts, rng):
    for i, d in enumerate(drafts):
        if torch.rand(1) >= p[i, d]:
            return i, int(torch.multinomial(without(p[i], d), 1))
    return len(drafts), int(torch.multinomial(p[-1], 1))


def draw_and_compare(p, drafts, rng):
    """Keep while the target's own draw equals the draft, and emit that draw: exact, and as many are kept."""
    for i, d in enumerate(drafts):
        if (token := rng.draw(p[i])) != d:
            return i, token
    return len(drafts), rng.draw(p[-1])


RIGHT_BLOCK = [
    checks.judge_certain_answer,
    one_by_one,
    block(),
    block(source=lambda p, i, d: without(p[i], d)),
    draw_and_compare,
]
WRONG_BLOCK = {
    "a rejection draws from all of p": (block(source=lambda p, i, d: p[i]), "may not come back"),
    "always kept": (block(keep=lambda p, i, d: torch.ones(())), "kept with p"),
    "kept with 1, without asking": (lambda p, drafts, rng: (len(drafts), rng.draw(p[-1])), "kept with p"),
    "never kept": (lambda p, drafts, rng: (0, rng.draw(p[0])), "also where that is small"),
    "softmax of the rest": (
        block(source=lambda p, i, d: without(p[i], d).softmax(-1)),
        "a softmax gives mass to the draft again",
    ),
    "kept if the argmax": (
        lambda p, drafts, rng: next(
            ((i, rng.draw(without(p[i], d))) for i, d in enumerate(drafts) if d != int(p[i].argmax())),
            (len(drafts), rng.draw(p[-1])),
        ),
        "argmax is for greedy|also where that is small",
    ),
    "1 − p": (block(keep=lambda p, i, d: 1 - p[i, d]), "exchanged"),
    "row 0 for all": (block(keep=lambda p, i, d: p[0, d]), "not row 0"),
    "a row too far": (block(keep=lambda p, i, d: p[i + 1, d]), r"not row i \+ 1"),
    "the fix from the next row": (block(source=lambda p, i, d: without(p[i + 1], d)), "the row that judged"),
    "the fix from all of the next row": (block(source=lambda p, i, d: p[i + 1]), "the row that judged"),
    "the largest of the others": (block(source=lambda p, i, d: argmax_of(without(p[i], d))), "not the largest"),
    "any of the others": (block(source=lambda p, i, d: without(torch.ones_like(p[i]), d)), "how likely each"),
    "the rejected comes out": (block(source=lambda p, i, d: without(p[i], d) * 0 + (p[i] == p[i, d])), "must not"),
    "the bonus is the argmax": (block(bonus=lambda p: argmax_of(p[-1])), "not its argmax"),
    "the bonus from the row before": (block(bonus=lambda p: p[-2 if len(p) > 1 else -1]), "from the last row"),
    "half as often": (block(keep=lambda p, i, d: p[i, d] / 2), "row i of p gives it"),
    "the square": (block(keep=lambda p, i, d: p[i, d] ** 2), "row i of p gives it"),
    "goes on behind a rejection": (goes_on_after_a_rejection, "first rejection ends the walk"),
    "a loop until another": (draws_until_another, "without end|loop"),
    "chance of its own": (own_chance, "never asked rng|probability"),
    "nothing by chance": (lambda p, drafts, rng: (len(drafts), 0), "never asked rng"),
    "a scalar to kept": (lambda p, drafts, rng: (rng.kept(p[0, drafts[0]]), 0), "one draft.*a vector"),
    "a negative rest": (block(source=lambda p, i, d: p[i] - 2 * argmax_of(p[i])), "nothing can be drawn"),
    "more kept than there were": (lambda p, drafts, rng: (len(drafts) + 1, rng.draw(p[-1])), "how many of the"),
    "no such token": (lambda p, drafts, rng: (0, p.shape[-1] + 0 * rng.draw(p[0])), "then a token"),
    "only the token": (lambda p, drafts, rng: rng.draw(p[0]), r"return \(kept, token\)"),
    "no return": (lambda p, drafts, rng: None, "return"),
    "a crash": (lambda p, drafts, rng: p[99], "one draft.*raised IndexError"),
}

EXERCISES = {
    "lookup_draft": (checks.lookup_draft, RIGHT_LOOKUP, WRONG_LOOKUP),
    "judge_certain": (checks.judge_certain, RIGHT_BLOCK, WRONG_BLOCK),
}


(
    test_right_answers_pass,
    test_a_wrong_answer_is_rejected_with_a_sentence,
    test_an_exercise_that_is_not_done_is_handed_over,
) = held_to(EXERCISES)
