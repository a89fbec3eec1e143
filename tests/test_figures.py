"""Figures are right in their numbers, and the live one moves at every control, in place, and shows its errors."""

from __future__ import annotations

import base64
import json

import anywidget
import plotly.graph_objects as go
import pytest
import torch
from boards import accepted, controls

from speclib.distributions import Rng, warp
from speclib.figures import live, style
from speclib.figures.compare import counts_beside_p, overlap_bars
from speclib.figures.distribution import distribution_bars, slice_of, unit_interval
from speclib.toy import WORDS, P, Q

VOCAB = 300


def logits_after(text):
    if text == "nan":
        return torch.full((VOCAB,), float("nan"))
    generator = torch.Generator().manual_seed(len(text))
    return torch.randn(VOCAB, generator=generator) * 3


def token_text(i):
    return f" t{i}"


@pytest.fixture
def board():
    return live.next_token(logits_after, token_text, "abc", rng=Rng(3))


def drawn_bars(fig):
    return fig["data"][0]["x"], fig["data"][1]["x"]


def test_bars_hold_p_and_what_is_cut_and_add_up_to_one():
    logits = logits_after("abc")
    before, p = warp(logits), warp(logits, top_p=0.7)
    order = logits.topk(5).indices
    fig = distribution_bars(before, p, order, token_text)
    kept, cut = drawn_bars(fig)
    assert kept[:5] == pytest.approx(p[order].tolist())
    assert sum(kept) == pytest.approx(1, abs=1e-6)
    assert sum(cut) == pytest.approx(float(before[p == 0].sum()), abs=1e-6)
    sentence = fig["layout"]["annotations"][0]["text"]
    assert f"<b>{int((p > 0).sum())}</b> of 300 tokens" in sentence
    assert f"Cut: <b>{float(before[p == 0].sum()):.3f}</b> of the mass" in sentence
    assert fig["layout"]["yaxis"]["ticktext"][-1] == "295 others"


def test_a_cut_token_is_hatched_and_says_so():
    logits = logits_after("abc")
    fig = distribution_bars(warp(logits), warp(logits, top_k=2), logits.topk(4).indices, token_text)
    assert fig["data"][1]["marker"]["pattern"]["shape"] == "/"
    assert [t.endswith("cut") for t in fig["data"][3]["text"]] == [False, False, True, True, True]


def test_the_drawn_token_is_marked_also_among_the_others():
    logits = logits_after("abc")
    order = logits.topk(3).indices
    rare = int(logits.argmin())
    for drawn, row in ((int(order[1]), 1), (rare, 3)):
        labels = distribution_bars(warp(logits), warp(logits), order, token_text, drawn)["data"][3]["text"]
        assert [("drawn" in label) for label in labels] == [i == row for i in range(4)]


def test_a_vocabulary_that_is_shown_whole_has_no_others():
    fig = distribution_bars(P, P, torch.arange(6), lambda i: WORDS[i])
    assert fig["layout"]["yaxis"]["ticktext"] == list(WORDS)
    assert drawn_bars(fig)[0] == pytest.approx(P.tolist())


def test_slices_fill_the_interval_and_u_is_on_the_one_that_is_named():
    fig = unit_interval(P, torch.arange(6), lambda i: WORDS[i], u=0.72)
    slices = fig["data"][0]
    for start, width, following in zip(slices["base"], slices["x"], [*slices["base"][1:], 1.0], strict=True):
        assert start + width == pytest.approx(following)
    assert fig["data"][2]["x"] == [0.72]
    assert "<b>CAT</b>, from 0.6500 to 0.8000" in fig["layout"]["annotations"][0]["text"]


@pytest.mark.parametrize("u, word", [(0.0, "THE"), (0.4, "A"), (0.9601, "RAN"), (1 - 2**-53, "RAN")])
def test_slice_of_both_ends(u, word):
    token, start, end = slice_of(P, u)
    assert WORDS[token] == word
    assert start - 1e-12 <= u < end + 1e-12


def test_slices_are_as_likely_as_p():
    rng = Rng(0)
    p = warp(logits_after("abc"), top_k=5).double()
    counts = torch.bincount(torch.tensor([slice_of(p, float(u))[0] for u in rng.uniform(4000)]), minlength=VOCAB)
    kept = p > 0
    assert counts[~kept].sum() == 0
    assert ((counts[kept] - 4000 * p[kept]).abs() < 4 * (4000 * p[kept]).sqrt()).all()


def test_the_overlap_figure_states_alpha_and_splits_each_bar():
    fig = overlap_bars(WORDS, P, Q)
    assert "<b>0.70</b>" in fig["layout"]["annotations"][0]["text"]
    shared, only_q, only_p = fig["data"][0]["y"], fig["data"][2]["y"], fig["data"][3]["y"]
    assert sum(shared) == pytest.approx(0.70)
    for i in range(6):
        assert shared[i] + (only_q[i] or 0) == pytest.approx(float(Q[i]))
        assert shared[i] + (only_p[i] or 0) == pytest.approx(float(P[i]))


