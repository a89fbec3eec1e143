"""The checkers of notebook 04 accept right answers, and say what is wrong with every other."""

from __future__ import annotations

import pytest
import torch
from answers import held_to

from speclib import accept
from speclib.checks import sampling as checks


@pytest.fixture(autouse=True)
def exercises_as_found(monkeypatch):
    monkeypatch.delenv("SPECLIB_SOLUTIONS", raising=False)


def rescaled(x):
    return x / x.sum()


def plus(p, q):
    return (p - q).clamp(min=0)


def guarded(p, q):
    rest = plus(p, q)
    return rest / rest.sum() if rest.sum() > 0 else p


def changes_input(p, q):
    p -= q
    return guarded(p.clamp_(min=0), torch.zeros_like(p))


RIGHT_RESIDUAL = [
    checks.residual_answer,
    guarded,
    lambda p, q: guarded(p.float(), q.float()),
    lambda p, q: p.clone() if torch.equal(p, q) else rescaled(torch.where(p > q, p - q, 0.0)),
]
WRONG_RESIDUAL = {
    "0/0 where p = q": (lambda p, q: rescaled(plus(p, q)), "q equal to p.*0/0"),
    "not rescaled": (plus, "six words.*divide by its sum"),
    "p": (lambda p, q: p, "that is p"),
    "absolute": (lambda p, q: rescaled((p - q).abs()), r"\|p − q\|"),
    "q − p": (lambda p, q: guarded(q, p), "not q − p"),
    "softmax": (lambda p, q: plus(p, q).softmax(-1), "softmax"),
    "not cut": (lambda p, q: p - q, "cut at 0"),
    "min instead": (lambda p, q: rescaled(torch.minimum(p, q)), "six words.*max"),
    "ratio": (lambda p, q: rescaled((p / q - 1).clamp(min=0)), "six words"),
    "divided by 1 − α of the toy": (lambda p, q: plus(p, q) / 0.3, "uniform q"),
    "uniform where p = q": (
        lambda p, q: torch.full_like(p, 1 / len(p)) if torch.equal(p, q) else guarded(p, q),
        "q equal to p",
    ),
    "input changed": (changes_input, "changed its input"),
    "no return": (lambda p, q: None, "return"),
    "a number": (lambda p, q: plus(p, q).sum(), "shape"),
    "a list": (lambda p, q: guarded(p, q).tolist(), "return a tensor"),
    "a crash": (lambda p, q: p.clmp(q), "the six words.*raised AttributeError"),
}


def rule(kept=None, source=guarded, ask=True):
    """accept_or_fix with its parts exchanged. kept: from p(d), q(d) to the probability asked for."""
    kept = kept or (lambda pd, qd: pd / qd)

    def fn(p, q, d, rng):
        if rng.kept(kept(p[d], q[d])[None]):
            return d, True
        return rng.draw(source(p, q)), False

    return fn


def draw_and_compare(p, q, d, rng):
    own = rng.draw(p)
    return own, own == d


def until_another(p, q, d, rng):
    if rng.kept((p[d] / q[d])[None]):
        return d, True
    while (token := rng.draw(p)) == d:
        pass
    return token, False


def own_chance(p, q, d, rng):
    if torch.rand(1) < p[d] / q[d]:
        return d, True
    return int(torch.multinomial(guarded(p, q), 1)), False


def always_says_kept(p, q, d, rng):
    return rule()(p, q, d, rng)[0], True


def never_says_kept(p, q, d, rng):
    return rule()(p, q, d, rng)[0], False


def emits_the_rejected(p, q, d, rng):
    return d, bool(rng.kept((p[d] / q[d])[None]))


def argmax_of(x):
    return torch.zeros_like(x).scatter(0, x.argmax()[None], 1.0)


def keeps_if_larger(p, q, d, rng):
    return (d, True) if p[d] >= q[d] else (rng.draw(guarded(p, q)), False)


