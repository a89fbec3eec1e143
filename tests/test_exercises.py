"""attempt() lets every notebook run on; each checker accepts right answers and names what is wrong with others."""

from __future__ import annotations

import math

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from speclib.checks import distributions as checks
from speclib.distributions import warp
from speclib.exercises import Todo, attempt, guess, show_source


@pytest.fixture(autouse=True)
def exercises_as_found(monkeypatch):
    monkeypatch.delenv("SPECLIB_SOLUTIONS", raising=False)


def doubles(fn):
    assert fn(2) == 4, "With 2, it is 4."


def reference(x):
    return 2 * x


def test_an_exercise_that_is_not_done_says_so_and_the_reference_stands_in(capsys):
    def mine(x):
        raise Todo

    assert attempt(mine, doubles, reference) is reference
    assert "mine: not done yet" in capsys.readouterr().out


def test_a_right_answer_is_the_one_that_is_used(capsys):
    def mine(x):
        return x + x

    assert attempt(mine, doubles, reference) is mine
    assert "mine: right" in capsys.readouterr().out


def test_a_wrong_answer_names_the_case():
    with pytest.raises(AssertionError, match="With 2, it is 4"):
        attempt(lambda x: x, doubles, reference)


CHECK = """
from speclib import attempt
from speclib.exercises import answer
def doubles(fn):
    assert answer("With 2", fn, 2) == 4, "With 2, it is 4."
"""


@pytest.mark.parametrize(
    ("mine", "shown"),
    [
        ("def mine(x):\n    return x", ["Not right yet. With 2, it is 4."]),
        (
            "def mine(x):\n    y = x\n    return y.real.size",
            [
                "Not right yet. With 2, your function raised AttributeError: 'int' object has no attribute 'size'",
                "  line 3 of your cell: return y.real.size",
            ],
        ),
    ],
)
def test_a_notebook_shows_a_wrong_answer_as_a_sentence(mine, shown):
    """Not as the traceback through a checker that the reader has never seen."""
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell(x) for x in (CHECK, mine, "attempt(mine, doubles, lambda x: 2 * x)")]
    NotebookClient(nb, timeout=60, kernel_name="python3", allow_errors=True).execute()
    assert [o.traceback for o in nb.cells[-1].outputs] == [shown]


def test_solutions_take_the_reference_and_still_check_it(monkeypatch, capsys):
    monkeypatch.setenv("SPECLIB_SOLUTIONS", "1")
    assert attempt(lambda x: x, doubles, reference) is reference
    assert "the course's answer is used" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="With 2, it is 4"):
        attempt(reference, doubles, lambda x: x)


def test_a_guess_is_told_as_it_was_typed():
    assert [guess(x) for x in (None, 0, 0.8, 1e-05, "K = 4")] == ["none yet", "0", "0.8", "1e-05", "K = 4"]


# What readers write. Each is judged by the checker of its exercise, and has to be told the fragment.


def plain(z, t):
    e = torch.exp(z / t)
    return e / e.sum()


def shift_first(z, t):
    e = ((z - z.max()) / t).exp()
    return e / e.sum()


