"""Notebook 01 in the browser, as a reader works with it."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .lab import Board, Lab

KEPT, LABELS, U = 0, 3, 6  # the traces that are read: kept bars, the numbers beside them, the drawn number
# Each slider, and the keys that bring it to where it stands at first.
SLIDERS = {"temperature": ["Home", *["ArrowRight"] * 20], "top-k": ["End"], "top-p": ["End"], "min-p": ["Home"]}


@pytest.fixture(scope="module")
def board(lab: Lab) -> Board:
    lab.read("01_distributions")
    return lab.board()


def test_every_control_has_a_label_and_a_hint(board: Board):
    assert set(board.labels()) == {"prompt", *SLIDERS}
    expect(board.box.get_by_role("button", name="Draw")).to_be_visible()
    expect(board.control("prompt").get_by_placeholder("type a text")).to_be_visible()
    for label in SLIDERS:
        assert board.control(label).locator(".widget-label").get_attribute("title")
        # A label that does not fit would end in dots.
        assert board.control(label).locator(".widget-label").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_the_figure_has_no_buttons_of_its_own(board: Board):
    assert board.plot.locator(".modebar-btn").count() == 0
    assert board.plot.get_by_text("Share").count() == 0


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_from_the_keyboard(board: Board, label: str):
    start, readouts, shapes = board.bars(), [], []
    for key in ("Home", "End"):
        board.key(label, key)
        board.settle()
        readouts.append(board.readout(label))
        shapes.append(board.bars())
        assert sum(board.trace(KEPT, "x")) == pytest.approx(1, abs=1e-4)
    assert readouts[0] != readouts[1]
    assert shapes[0] != shapes[1]
    board.key(label, *SLIDERS[label])
    board.settle()
    assert board.bars() == start


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_by_mouse(board: Board, label: str):
    start, shapes, readouts = board.bars(), [], []
    for end in (-0.5, 1.5):
        board.drag(label, end)
        board.settle()
        readouts.append(board.readout(label))
        shapes.append(board.bars())
    assert readouts[0] != readouts[1]
    assert shapes[0] != shapes[1]
    board.key(label, *SLIDERS[label])
    board.settle()
    assert board.bars() == start


def test_greedy_leaves_one_bar_and_top_k_as_many_as_it_says(board: Board):
    board.key("temperature", "Home")
    board.settle()
    assert sorted(board.trace(KEPT, "x"))[-2:] == [0, 1]
    board.key("temperature", *SLIDERS["temperature"])
    board.key("top-k", "Home", "ArrowRight", "ArrowRight")
    board.settle()
    assert sum(x > 0 for x in board.trace(KEPT, "x")) == 3
    assert board.sentences()[0].startswith("<b>3</b> of")
    board.key("top-k", *SLIDERS["top-k"])
    board.settle()


def test_draw_puts_u_into_the_slice_that_is_named(board: Board):
    assert board.trace(U, "x") == [None]
    seen = set()
    for _ in range(3):
        board.box.get_by_role("button", name="Draw").click()
        board.settle()
        (u,) = board.trace(U, "x")
        seen.add(u)
        assert 0 <= u < 1
        assert f"<b>{u:.4f}</b> is in the slice of" in board.sentences()[1]
        assert sum("drawn" in label for label in board.trace(LABELS, "text")) == 1
    assert len(seen) == 3


def test_another_prompt_gives_another_distribution(board: Board):
    before, names = board.bars(), board.plot.evaluate("gd => gd.layout.yaxis.ticktext")
    box = board.control("prompt").locator("input")
    box.fill("Once upon a time, there was a")
    box.press("Enter")
    board.settle()
    assert board.bars() != before
    assert board.plot.evaluate("gd => gd.layout.yaxis.ticktext") != names
    assert sum(board.trace(KEPT, "x")) == pytest.approx(1, abs=1e-4)


def test_an_empty_prompt_says_so_and_the_figure_stays(board: Board):
    box, before = board.control("prompt").locator("input"), board.bars()
    box.fill("")
    box.press("Enter")
    expect(board.box.get_by_role("alert")).to_contain_text("the prompt is empty")
    assert board.bars() == before
    box.fill("The capital of France is")
    box.press("Enter")
    expect(board.box.get_by_role("alert")).to_have_count(0)
    board.settle()
    assert board.bars() != before


@pytest.mark.parametrize("label", SLIDERS)
def test_a_drag_answers_quickly(board: Board, label: str, capsys: pytest.CaptureFixture[str]):
    keys = ["ArrowRight", "ArrowLeft"] if SLIDERS[label] == ["Home"] else ["ArrowLeft", "ArrowRight"]
    times = sorted(board.latency(label, key) for key in keys * 8)
    board.settle()
    by_mouse = board.drag_latency(label)
    board.key(label, *SLIDERS[label])
    board.settle()
    with capsys.disabled():
        told = f"median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms; by mouse {by_mouse:.0f} ms"
        print(f"\n{label}, to the changed figure: {told}")
    # The course asks for 100 ms; a machine that also does other things must not fail here.
    assert statistics.median(times) < 1000


def test_a_page_that_is_late_hears_of_every_change(lab: Lab, board: Board):
    """As on a busy machine: what is not set up within two seconds, anywidget sends nothing to any more."""
    lab.page.evaluate("window.timeout = AbortSignal.timeout; AbortSignal.timeout = () => window.timeout(0)")
    lab.run(lab.cell("next_token("))
    lab.page.evaluate("AbortSignal.timeout = window.timeout")
    before = board.bars()
    board.key("temperature", "End")
    board.settle()
    assert board.bars() != before
    board.key("temperature", *SLIDERS["temperature"])
    board.settle()
    assert board.bars() == before


def test_stills(lab: Lab, board: Board, stills: Path):
    board.key("top-p", "End", *["ArrowLeft"] * 15)
    board.settle()
    for theme, name in (("JupyterLab Dark", "01_next_token_dark.png"), ("JupyterLab Light", "01_next_token.png")):
        lab.theme(theme)
        board.box.locator(".widget-vbox").first.screenshot(path=stills / name, scale="css")
        assert (stills / name).stat().st_size > 10_000
    lab.page.screenshot(path=stills / "01_distributions.png")