RIGHT_RULE = [
    checks.accept_or_fix_answer,
    rule(),
    rule(lambda p, q: (p / q).clamp(max=1)),
    lambda p, q, d, rng: (d, 1) if p[d] >= q[d] or rng.kept((p[d] / q[d])[None]) else (rng.draw(plus(p, q)), 0),
]
WRONG_RULE = {
    "a rejection draws from p": (rule(source=lambda p, q: p), "0.3200, and p says 0.4000.*not|THE.*residual, since p"),
    "a rejection draws from q": (rule(source=lambda p, q: q), "drew from q again"),
    "softmax": (rule(source=lambda p, q: plus(p, q).softmax(-1)), "softmax"),
    "absolute residual": (rule(source=lambda p, q: (p - q).abs()), r"\|p − q\| is not"),
    "uniform": (rule(source=lambda p, q: torch.ones_like(p)), "uniformly"),
    "argmax of the residual": (rule(source=lambda p, q: argmax_of(plus(p, q))), "residual's largest"),
    "argmax of p": (rule(source=lambda p, q: argmax_of(p)), "largest entry"),
    "p without d": (
        rule(source=lambda p, q: p.clone().index_fill(0, (q - p).argmax()[None], 0)),
        "over all drafts",
    ),
    "q/p": (rule(lambda p, q: q / p.clamp(min=1e-9)), "q/p, the wrong way"),
    "keeps with p(d)": (rule(lambda p, q: p), "THE.*p = 0.400.*p/q is asked for"),
    "keeps all": (lambda p, q, d, rng: (d, bool(rng.kept(torch.ones(1)))), "kept only in the share p/q"),
    "keeps none": (lambda p, q, d, rng: (rng.draw(p), False), "THE.*keeps it with 0.0000"),
    "keeps if p ≥ q": (keeps_if_larger, "the draft A.*0.0000"),
    "draw and compare": (draw_and_compare, "p/q is asked for"),
    "kept and rejected exchanged": (
        lambda p, q, d, rng: (rng.draw(guarded(p, q)), False) if rng.kept((p[d] / q[d])[None]) else (d, True),
        "THE.*keeps it with 0.0000",
    ),
    "p − q as probability": (rule(lambda p, q: p - q + 0.5), "min"),
    "always says kept": (always_says_kept, "called kept, but"),
    "never says kept": (never_says_kept, "keeps it with 0.0000"),
    "the rejected comes out": (emits_the_rejected, "over all drafts"),
    "a loop until another": (until_another, "asks on and on"),
    "chance of its own": (own_chance, "never asked rng|keeps it with"),
    "a scalar to kept": (
        lambda p, q, d, rng: (d, True) if rng.kept(p[d] / q[d]) else (0, False),
        "takes a vector with one probability",
    ),
    "a negative residual": (rule(source=lambda p, q: p - q), "nothing can be drawn"),
    "a tensor as token": (lambda p, q, d, rng: (torch.tensor(rule()(p, q, d, rng)[0]), True), "whole number"),
    "kept is a tensor": (lambda p, q, d, rng: (d, torch.tensor(True)), "True or False"),
    "input changed": (rule(source=lambda p, q: p.sub_(q).clamp_(min=0)), "changed its input"),
    "not a pair": (lambda p, q, d, rng: d, r"should return \(token, kept\)"),
    "kept is a word": (lambda p, q, d, rng: (d, "yes"), "True or False"),
    "the pair turned round": (lambda p, q, d, rng: (True, d), "True or False|never asked"),
    "no such token": (lambda p, q, d, rng: (len(p), False), "there are tokens 0 … 5"),
    "no return": (lambda p, q, d, rng: None, "return"),
    "a crash": (lambda p, q, d, rng: p[d] / q[99], "the six words and the draft THE.*IndexError"),
}


def guess(kept=None, source=None):
    kept = kept or (lambda p, d: p[d][None])
    source = source or accept.residual_one_hot

    def fn(p, d, rng):
        return (d, True) if rng.kept(kept(p, d)) else (rng.draw(source(p, d)), False)

    return fn


