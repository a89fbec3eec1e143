"""Notebook 05 in the browser: the calculator at every control, the sweep as it grows and as it is interrupted."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from speclib.speedup import best_k, speedup

from .lab import LINES, Board, Lab

BREAK_EVEN, CEILING, CURVE, BEST, POINTS, RING = 0, 1, 3, 4, 5, 9  # traces of the calculator
SLIDERS = ("α", "c", "v per draft", "K up to")
# All measured points that any frame has shown, noted in the page itself: asking from outside misses some.
NOTE_POINTS = """() => {
  window.seen = new Set();
  const look = () => {
    const gd = document.querySelector('.widget-hprogress')?.closest('.widget-vbox')?.querySelector('.js-plotly-plot');
    if (gd?.data) window.seen.add(JSON.stringify(Array.from(gd.data[2].y)));
    if (window.seen) requestAnimationFrame(look);
  };
  look();
}"""


@pytest.fixture(scope="module")
def board(lab: Lab) -> Board:
    lab.read("05_sweep", {"some = 16 if pair.dtype == torch.float32 else 32": "some = 8"})
    return lab.board()


@pytest.fixture
def mine(lab: Lab, board: Board) -> Board:
    """The second calculator, on which the reader's own points are laid."""
    place = lab.page.locator(".jp-OutputArea-output", has=lab.page.locator(".noUi-handle")).nth(1)
    place.scroll_into_view_if_needed()
    expect(place.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=30_000)
    return Board(lab.page, place)


@pytest.fixture
def fresh(board: Board) -> Board:
    """The calculator as the notebook shows it at first."""
    for label, value in (("α", "0.70"), ("c", "0.050"), ("v per draft", "0.00"), ("K up to", "16")):
        type_in(board, label, value)
    return board


def type_in(board: Board, label: str, value: str) -> None:
    readout = board.control(label).locator(".widget-readout")
    readout.fill(value)
    readout.press("Enter")
    board.settle()


def state(board: Board) -> tuple[list[float], list[float], list[float]]:
    return board.trace(CURVE, "y"), board.trace(RING, "x"), board.trace(RING, "y")


def sweep(lab: Lab) -> Locator:
    """The output of the live sweep, and the plot in it."""
    place = lab.page.locator(".jp-OutputArea-output", has=lab.page.locator(".widget-hprogress")).first
    place.scroll_into_view_if_needed()
    expect(place.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=30_000)
    return place


def measured(lab: Lab) -> list[float]:
    points = sweep(lab).locator(".js-plotly-plot").evaluate("gd => Array.from(gd.data[2].y)")
    return [y for y in points if y is not None]


def said(lab: Lab) -> str:
    return sweep(lab).locator(".js-plotly-plot").evaluate("gd => gd.layout.annotations[0].text")


def test_every_control_has_a_label_and_a_hint(board: Board):
    assert set(board.labels()) >= set(SLIDERS)
    for label in SLIDERS:
        name = board.control(label).locator(".widget-label")
        assert name.get_attribute("title")
        assert name.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert board.box.get_by_text("v as measured (none is, yet)").is_visible()
    assert board.box.locator("input[type=checkbox]").is_disabled()
    assert board.plot.locator(".modebar-btn").count() == 0


def test_the_sweep_has_every_point_and_a_prediction(lab: Lab, board: Board):
    assert len(measured(lab)) == 4
    assert "× plain decoding" in said(lab).replace("</b>", "") or "plain decoding is the fastest" in said(lab)
    assert " runs" not in said(lab)
    assert re.match(r"20 of 20 runs", sweep(lab).locator(".speclib-progress").inner_text())


def test_the_readers_points_lie_on_the_curve_of_their_numbers(lab: Lab, mine: Board):
    check = mine.box.locator("input[type=checkbox]")
    assert mine.box.get_by_text("v as measured, up to K = 6").is_visible() and check.is_checked()
    assert mine.trace(POINTS, "x") == [1, 2, 4, 6] and mine.trace(POINTS, "y") == measured(lab)
    assert len(mine.trace(CURVE, "y")) == 7  # as far as v was measured
    for label in ("α", "c"):
        before = mine.trace(CURVE, "y")
        mine.key(label, "End")
        mine.settle()
        assert mine.trace(CURVE, "y") != before and mine.trace(POINTS, "y") == measured(lab)
    check.uncheck()
    mine.settle()
    assert len(mine.trace(CURVE, "y")) == 17 and mine.trace(POINTS, "x") == [1, 2, 4, 6]
    check.check()
    mine.settle()
    assert len(mine.trace(CURVE, "y")) == 7


