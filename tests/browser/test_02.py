"""Notebook 02 in the browser: the curve grows while it is measured, can be interrupted, and the roofline is dragged."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from .lab import LINES, Board, Lab

TARGET, TARGET_POINTS, RIDGE = 0, 1, 4  # traces of the roofline figure
SLIDERS = ("GB/s", "TFLOP/s", "weights", "sequences")
SPARK = 273, 125
POINTS = """gd => gd.data.map(t => Array.from(t.y).filter(y => y !== null).length)"""
# Every number of points that a frame has shown, noted in the page itself: asking from outside misses some.
NOTE_POINTS = """() => {
  window.seen = new Set();
  const look = () => {
    const gd = document.querySelector('.jp-OutputArea-output .widget-vbox .js-plotly-plot');
    if (gd?.data) window.seen.add(Array.from(gd.data[1].y).filter(y => y !== null).length);
    if (window.seen) requestAnimationFrame(look);
  };
  look();
}"""


@pytest.fixture(scope="module")
def board(lab: Lab) -> Board:
    lab.read("02_verify_cost", {"TRIALS = 5": "TRIALS = 2", "trials=3)": "trials=1)"})
    return lab.board()


def curve(lab: Lab, number: int = 0) -> Locator:
    """The plot of a curve that was measured live: the target's and draft's, then the loop's."""
    plots = lab.page.locator(".jp-OutputArea-output .widget-vbox .js-plotly-plot")
    index = (0, 2)[number]  # the roofline stands between them
    plots.nth(index).scroll_into_view_if_needed()
    expect(plots.nth(index).locator(".main-svg").first).to_be_visible(timeout=30_000)
    return plots.nth(index)


def sentence(plot: Locator) -> str:
    return plot.evaluate("gd => gd.layout.annotations[0].text")


def choose(board: Board, label: str, option: str) -> None:
    board.control(label).locator("select").select_option(label=option)
    board.settle()


def spark(board: Board) -> None:
    """As the notebook shows the figure at first."""
    choose(board, "machine", "H200")
    choose(board, "machine", "Spark")
    choose(board, "models", "Llama 8B and 1B")
    board.key("weights", "Home", "ArrowRight")
    board.key("sequences", "Home")
    board.settle()


def test_the_measured_curve_has_every_point_and_says_v(lab: Lab, board: Board):
    plot = curve(lab)
    names = plot.evaluate("gd => gd.data.length / 2")
    assert plot.evaluate(POINTS) == [7] * int(2 * names)
    assert sentence(plot).startswith("<b>v(7) = ") and "passes" not in sentence(plot)
    symbols = plot.evaluate("gd => gd.data[1].marker.symbol")
    assert symbols == ["circle"] * 7


def test_the_loop_has_a_curve_of_its_own(lab: Lab, board: Board, capsys: pytest.CaptureFixture[str]):
    plot = curve(lab, 1)
    one_pass, loop = (plot.evaluate("(gd, i) => Array.from(gd.data[i].y)", i) for i in (1, 3))
    assert len(one_pass) == len(loop) == 5 and all(map(math.isfinite, one_pass + loop))
    # How often the loop passes through the model is counted in tests/test_cost_figures.py; a time is only told.
    with capsys.disabled():
        print(
            f"\n16 tokens: {loop[-1] / one_pass[-1]:.1f} × one pass in the loop, {loop[-1] / loop[0]:.1f} × one token"
        )


def run_curve(lab: Lab, trials: str, others: str) -> None:
    """Start the cell of the live curve anew, with another number of passes."""
    lab.edit(trials, others)
    lab.start(lab.cell("times = live_curve"))


def finished(lab: Lab) -> None:
    lab.finish(120)
    lab.page.wait_for_timeout(800)


def passes(plot: Locator) -> int:
    words = sentence(plot).removeprefix("<b>").split("·")[-1].split()
    return int(words[0]) if "of" in words else -1