RIGHT_SOFTMAX = [checks.softmax_answer, shift_first, lambda z, t: torch.softmax(z / t, -1)]
RIGHT_SOFTMAX += [lambda z, t: shift_first(z.double(), t), lambda z, t: shift_first(z, t).tolist()]
WRONG_SOFTMAX = {
    "no shift": (plain, "1000, 999, 0"),
    "shift by the mean": (lambda z, t: plain(z - z.mean(), t), "1000"),
    "shift upwards": (lambda z, t: plain(z + z.max(), t), "1000"),
    "temperature after the softmax": (lambda z, t: torch.softmax(z, -1) / t, "temperature 2"),
    "after it, rescaled": (lambda z, t: torch.softmax(torch.softmax(z, -1) / t, -1), "temperature 1"),
    "temperature left out": (lambda z, t: torch.softmax(z, -1), "temperature 2"),
    "temperature multiplies": (lambda z, t: torch.softmax(z * t, -1), "temperature 2"),
    "power of p, not rescaled": (lambda z, t: torch.softmax(z, -1) ** (1 / t), "temperature 2"),
    "base 2": (lambda z, t: 2 ** (z / t - (z / t).max()) / (2 ** (z / t - (z / t).max())).sum(), "temperature 1"),
    "not divided by the sum": (lambda z, t: ((z - z.max()) / t).exp(), "temperature 1"),
    "the logits themselves": (lambda z, t: z / z.sum(), "temperature 1"),
    "logarithm": (lambda z, t: torch.log_softmax(z / t, -1), "temperature 1"),
    "holes filled": (lambda z, t: torch.softmax(z.nan_to_num(neginf=-1.0) / t, -1), "impossible token"),
    "no return": (lambda z, t: None, "return"),
    "one number": (lambda z, t: torch.softmax(z / t, -1).max(), "shape"),
    "a word": (lambda z, t: "p", "should return a tensor"),
    "a crash": (lambda z, t: z.sofmax(), "With logits 1, 2, 3.*raised AttributeError"),
    "an assertion of its own": (lambda z, t: (_ for _ in ()).throw(AssertionError("no")), "raised AssertionError"),
    "input changed": (lambda z, t: z.sub_(z.max()).div_(t).exp_().div_(z.sum()), "changed its input"),
}


def cut(p, keep):
    values, order = p.sort(descending=True)
    before = values.cumsum(0) - values
    return torch.zeros_like(p).scatter(0, order, torch.where(keep(values, before), values, 0.0))


def scaled(p):
    return p / p.sum()


RIGHT_TOP_P = [
    checks.top_p_answer,
    lambda p, m: scaled(cut(p, lambda v, before: before < m - 1e-6)),
    lambda p, m: warp(p.log(), top_p=m),
]
WRONG_TOP_P = {
    "drops the crossing token": (lambda p, m: scaled(cut(p, lambda v, b: b + v < m)), "crosses the line stays"),
    "drops it unless alone": (
        lambda p, m: scaled(cut(p, lambda v, b: (b + v < m) | (b == 0))),
        "crosses the line stays",
    ),
    "keeps one too many": (lambda p, m: scaled(cut(p, lambda v, b: b < m + 0.06)), "mass 0.60"),
    "not rescaled": (lambda p, m: cut(p, lambda v, b: b < m - 1e-6), "sum to 1 again"),
    "rescaled by a softmax": (lambda p, m: torch.softmax(cut(p, lambda v, b: b < m - 1e-6), 0), "stay"),
    "min-p instead": (lambda p, m: scaled(torch.where(p >= m * p.max(), p, 0.0)), "stay"),
    "order not restored": (
        lambda p, m: scaled(cut(p, lambda v, b: b < m - 1e-6)).sort(descending=True).values,
        "stay, but yours keeps",
    ),
    "unsorted": (lambda p, m: scaled(torch.where(p.cumsum(0) - p < m - 1e-6, p, 0.0)), "stay, but yours keeps"),
    "least likely first": (lambda p, m: scaled(torch.where(p < 0.2, p, 0.0)), "stay, but yours keeps"),
    "nothing cut": (lambda p, m: p.clone(), "mass 0.60"),
    "equal shares": (lambda p, m: scaled((cut(p, lambda v, b: b < m - 1e-6) > 0).float()), "proportions"),
    "only the kept ones": (lambda p, m: p[p > 0.2] / p[p > 0.2].sum(), "shape"),
    "not a number": (lambda p, m: p / 0.0 * 0.0, "stay, but yours keeps"),
    "input changed": (lambda p, m: p.mul_(1.0).sub_(0.01), "changed its input"),
}


def log_p(z):
    return z.log_softmax(-1)


