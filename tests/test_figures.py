"""Figures are right in their numbers, and live ones move at every control, in place, and show their errors."""

from __future__ import annotations

import base64
import json
import re

import anywidget
import ipywidgets as widgets
import plotly.graph_objects as go
import pytest
import torch
from boards import accepted, controls

from speclib.distributions import Rng, warp
from speclib.figures import live, page, style
from speclib.figures.compare import counts_beside_p, overlap_bars
from speclib.figures.distribution import distribution_html, interval_html, slice_of
from speclib.figures.next_token import NextToken
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
    return NextToken(logits_after, token_text, "abc", rng=Rng(3))


def bars(page):
    """Of each row its name, what is kept and cut, and its label."""
    found = []
    for row in page.split('class="row"')[1:]:
        (name,), (label,) = re.findall(r'class="name">([^<]*)<', row), re.findall(r'class="label"[^>]*>([^<]*)<', row)
        size = {kind: float(w) / 100 for kind, w in re.findall(r'class="(kept|cut)" style="[^"]*width:([\d.]+)%', row)}
        found.append((name, size.get("kept", 0.0), size.get("cut", 0.0), label))
    return found


def slices(page):
    """Where each slice begins and how wide it is."""
    found = re.findall(r'<i class="(?:slice|cut)" style="left:([\d.]+)%;width:([\d.]+)%[^"]*" title="[^"]* to ', page)
    return [(float(a) / 100, float(b) / 100) for a, b in found]


def number(page):
    """The u that is marked."""
    return [float(x) for x in re.findall(r'class="u" style="left:[\d.]+%" title="u = ([\d.]+)"', page)]


def heads(page):
    return re.findall(r'class="head"[^>]*>(.*?)</div>', page)


def test_bars_hold_p_and_what_is_cut_and_add_up_to_one():
    logits = logits_after("abc")
    before, p = warp(logits), warp(logits, top_p=0.7)
    order = logits.topk(5).indices
    page = distribution_html(before, p, order, token_text)
    names, kept, cut, _ = zip(*bars(page), strict=True)
    assert kept[:5] == pytest.approx(p[order].tolist(), abs=6e-6)
    assert sum(kept) == pytest.approx(1, abs=5e-5)
    assert sum(cut) == pytest.approx(float(before[p == 0].sum()), abs=5e-5)
    assert f"<b>{int((p > 0).sum())}</b> of 300 tokens" in heads(page)[0]
    assert f"Cut: <b>{float(before[p == 0].sum()):.3f}</b> of the mass" in heads(page)[0]
    assert names[-1] == "295 others"


def test_a_cut_token_says_so():
    logits = logits_after("abc")
    page = distribution_html(warp(logits), warp(logits, top_k=2), logits.topk(4).indices, token_text)
    assert [label.endswith("cut") for *_, label in bars(page)] == [False, False, True, True, True]
    assert [cut > 0 for _, _, cut, _ in bars(page)] == [False, False, True, True, True]
    assert page.count('class="was"') == 2  # where the two that are left ended before


def test_the_drawn_token_is_marked_also_among_the_others():
    logits = logits_after("abc")
    order = logits.topk(3).indices
    rare = int(logits.argmin())
    for drawn, row in ((int(order[1]), 1), (rare, 3)):
        labels = [label for *_, label in bars(distribution_html(warp(logits), warp(logits), order, token_text, drawn))]
        assert [("drawn" in label) for label in labels] == [i == row for i in range(4)]


def test_a_token_with_quotes_ends_no_attribute():
    """Its name stands in the hint of its bar, too."""
    page = distribution_html(P, P, torch.arange(6), lambda i: f'"{WORDS[i]}')
    assert 'title="&#34;THE: 0.40000"' in page and 'title=""' not in page


def test_a_vocabulary_that_is_shown_whole_has_no_others():
    found = bars(distribution_html(P, P, torch.arange(6), lambda i: WORDS[i]))
    assert [name for name, *_ in found] == list(WORDS)
    assert [kept for _, kept, *_ in found] == pytest.approx(P.tolist())


def test_slices_fill_the_interval_and_u_is_on_the_one_that_is_named():
    page = interval_html(P, torch.arange(6), lambda i: WORDS[i], u=0.72)
    ends = [*(start for start, _ in slices(page)), 1.0]
    for (start, width), following in zip(slices(page), ends[1:], strict=True):
        assert start + width == pytest.approx(following, abs=2e-6)
    assert number(page) == [0.72]
    assert "<b>CAT</b>, from 0.6500 to 0.8000" in heads(page)[0]


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
    ):
        made = go.Figure(fig)
        assert made.layout.paper_bgcolor == "rgba(0,0,0,0)"
        assert all(axis.fixedrange for axis in made.select_xaxes())


@pytest.mark.parametrize("text, label", [
    (" Paris", "␣Paris"), ("\n\n", "⏎⏎"), ("\t", "⇥"), ("<b>&", "&lt;b&gt;&amp;"), ("$x$", "&#36;x&#36;"),
    ("", "(empty)"), ("\x00", "\\x00"), ('"a"', "&#34;a&#34;"), ("a" * 40, "a" * 13 + "…"),
])  # fmt: skip
def test_token_names_can_be_read(text, label):
    assert style.readable(text) == label