def without(p, d):
    rest = p.clone()
    rest[d] = 0
    return rest


RIGHT_GUESS = [checks.one_guess_answer, guess(), guess(source=without)]
WRONG_GUESS = {
    "a rejection draws from p": (guess(source=lambda p, d: p), "guess THE.*residual, since p"),
    "always kept": (guess(kept=lambda p, d: torch.ones(1)), "kept with probability 0.4000.*1.0000"),
    "never kept": (lambda p, d, rng: (rng.draw(p), False), "keeps it with 0.0000"),
    "kept if the largest": (
        lambda p, d, rng: (d, True) if p[d] == p.max() else (rng.draw(without(p, d)), False),
        "guess THE.*(never asked|1.0000)",
    ),
    "1 − p": (guess(kept=lambda p, d: 1 - p[d][None]), "exchanged"),
    "one over the vocabulary": (guess(kept=lambda p, d: (p[d] * len(p))[None]), "1.0000"),
    "uniform over the others": (guess(source=lambda p, d: without(torch.ones_like(p), d)), "over all drafts"),
    "argmax of the others": (guess(source=lambda p, d: argmax_of(without(p, d))), "largest entry"),
    "input changed": (guess(source=lambda p, d: p.index_fill_(0, torch.tensor(d), 0)), "changed its input"),
    "no return": (lambda p, d, rng: None, "return"),
}

RIGHT_STATISTIC = [checks.chi_square_answer, lambda c, p: ((c - c.sum() * p) ** 2 / (c.sum() * p)).sum()]
WRONG_STATISTIC = {
    "not squared": (lambda c, p: ((c - c.sum() * p).abs() / (c.sum() * p)).sum(), "square the"),
    "signed": (lambda c, p: ((c - c.sum() * p) / (c.sum() * p)).sum(), "square the"),
    "not divided": (lambda c, p: ((c - c.sum() * p) ** 2).sum(), "divide each square"),
    "divided by the counts": (lambda c, p: ((c - c.sum() * p) ** 2 / c).sum(), "not by what was counted"),
    "variance of a binomial": (lambda c, p: ((c - c.sum() * p) ** 2 / (c.sum() * p * (1 - p))).sum(), "one degree"),
    "shares": (lambda c, p: ((c / c.sum() - p) ** 2 / p).sum(), "has to matter"),
    "root": (lambda c, p: ((c - c.sum() * p) ** 2 / (c.sum() * p)).sum().sqrt(), "no root"),
    "average": (lambda c, p: ((c - c.sum() * p) ** 2 / (c.sum() * p)).mean(), "don't average"),
    "against p": (lambda c, p: ((c - p) ** 2 / p).sum(), "n · p, not with p"),
    "a fixed n": (lambda c, p: ((c - 100 * p) ** 2 / (100 * p)).sum(), "450"),
    "in place, on whole numbers": (lambda c, p: (c.sub_(c.sum() * p) ** 2 / p).sum(), "raised RuntimeError"),
    "input changed": (lambda c, p: ((c - p.mul_(c.sum())) ** 2 / p).sum(), "changed its input"),
    "a vector": (lambda c, p: (c - c.sum() * p) ** 2 / (c.sum() * p), "one number"),
    "a p-value": (lambda c, p: 1.0, "counts as expected"),
    "no return": (lambda c, p: None, "return"),
}

EXERCISES = {
    "residual": (checks.residual, RIGHT_RESIDUAL, WRONG_RESIDUAL),
    "accept_or_fix": (checks.accept_or_fix, RIGHT_RULE, WRONG_RULE),
    "one_guess": (checks.one_guess, RIGHT_GUESS, WRONG_GUESS),
    "chi_square": (checks.chi_square, RIGHT_STATISTIC, WRONG_STATISTIC),
}


(
    test_right_answers_pass,
    test_a_wrong_answer_is_rejected_with_a_sentence,
    test_an_exercise_that_is_not_done_is_handed_over,
) = held_to(EXERCISES)