def test_points_appear_one_by_one_and_an_interruption_keeps_them(lab: Lab, board: Board):
    lab.page.evaluate(NOTE_POINTS)
    run_curve(lab, "TRIALS = 2", "TRIALS = 200")
    lab.page.wait_for_timeout(500)
    for _ in range(400):
        if passes(curve(lab)) > 20:
            break
        lab.page.wait_for_timeout(60)
    seen = lab.page.evaluate("() => { const all = [...window.seen]; delete window.seen; return all; }")
    assert [n for n in seen if 0 < n < 7] and 7 in seen, seen
    assert any(s.endswith("-open") for s in curve(lab).evaluate("gd => gd.data[1].marker.symbol"))
    lab.interrupt()
    finished(lab)
    assert [o for o in lab.outputs() if o["output_type"] == "error"] == []
    assert any("Interrupted" in json.dumps(o) for o in lab.outputs())
    assert curve(lab).evaluate(POINTS)[1] == 7
    assert "of" in sentence(curve(lab))
    run_curve(lab, "TRIALS = 200", "TRIALS = 1")
    finished(lab)
    assert curve(lab).evaluate(POINTS)[1] == 7
    assert " passes" not in sentence(curve(lab))
    assert not any("Interrupted" in json.dumps(o) for o in lab.outputs())


def test_every_control_has_a_label_and_a_hint(board: Board):
    assert set(board.labels()) == {"models", "machine", *SLIDERS}
    for label in ("models", "machine", *SLIDERS):
        name = board.control(label).locator(".widget-label")
        assert name.get_attribute("title") or label not in SLIDERS
        assert name.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert board.plot.locator(".modebar-btn").count() == 0


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_roofline_from_the_keyboard(board: Board, label: str):
    spark(board)
    shapes = []
    for key in ("Home", "End"):
        board.key(label, key)
        board.settle()
        shapes.append((board.trace(TARGET, "x"), board.trace(TARGET, "y"), board.readout(label)))
    assert shapes[0][:2] != shapes[1][:2]
    assert shapes[0][2] != shapes[1][2]


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_roofline_by_mouse(board: Board, label: str):
    spark(board)
    shapes = []
    for end in (-0.5, 1.5):
        board.drag(label, end)
        board.settle()
        shapes.append(board.trace(TARGET, "y"))
    assert shapes[0] != shapes[1]


def test_the_presets_set_both_sliders_and_the_ridge_moves(board: Board):
    spark(board)
    assert (float(board.readout("GB/s")), float(board.readout("TFLOP/s"))) == SPARK
    assert "<b>18.1</b> tokens/s" in board.sentences()[0]
    ridge = board.trace(RIDGE, "x")[0]
    assert ridge == pytest.approx(452, abs=2)
    assert "458 FLOP per byte" in board.sentences()[1]
    board.key("weights", "ArrowRight")
    board.settle()
    assert board.trace(RIDGE, "x")[0] == pytest.approx(ridge / 2, rel=0.02)
    choose(board, "machine", "H200")
    assert "206 FLOP per byte" in board.sentences()[1]
    assert board.readout("GB/s") == "4,800"


def test_this_machine_shows_what_was_measured_here(board: Board):
    spark(board)
    assert board.trace(TARGET_POINTS, "y") == [None]
    choose(board, "machine", "this machine")
    pair = board.control("models").locator("option").nth(1).inner_text()
    choose(board, "models", pair)
    points = board.trace(TARGET_POINTS, "y")
    assert len(points) == 7 and all(math.isfinite(y) for y in points)
    spark(board)


def test_a_drag_answers_quickly(board: Board, capsys: pytest.CaptureFixture[str]):
    spark(board)
    keys = ["ArrowLeft", "ArrowRight"] * 15
    times = sorted(board.latency("GB/s", key, LINES) for key in keys)
    with capsys.disabled():
        print(f"\ndrag to changed figure: median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms")
    # The course asks for 100 ms; a machine that also does other things must not fail here.
    assert statistics.median(times) < 1000


def test_a_page_that_is_late_hears_of_every_change(lab: Lab, board: Board):
    """As on a busy machine: what is not set up within two seconds, anywidget sends nothing to any more."""
    spark(board)
    lab.page.evaluate("window.timeout = AbortSignal.timeout; AbortSignal.timeout = () => window.timeout(0)")
    lab.run(lab.cell("roofline_board("))
    lab.page.evaluate("AbortSignal.timeout = window.timeout")
    before = board.trace(TARGET, "y")
    board.key("GB/s", "End")
    board.settle()
    assert board.trace(TARGET, "y") != before
    spark(board)


def test_stills(lab: Lab, board: Board, stills: Path):
    spark(board)
    for theme, end in (("JupyterLab Dark", "_dark"), ("JupyterLab Light", "")):
        lab.theme(theme)
        board.box.locator(".widget-vbox").first.screenshot(path=stills / f"02_roofline{end}.png", scale="css")
        assert (stills / f"02_roofline{end}.png").stat().st_size > 10_000