RIGHT_SEQUENCE = [
    checks.sequence_log_prob_answer,
    lambda z, ids: log_p(z)[range(len(ids) - 1), ids[1:]].sum(),
    lambda z, ids: sum(math.log(torch.softmax(z[i], -1)[ids[i + 1]]) for i in range(len(ids) - 1)),
]
WRONG_SEQUENCE = {
    "one row too late": (lambda z, ids: log_p(z)[range(1, len(ids)), ids[1:]].sum(), "row after it"),
    "row i for token i": (lambda z, ids: log_p(z)[range(len(ids)), ids].sum(), "reads row i for token i"),
    "first token counted": (
        lambda z, ids: log_p(z)[range(len(ids) - 1), ids[1:]].sum() + log_p(z)[0, ids[0]],
        "nothing predicts",
    ),
    "first token from the last row": (
        lambda z, ids: sum(log_p(z)[i - 1, ids[i]] for i in range(len(ids))),
        "nothing predicts",
    ),
    "probabilities multiplied": (
        lambda z, ids: math.prod(float(log_p(z)[i, ids[i + 1]].exp()) for i in range(len(ids) - 1)),
        "logarithm is asked for",
    ),
    "multiplied, then the logarithm": (
        lambda z, ids: log_p(z)[range(len(ids) - 1), ids[1:]].exp().prod().log(),
        "2,000 tokens",
    ),
    "multiplied, and math.log of 0": (
        lambda z, ids: math.log(math.prod(log_p(z)[range(len(ids) - 1), ids[1:]].exp().tolist())),
        "2,000 tokens.*ValueError",
    ),
    "sign": (lambda z, ids: -log_p(z)[range(len(ids) - 1), ids[1:]].sum(), "sign"),
    "mean": (lambda z, ids: log_p(z)[range(len(ids) - 1), ids[1:]].mean(), "With ids"),
    "last token left out": (lambda z, ids: log_p(z)[range(len(ids) - 2), ids[1:-1]].sum(), "With ids"),
    "no softmax": (lambda z, ids: z[range(len(ids) - 1), ids[1:]].sum(), "constant added"),
    "softmax over positions": (lambda z, ids: z.log_softmax(0)[range(len(ids) - 1), ids[1:]].sum(), "With ids"),
    "base 2": (lambda z, ids: log_p(z)[range(len(ids) - 1), ids[1:]].sum() / math.log(2), "With ids"),
    "a vector": (lambda z, ids: log_p(z)[range(len(ids)), ids], "one number"),
}


@pytest.mark.parametrize("check, answers", [
    (checks.softmax, RIGHT_SOFTMAX), (checks.top_p, RIGHT_TOP_P), (checks.sequence_log_prob, RIGHT_SEQUENCE),
])  # fmt: skip
def test_right_answers_pass(check, answers):
    for fn in answers:
        check(fn)


@pytest.mark.parametrize("check, wrong", [
    *(pytest.param(checks.softmax, w, id=f"softmax, {n}") for n, w in WRONG_SOFTMAX.items()),
    *(pytest.param(checks.top_p, w, id=f"top_p, {n}") for n, w in WRONG_TOP_P.items()),
    *(pytest.param(checks.sequence_log_prob, w, id=f"sequence, {n}") for n, w in WRONG_SEQUENCE.items()),
])  # fmt: skip
def test_wrong_answers_are_told_what_is_wrong(check, wrong):
    fn, fragment = wrong
    with pytest.raises(AssertionError, match=f"(?s){fragment}") as caught:
        check(fn)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("check", [checks.softmax, checks.top_p, checks.sequence_log_prob])
def test_a_stub_reaches_attempt_as_not_done(check):
    def stub(*_):
        raise Todo

    with pytest.raises(Todo):
        check(stub)


def test_show_source_shows_the_code_with_a_short_docstring(monkeypatch):
    shown = []
    monkeypatch.setattr("speclib.exercises.display", lambda data, raw: shown.append(data))
    show_source(warp)
    show_source(checks.softmax)
    text = shown[0]["text/plain"]
    assert text.startswith("# speclib/distributions.py\ndef warp(")
    assert text.rstrip().endswith("return weights / weights.sum(-1, keepdim=True)")
    assert "transformers' processors" not in text
    compile(text, "shown", "exec")
    assert shown[0]["text/markdown"] == f"```python\n{text}\n```"
    compile(shown[1]["text/plain"], "shown", "exec")
