"""Notebook 01 in the browser, as a reader works with it."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .lab import Board, Lab

PAGE = ".sl-dist"
# How wide the kept bar of each row is, measured against the axis.
KEPT = """all => all.map(row => {
  const width = e => e?.getBoundingClientRect().width ?? 0;
  return width(row.querySelector('.kept')) / width(row);
})"""
# Each slider, and the keys that bring it to where it stands at first.
SLIDERS = {"temperature": ["Home", *["ArrowRight"] * 20], "top-k": ["End"], "top-p": ["End"], "min-p": ["Home"]}


@pytest.fixture(scope="module")
def board(lab: Lab) -> Board:
    lab.read("01_distributions")
    return lab.paged(f"{PAGE}:has(.row)")


def kept(board: Board) -> list[float]:
    return board.box.locator(f"{PAGE} .row").evaluate_all(KEPT)


def names(board: Board) -> list[str]:
    return board.box.locator(f"{PAGE} .row .name").all_inner_texts()


def heads(board: Board) -> list[str]:
    return board.box.locator(f"{PAGE} .head").all_inner_texts()


def drawn(board: Board) -> list[float]:
    """The number u, where it stands on the interval."""
    (plot,) = board.box.locator(f"{PAGE} .slices").all()
    left, width = (plot.bounding_box()[key] for key in ("x", "width"))
    marks = [mark.bounding_box() for mark in board.box.locator(f"{PAGE} .u").all()]
    return [(mark["x"] + mark["width"] / 2 - left) / width for mark in marks]


def test_every_control_has_a_label_and_a_hint(board: Board):
    assert set(board.labels()) == {"prompt", *SLIDERS}
    expect(board.box.get_by_role("button", name="Draw")).to_be_visible()
    expect(board.control("prompt").get_by_placeholder("type a text")).to_be_visible()
    for label in SLIDERS:
        assert board.control(label).locator(".widget-label").get_attribute("title")
        # A label that does not fit would end in dots.
        assert board.control(label).locator(".widget-label").evaluate("e => e.scrollWidth <= e.clientWidth")


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_from_the_keyboard(board: Board, label: str):
    start, readouts, shapes = kept(board), [], []
    for key in ("Home", "End"):
        board.key(label, key)
        board.settle()
        readouts.append(board.readout(label))
        shapes.append(kept(board))
        assert sum(kept(board)) == pytest.approx(1, abs=0.01)
    assert readouts[0] != readouts[1]
    assert shapes[0] != shapes[1]
    board.key(label, *SLIDERS[label])
    board.settle()
    assert kept(board) == start


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_by_mouse(board: Board, label: str):
    start, shapes, readouts = kept(board), [], []
    for end in (-0.5, 1.5):
        board.drag(label, end)
        board.settle()
        readouts.append(board.readout(label))
        shapes.append(kept(board))
    assert readouts[0] != readouts[1]
    assert shapes[0] != shapes[1]
    board.key(label, *SLIDERS[label])
    board.settle()
    assert kept(board) == start


def test_greedy_leaves_one_bar_and_top_k_as_many_as_it_says(board: Board):
    board.key("temperature", "Home")
    board.settle()
    assert sorted(kept(board))[-2:] == pytest.approx([0, 1])
    board.key("temperature", *SLIDERS["temperature"])
    board.key("top-k", "Home", "ArrowRight", "ArrowRight")
    board.settle()
    assert sum(x > 0 for x in kept(board)) == 3
    assert heads(board)[0].startswith("3 of")
    board.key("top-k", *SLIDERS["top-k"])
    board.settle()


def test_draw_puts_u_into_the_slice_that_is_named(board: Board):
    assert drawn(board) == []
    seen = set()
    for _ in range(3):
        board.box.get_by_role("button", name="Draw").click()
        board.settle()
        u = float(re.match(r"u = (0\.\d{4}) is in the slice of", heads(board)[1])[1])
        assert drawn(board) == pytest.approx([u], abs=0.002)  # a pixel
        seen.add(u)
        assert sum("drawn" in label for label in board.box.locator(f"{PAGE} .label").all_inner_texts()) == 1
    assert len(seen) == 3


def test_another_prompt_gives_another_distribution(board: Board):
    before = kept(board), names(board)
    box = board.control("prompt").locator("input")
    box.fill("Once upon a time, there was a")
    box.press("Enter")
    board.settle()
    assert kept(board) != before[0] and names(board) != before[1]
    assert sum(kept(board)) == pytest.approx(1, abs=0.01)


def test_an_empty_prompt_says_so_and_the_figure_stays(board: Board):
    box, before = board.control("prompt").locator("input"), kept(board)
    box.fill("")
    box.press("Enter")
    expect(board.box.get_by_role("alert")).to_contain_text("the prompt is empty")
    assert kept(board) == before
    box.fill("The capital of France is")
    box.press("Enter")
    expect(board.box.get_by_role("alert")).to_have_count(0)
    board.settle()
    assert kept(board) != before


@pytest.mark.parametrize("label", SLIDERS)
def test_a_drag_answers_quickly(board: Board, label: str, capsys: pytest.CaptureFixture[str]):
    keys = ["ArrowRight", "ArrowLeft"] if SLIDERS[label] == ["Home"] else ["ArrowLeft", "ArrowRight"]
    times = sorted(board.latency(label, key, PAGE) for key in keys * 8)
    board.settle()
    by_mouse = board.drag_latency(label, PAGE)
    board.key(label, *SLIDERS[label])
    board.settle()
    with capsys.disabled():
        told = f"median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms; by mouse {by_mouse:.0f} ms"
        print(f"\n{label}, to the changed figure: {told}")
    # The course asks for 100 ms; a machine that also does other things must not fail here.
    assert statistics.median(times) < 1000


def test_stills(lab: Lab, board: Board, stills: Path):
    board.key("top-p", "End", *["ArrowLeft"] * 15)
    board.settle()
    for theme, name in (("JupyterLab Dark", "01_next_token_dark.png"), ("JupyterLab Light", "01_next_token.png")):
        lab.theme(theme)
        board.box.locator(".widget-vbox").first.screenshot(path=stills / name, scale="css")
        assert (stills / name).stat().st_size > 10_000
    lab.page.screenshot(path=stills / "01_distributions.png")