def test_a_small_probability_is_not_shown_as_zero():
    assert [style.share(x) for x in (0.0, 1e-9, 0.0004, 0.0006, 0.5, 1.0)] == [
        "0", "<0.001", "<0.001", "0.001", "0.500", "1.000",
    ]  # fmt: skip


def test_every_control_moves_the_figure_from_end_to_end(board):
    labels = controls(board)
    assert set(labels) == {"prompt", "temperature", "top-k", "top-p", "min-p", "Draw"}
    for name in ("temperature", "top-k", "top-p", "min-p"):
        widget = labels[name]
        ends = [widget.options[0][1], widget.options[-1][1]] if name == "top-k" else [widget.min, widget.max]
        start, seen = widget.value, []
        for value in ends:
            widget.value = value
            seen.append([kept for _, kept, *_ in bars(board.page.value)])
            assert sum(seen[-1]) == pytest.approx(1, abs=1e-4)
        assert seen[0] != seen[1], name
        widget.value = start


def test_the_figure_shows_what_warp_gives(board):
    labels = controls(board)
    labels["temperature"].value, labels["top-p"].value, labels["min-p"].value = 0.7, 0.9, 0.05
    logits = logits_after("abc")
    p = warp(logits, 0.7, None, 0.9, 0.05)
    kept = [kept for _, kept, *_ in bars(board.page.value)[:10]]
    assert kept == pytest.approx(p[logits.topk(10).indices].tolist(), abs=6e-6)


def test_draw_puts_u_on_the_interval_and_it_stays_while_sliders_move(board):
    labels = controls(board)
    assert number(board.page.value) == []
    labels["Draw"].click()
    (u,) = number(board.page.value)
    assert u == pytest.approx(float(Rng(3).uniform(1)), abs=5.1e-5)
    labels["temperature"].value = 2.0
    assert number(board.page.value) == [u]
    labels["Draw"].click()
    assert number(board.page.value) != [u]


def test_an_error_in_a_callback_is_seen_and_the_figure_stays(board):
    labels, before = controls(board), board.page.value
    for prompt, word in (("", "the prompt is empty"), ("nan", "NaN")):
        with pytest.raises(ValueError, match=word):
            labels["prompt"].value = prompt
        assert word in board.error.value and 'role="alert"' in board.error.value
        assert board.page.value == before
    labels["prompt"].value = "fine again"
    assert board.error.value == ""


def test_boards_share_nothing_and_touch_no_global_randomness():
    one, two = (NextToken(logits_after, token_text, "abc", rng=Rng(1)) for _ in range(2))
    state = torch.random.get_rng_state()
    controls(one)["temperature"].value = 0.0
    controls(one)["Draw"].click()
    assert controls(two)["temperature"].value == 1.0
    assert number(two.page.value) == []
    assert torch.equal(torch.random.get_rng_state(), state)


# --- boards with a plotly figure ----------------------------------------------------------------------------


def plotted():
    slider = widgets.FloatSlider(0.5, min=0, max=1, description="x")

    def draw():
        if slider.value == 1:
            raise ValueError("too far")
        return style.figure([style.bar(x=[0], y=[slider.value])], 200, "a bar")

    return live.Board([slider], draw, "Figure: a bar.", [slider])


def test_a_control_moves_a_plotted_figure_in_place_and_an_error_is_seen():
    board = plotted()
    (slider,), plot = controls(board).values(), board.plot
    slider.value = 0.7
    assert board.shown["data"][0]["y"] == [0.7] and board.plot is plot and accepted(board)
    with pytest.raises(ValueError, match="too far"):
        slider.value = 1.0
    assert "too far" in board.error.value and board.shown["data"][0]["y"] == [0.7]
    slider.value = 0.2
    assert board.error.value == "" and board.shown["data"][0]["y"] == [0.2]


@pytest.mark.parametrize("kind", ["page", "plot"])
def test_a_board_is_a_widget_with_a_fixed_text_and_a_picture_only_on_demand(board, monkeypatch, kind):
    board, module = (board, page) if kind == "page" else (plotted(), live)
    monkeypatch.delenv(live.PICTURES, raising=False)
    data, _ = board._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and "image/png" not in data
    assert data["text/plain"].startswith("Figure:")
    monkeypatch.setenv(live.PICTURES, "1")
    monkeypatch.setattr(module, "picture", lambda *_: b"png of the shown figure")
    data, _ = board._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]) == b"png of the shown figure"


def test_plotly_itself_is_sent_once_and_what_changes_is_in_no_anywidget():
    """A page that gets 5 MB with each figure is late for some, and anywidget then hears nothing of them any more."""
    board, other = plotted(), plotted()
    assert board.plot.plotly is other.plot.plotly and "plotly.js" in board.plot.plotly.value[:99]
    assert len(json.dumps(board.plot.get_state())) < 10_000
    assert board.plot.figure.value == board.shown and not isinstance(board.plot.figure, anywidget.AnyWidget)
