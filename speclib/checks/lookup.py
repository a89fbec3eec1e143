"""Checkers and answers for the exercises of notebook 06_lookup: lookup itself, and the rule for certain drafts."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from speclib import accept, drafters
from speclib.checks.rule import EXACT, Asked
from speclib.distributions import Rng
from speclib.exactness import EveryWay, sequence_distribution
from speclib.exercises import answer
from speclib.toy import TableLM

LookupDraft = Callable[[list[int], int, int], list[int]]
JudgeCertain = Callable[[Tensor, list[int], Any], tuple[int, int]]

lookup_draft_answer = drafters.lookup_draft


def judge_certain_answer(p: Tensor, drafts: list[int], rng: Rng) -> tuple[int, int]:
    """The rule for a block of certain drafts: how many are kept, and the token behind them."""
    kept, weights = accept.judge(p, None, drafts, rng)
    return kept, rng.draw(weights)


# --- lookup_draft -------------------------------------------------------------------------------------------

# text, K, max_ngram, and why the answer is what it is.
CASES = (
    ([1, 2, 3, 9, 1, 2, 3], 4, 3, "what follows the earlier 1, 2, 3; the end of the text is no occurrence of itself"),
    ([1, 2, 3, 9, 1, 2, 3], 2, 3, "at most K tokens are proposed"),
    ([1, 2, 3, 4, 1, 2], 5, 2, "fewer than K tokens follow the match, and those are proposed all the same"),
    ([5, 2, 3, 9, 1, 2, 3], 3, 3, "1, 2, 3 stands nowhere before, so shorter ends are looked for: 2, 3 is found"),
    ([3, 8, 3], 2, 3, "one token is enough, where no longer end stood before"),
    ([7, 1, 8, 1, 9, 1], 2, 3, "the most recent match counts, not the leftmost"),
    ([2, 3, 7, 3, 8, 2, 3], 1, 3, "the longer end is looked for first: 2, 3 goes before 3"),
    ([2, 3, 7, 3, 8, 2, 3], 1, 1, "no more than max_ngram tokens are looked for: here only the 3"),
    ([4, 4, 4, 4], 3, 3, "a match may overlap the end of the text: 4, 4, 4 stands at the very beginning"),
    ([1, 2, 3], 3, 3, "nothing of this was there before: a miss, and no token is made up"),
    ([1, 1], 3, 5, "a text shorter than max_ngram is still looked at"),
    ([1], 3, 3, "one token cannot have stood before"),
    ([], 3, 3, "an empty text has no end to look for"),
    ([1, 2, 1, 2], 0, 3, "K = 0 asks for nothing"),
    ([0, 0, 5, 0], 2, 1, "0 is a token like any other"),
)


def lookup_draft(fn: LookupDraft) -> None:
    """AssertionError, naming the case, unless fn(seq, K, max_ngram) proposes what `lookup_draft_answer` does."""
    for text, k, n, why in CASES:
        _judge_lookup(fn, text, k, n, why)
    chance = random.Random(6)
    for _ in range(300):
        text = [chance.randrange(3) for _ in range(chance.randrange(14))]
        k, n = chance.randrange(1, 6), chance.randrange(1, 5)
        why = "the longest end that stood before, its most recent place, and what follows there"
        _judge_lookup(fn, text, k, n, why)


def _judge_lookup(fn: LookupDraft, text: list[int], k: int, n: int, why: str) -> None:
    case, given = f"With the text {text}, K = {k} and max_ngram = {n}", list(text)
    got, expected = answer(case, fn, given, k, n), lookup_draft_answer(text, k, n)
    if given != text:
        raise AssertionError(f"{case}, your function changed the text; work on a copy.")
    try:
        got = [int(t) for t in got]
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{case}, your function should return a list of tokens, not {got!r}.") from error
    if got != expected:
        raise AssertionError(f"{case}, it is {expected}, but yours is {got}: {why}.")


# --- the rule for drafts that were certain ------------------------------------------------------------------

# vocabulary, drafts, and what the rows of p are.
BLOCKS = (
    (4, [1], "one draft"),
    (4, [2, 0, 2], "three drafts"),
    (3, [], "no draft, so a plain step"),
)


def judge_certain(fn: JudgeCertain) -> None:
    """AssertionError, naming the case, unless fn(p, drafts, rng) is the rule for drafts that were certain.

    fn is run for every way that its rng can answer, so luck plays no part.
    """
    for vocab, drafts, name in BLOCKS:
        p = TableLM(vocab, seed=len(drafts)).feed([0, 1, *drafts]).softmax(-1)[1:]
        _judge_block(fn, f"With {name}", p, drafts)
    for row, name in (([0.0, 0.7, 0.3], "finds impossible"), ([1.0, 0.0, 0.0], "is certain of")):
        p = torch.tensor([row, [0.2, 0.5, 0.3]], dtype=torch.float64)
        _judge_block(fn, f"With a draft that the target {name}", p, [0])


def _judge_block(fn: JudgeCertain, case: str, p: Tensor, drafts: list[int]) -> None:
    asked = 0

    def run(rng: EveryWay) -> tuple[int, int]:
        nonlocal asked
        reader = _Asked(rng, len(drafts) + 10)
        got = _pair(case, answer(case, fn, p.clone(), list(drafts), reader), len(drafts), p.shape[-1])
        asked += reader.asked
        return got

    got = sequence_distribution(run)
    wanted = sequence_distribution(lambda rng: judge_certain_answer(p, drafts, rng))
    if not asked:
        raise AssertionError(f"{case}, your function never asked rng, and chance must come from rng.kept and rng.draw.")
    for kept, probability in _kept(wanted, len(drafts)).items():
        mine = _kept(got, len(drafts))[kept]
        if not abs(mine - probability) < EXACT:
            facts = f"{kept} kept has probability {probability:.4f}, but with yours it is {mine:.4f}"
            raise AssertionError(f"{case} {drafts}, {facts}: {_why_not_kept(got, p, drafts)}.")
    for way in sorted(wanted.keys() | got.keys()):
        mine, probability = got.get(way, 0.0), wanted.get(way, 0.0)
        if not abs(mine - probability) < EXACT:
            facts = f"{way[0]} kept and then the token {way[1]} has probability {probability:.4f}"
            why = _why_not_token(got, p, drafts, way[0])
            raise AssertionError(f"{case} {drafts}, {facts}, but with yours it is {mine:.4f}: {why}.")


def _kept(ways: Mapping[tuple[int, ...], float], k: int) -> dict[int, float]:
    total: Counter[int] = Counter()
    for (kept, _), probability in ways.items():
        total[kept] += probability
    return {kept: total[kept] for kept in range(k + 1)}


def _why_not_kept(got: Mapping[tuple[int, ...], float], p: Tensor, drafts: list[int]) -> str:
    """Which other rule keeps just as many: given[i] is the probability that it keeps draft i, once it looks at it."""
    k, mine = len(drafts), _kept(got, len(drafts))
    keep = [float(p[i, d]) for i, d in enumerate(drafts)]
    reasons = (
        ([1.0] * k, "a draft of lookup is no better than a guess: it is kept with p(x), not always"),
        ([0.0] * k, "a draft is kept with p(x), also where that is small"),
        ([1 - x for x in keep], "kept and rejected are exchanged"),
        ([float(d == int(p[i].argmax())) for i, d in enumerate(drafts)], "the argmax is for greedy decoding"),
        ([float(p[0, d]) for d in drafts], "row i of p judges draft i, not row 0 all of them"),
        ([float(p[i + 1, d]) for i, d in enumerate(drafts)], "row i of p judges draft i, not row i + 1"),
    )
    for given, why in reasons:
        reach = [1.0, *itertools.accumulate(given, lambda a, b: a * b)]
        expected = [reach[i] - (reach[i + 1] if i < k else 0.0) for i in range(k + 1)]
        if all(abs(mine[i] - expected[i]) < EXACT for i in range(k + 1)):
            return why
    return "draft i is kept with the probability that row i of p gives it, and the first rejection ends the walk"


def _why_not_token(got: Mapping[tuple[int, ...], float], p: Tensor, drafts: list[int], kept: int) -> str:
    n, share = p.shape[-1], _kept(got, len(drafts))[kept]
    mine = torch.tensor([got.get((kept, t), 0.0) for t in range(n)], dtype=torch.float64) / max(share, 1e-30)
    if kept == len(drafts):
        if (mine - torch.eye(n, dtype=torch.float64)[int(p[kept].argmax())]).abs().max() < EXACT:
            return "the bonus is drawn from the last row of p, not its argmax"
        return "when all are kept, the bonus is drawn from the last row of p"
    d, row = drafts[kept], p[kept]
    without = row.clone().index_fill(0, torch.tensor([d]), 0)
    reasons = (
        (row, f"the rejected {d} may not come back: take it out of p before you draw"),
        (without.softmax(-1), "p without the draft is divided by its sum; a softmax gives mass to the draft again"),
        (accept.residual_one_hot(p[kept + 1], d), "the fix comes from the row that judged the rejected draft"),
        (p[kept + 1], "the fix comes from the row that judged the rejected draft, without that draft"),
        (torch.eye(n, dtype=torch.float64)[int(without.argmax())], "the fix is drawn, not the largest entry"),
        (torch.eye(n, dtype=torch.float64)[d], "what was rejected must not come out"),
        ((without > 0).double() / max(1, int((without > 0).sum())), "p says how likely each of the others is"),
    )
    default = "the fix is drawn from p without the rejected draft"
    return next((why for value, why in reasons if (mine - value).abs().max() < EXACT), default)


class _Asked(Asked):
    """The rng for a whole block, whose vocabulary has no words to tell the weights by."""

    VECTOR = "rng.kept takes a vector with one probability per draft"
    LOOP = "a block takes a question per draft and one more; yours asks on and on: is there a loop?"

    def _told(self, weights: Tensor) -> str:
        return ""


def _pair(case: str, got: Any, k: int, n: int) -> tuple[int, int]:
    try:
        kept, token = (int(x) for x in got)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{case}, your function should return (kept, token), not {got!r}.") from error
    if not (0 <= kept <= k and 0 <= token < n):
        raise AssertionError(
            f"{case}, your function returned {(kept, token)}: first how many of the {k} drafts are kept, then a token."
        )
    return kept, token