@pytest.mark.parametrize(("alpha", "c"), [("0.70", "0.050"), ("0.70", "0.250"), ("0.50", "0.050"), ("0.30", "0.400")])
def test_the_lessons_numbers_are_in_the_page(fresh: Board, alpha: str, c: str):
    type_in(fresh, "α", alpha)
    type_in(fresh, "c", c)
    best = best_k(float(alpha), float(c))
    assert fresh.trace(BEST, "x") == [best]
    times = f"{speedup(float(alpha), best, float(c)):.2f} ×"
    assert (times in fresh.sentences()[0]) if best else ("plain decoding wins" in fresh.sentences()[0])
    assert fresh.trace(RING, "x") + fresh.trace(RING, "y") == pytest.approx([float(alpha), float(c)])


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_from_the_keyboard(fresh: Board, label: str):
    seen = []
    for key in ("Home", "End"):
        fresh.key(label, key)
        fresh.settle()
        seen.append((*state(fresh), fresh.readout(label)))
    assert seen[0][:3] != seen[1][:3] and seen[0][3] != seen[1][3]


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_by_mouse(fresh: Board, label: str):
    seen = []
    for end in (-0.5, 1.5):
        fresh.drag(label, end)
        fresh.settle()
        seen.append(state(fresh))
    assert seen[0] != seen[1]


def test_alpha_is_the_ceiling_c_punishes_greed_and_it_can_lose(fresh: Board):
    type_in(fresh, "α", "0.50")
    type_in(fresh, "c", "0.000")
    assert max(fresh.trace(CURVE, "y")) < 2 and "= 2.00" in fresh.sentences()[1]
    assert fresh.trace(CEILING, "y") == [2, 2] and fresh.trace(BREAK_EVEN, "y") == [1, 1]
    type_in(fresh, "α", "0.70")
    best = []
    for c in ("0.050", "0.100", "0.250", "0.600"):
        type_in(fresh, "c", c)
        best += fresh.trace(BEST, "x")
    assert best == [6, 4, 2, 1]
    type_in(fresh, "α", "0.40")
    assert fresh.trace(BEST, "x") == [0] and "✕ plain decoding wins" in fresh.sentences()[0]


def test_v_moves_the_map(fresh: Board):
    cells = "gd => gd.data[6].z.flat ? JSON.stringify(gd.data[6].z).length : 0"
    before = fresh.plot.evaluate(cells), fresh.trace(BEST, "x")
    type_in(fresh, "v per draft", "0.10")
    assert fresh.trace(BEST, "x")[0] < before[1][0]
    assert fresh.plot.evaluate(cells) != before[0]


def test_a_drag_answers_quickly(fresh: Board, capsys: pytest.CaptureFixture[str]):
    times = {}
    for label in ("α", "v per draft"):
        keys = ["ArrowRight", "ArrowLeft"] * 10
        times[label] = sorted(fresh.latency(label, key, LINES) for key in keys)
    with capsys.disabled():
        for label, found in times.items():
            print(f"\n{label}: median {statistics.median(found):.0f} ms, slowest {found[-1]:.0f} ms")
    # The course asks for 100 ms; a machine that also does other things must not fail here.
    assert all(statistics.median(found) < 1000 for found in times.values())


def test_stills(lab: Lab, fresh: Board, stills: Path):
    type_in(fresh, "c", "0.100")
    for theme, end in (("JupyterLab Dark", "_dark"), ("JupyterLab Light", "")):
        lab.theme(theme)
        fresh.box.locator(".widget-vbox").first.screenshot(path=stills / f"05_calculator{end}.png", scale="css")
        assert (stills / f"05_calculator{end}.png").stat().st_size > 10_000
    sweep(lab).locator(".widget-vbox").first.screenshot(path=stills / "05_sweep.png", scale="css")


def test_points_appear_and_move_run_by_run_and_an_interruption_keeps_them(lab: Lab, board: Board):
    """Last, since it leaves an interrupted sweep behind."""
    lab.page.evaluate(NOTE_POINTS)
    lab.start(lab.cell("runs = live_sweep"))
    lab.page.wait_for_timeout(500)
    for _ in range(600):
        if re.match(r"1[1-9] of 20 runs", sweep(lab).locator(".speclib-progress").inner_text()):
            break
        lab.page.wait_for_timeout(100)
    lab.interrupt()
    lab.finish(60)
    lab.page.wait_for_timeout(800)
    seen = lab.page.evaluate("() => { const all = [...window.seen]; delete window.seen; return all; }")
    # How many come before the first frame depends on how long the page takes to draw; each run moves a point.
    assert len(seen) >= 5, seen
    assert [o for o in lab.outputs() if o["output_type"] == "error"] == []
    assert any("Interrupted" in json.dumps(o) for o in lab.outputs())
    assert len(measured(lab)) == 4 and "of 20 runs" in said(lab)