def test_the_counts_figure_shows_shares_and_two_standard_deviations():
    counts = torch.tensor([40, 25, 15, 10, 6, 4])
    fig = counts_beside_p(WORDS, counts, P)
    assert fig["data"][0]["y"] == pytest.approx(P.tolist())
    assert fig["data"][1]["error_y"]["array"][0] == pytest.approx(2 * (0.4 * 0.6 / 100) ** 0.5)


def test_every_figure_is_one_that_plotly_accepts():
    for fig in (
        overlap_bars(WORDS, P, Q),
        counts_beside_p(WORDS, torch.arange(6), P),
        style.below(distribution_bars(P, P, torch.arange(6), str), unit_interval(P, torch.arange(6), str)),
    ):
        made = go.Figure(fig)
        assert made.layout.paper_bgcolor == "rgba(0,0,0,0)"
        assert all(axis.fixedrange for axis in made.select_xaxes())


@pytest.mark.parametrize("text, label", [
    (" Paris", "␣Paris"), ("\n\n", "⏎⏎"), ("\t", "⇥"), ("<b>&", "&lt;b&gt;&amp;"), ("$x$", "&#36;x&#36;"),
    ("", "(empty)"), ("\x00", "\\x00"), ("a" * 40, "a" * 13 + "…"),
])  # fmt: skip
def test_token_names_can_be_read(text, label):
    assert style.readable(text) == label


def test_a_small_probability_is_not_shown_as_zero():
    assert [style.share(x) for x in (0.0, 1e-9, 0.0004, 0.0006, 0.5, 1.0)] == [
        "0", "<0.001", "<0.001", "0.001", "0.500", "1.000",
    ]  # fmt: skip


def test_every_control_moves_the_figure_from_end_to_end_in_place(board):
    plot = board.plot
    labels = controls(board)
    assert set(labels) == {"prompt", "temperature", "top-k", "top-p", "min-p", "Draw"}
    for name in ("temperature", "top-k", "top-p", "min-p"):
        widget = labels[name]
        ends = [widget.options[0][1], widget.options[-1][1]] if name == "top-k" else [widget.min, widget.max]
        start, seen = widget.value, []
        for value in ends:
            widget.value = value
            seen.append(tuple(board.shown["data"][0]["x"]))
            assert accepted(board)
            assert sum(seen[-1]) == pytest.approx(1, abs=1e-5)
        assert seen[0] != seen[1], name
        widget.value = start
    assert board.plot is plot


def test_the_figure_shows_what_warp_gives(board):
    labels = controls(board)
    labels["temperature"].value, labels["top-p"].value, labels["min-p"].value = 0.7, 0.9, 0.05
    logits = logits_after("abc")
    p = warp(logits, 0.7, None, 0.9, 0.05)
    assert list(board.shown["data"][0]["x"][:10]) == pytest.approx(p[logits.topk(10).indices].tolist())


def test_draw_puts_u_on_the_interval_and_it_stays_while_sliders_move(board):
    labels = controls(board)
    assert board.shown["data"][-1]["x"] == [None]
    labels["Draw"].click()
    (u,) = board.shown["data"][-1]["x"]
    assert u == pytest.approx(float(Rng(3).uniform(1)))
    labels["temperature"].value = 2.0
    assert board.shown["data"][-1]["x"] == [u]
    labels["Draw"].click()
    assert board.shown["data"][-1]["x"] != [u]


def test_an_error_in_a_callback_is_seen_and_the_figure_stays(board):
    labels, before = controls(board), board.shown
    for prompt, word in (("", "the prompt is empty"), ("nan", "NaN")):
        with pytest.raises(ValueError, match=word):
            labels["prompt"].value = prompt
        assert word in board.error.value and 'role="alert"' in board.error.value
        assert board.shown is before
    labels["prompt"].value = "fine again"
    assert board.error.value == ""


def test_boards_share_nothing_and_touch_no_global_randomness():
    one, two = (live.next_token(logits_after, token_text, "abc", rng=Rng(1)) for _ in range(2))
    state = torch.random.get_rng_state()
    controls(one)["temperature"].value = 0.0
    controls(one)["Draw"].click()
    assert controls(two)["temperature"].value == 1.0
    assert two.shown["data"][-1]["x"] == [None]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_board_is_a_widget_with_a_fixed_text_and_a_picture_only_on_demand(board, monkeypatch):
    monkeypatch.delenv(live.PICTURES, raising=False)
    data, _ = board._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and "image/png" not in data
    assert data["text/plain"].startswith("Figure:")
    monkeypatch.setenv(live.PICTURES, "1")
    monkeypatch.setattr(live, "picture", lambda fig: b"png of the shown figure")
    data, _ = board._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]) == b"png of the shown figure"


def test_plotly_itself_is_sent_once_and_what_changes_is_in_no_anywidget(board):
    """A page that gets 5 MB with each figure is late for some, and anywidget then hears nothing of them any more."""
    other = live.next_token(logits_after, token_text, "abcd")
    assert board.plot.plotly is other.plot.plotly and "plotly.js" in board.plot.plotly.value[:99]
    assert len(json.dumps(board.plot.get_state())) < 10_000
    assert board.plot.figure.value == board.shown and not isinstance(board.plot.figure, anywidget.AnyWidget)
