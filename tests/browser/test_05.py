"""Notebook 05 in the browser: the calculator at every control, the sweep as it grows and as it is interrupted."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from speclib.speedup import best_k, speedup

from .lab import Board, Lab

PAGE = ".sl-chart"
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
    return lab.paged(PAGE)


@pytest.fixture
def mine(lab: Lab, board: Board) -> Board:
    """The second calculator, on which the reader's own points are laid."""
    return lab.paged(PAGE, 1)


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


def sentence(board: Board) -> str:
    return board.box.locator(f"{PAGE} .head").inner_text()


def hints(board: Board, start: str) -> list[str]:
    """What is said of places in the figure to who points there, if it starts so."""
    return [t for t in board.box.locator(f"{PAGE} title").all_text_contents() if t.startswith(start)]


def curve(board: Board) -> list[float]:
    return [float(re.search(r": ([\d.]+) ×", hint)[1]) for hint in hints(board, "K = ")]


def points(board: Board) -> list[tuple[int, float]]:
    found = (re.match(r"measured, K = (\d+): ([\d.]+) ×", hint) for hint in hints(board, "measured"))
    return [(int(m[1]), float(m[2])) for m in found]


def middles(board: Board, kind: str) -> list[tuple[float, float]]:
    """Where marks of a kind stand in the page."""
    box = "e => { const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }"
    return [tuple(mark.evaluate(box)) for mark in board.box.locator(f"{PAGE} .{kind}").all()]


def best(board: Board) -> int:
    """The K whose point the star covers."""
    ((star, _),) = middles(board, "best")
    at = [abs(x - star) for x, _ in middles(board, "at")]
    return at.index(min(at))


def ring(board: Board) -> tuple[float, float]:
    """α and c where the ring stands in the map."""
    area = board.box.locator(f"{PAGE} rect:not(.hit)").bounding_box()
    ((x, y),) = middles(board, "ring")
    return (x - area["x"]) / area["width"], 0.6 * (1 - (y - area["y"]) / area["height"])


def state(board: Board) -> tuple[list[float], tuple[float, float]]:
    return curve(board), ring(board)


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


def test_the_sweep_has_every_point_and_a_prediction(lab: Lab, board: Board):
    assert len(measured(lab)) == 4
    assert "× plain decoding" in said(lab).replace("</b>", "") or "plain decoding is the fastest" in said(lab)
    assert " runs" not in said(lab)
    assert re.match(r"20 of 20 runs", sweep(lab).locator(".speclib-progress").inner_text())


def test_the_readers_points_lie_on_the_curve_of_their_numbers(lab: Lab, mine: Board):
    check = mine.box.locator("input[type=checkbox]")
    assert mine.box.get_by_text("v as measured, up to K = 6").is_visible() and check.is_checked()
    laid = points(mine)
    assert [k for k, _ in laid] == [1, 2, 4, 6] and [y for _, y in laid] == pytest.approx(measured(lab), abs=0.0051)
    assert len(curve(mine)) == 7  # as far as v was measured
    for label in ("α", "c"):
        before = curve(mine)
        mine.key(label, "End")
        mine.settle()
        assert curve(mine) != before and points(mine) == laid
    check.uncheck()
    mine.settle()
    assert len(curve(mine)) == 17 and points(mine) == laid
    check.check()
    mine.settle()
    assert len(curve(mine)) == 7


@pytest.mark.parametrize(("alpha", "c"), [("0.70", "0.050"), ("0.70", "0.250"), ("0.50", "0.050"), ("0.30", "0.400")])
def test_the_lessons_numbers_are_in_the_page(fresh: Board, alpha: str, c: str):
    type_in(fresh, "α", alpha)
    type_in(fresh, "c", c)
    wanted = best_k(float(alpha), float(c))
    assert best(fresh) == wanted
    times = f"{speedup(float(alpha), wanted, float(c)):.2f} ×"
    assert (times in sentence(fresh)) if wanted else ("plain decoding wins" in sentence(fresh))
    assert ring(fresh) == pytest.approx((float(alpha), float(c)), abs=0.003)  # half a pixel


@pytest.mark.parametrize("label", SLIDERS)
def test_a_slider_moves_the_figure_from_the_keyboard(fresh: Board, label: str):
    seen = []
    for key in ("Home", "End"):
        fresh.key(label, key)
        fresh.settle()
        seen.append((state(fresh), fresh.readout(label)))
    assert seen[0][0] != seen[1][0] and seen[0][1] != seen[1][1]


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
    assert 1.99 < max(curve(fresh)) <= 2 and fresh.box.get_by_text("limit 1 ÷ (1 − α) = 2.00").is_visible()
    (even,), (limit,), drawn = ([y for _, y in middles(fresh, kind)] for kind in ("even", "limit", "at"))
    assert drawn[0] == pytest.approx(even, abs=1) and limit <= min(drawn)  # in pixels from above
    type_in(fresh, "α", "0.70")
    found = []
    for c in ("0.050", "0.100", "0.250", "0.600"):
        type_in(fresh, "c", c)
        found.append(best(fresh))
    assert found == [6, 4, 2, 1]
    type_in(fresh, "α", "0.40")
    assert best(fresh) == 0 and "✕ plain decoding wins" in sentence(fresh)


def test_v_moves_the_map(fresh: Board):
    areas = "all => all.map(e => e.getAttribute('points'))"
    before = fresh.box.locator(f"{PAGE} polygon").evaluate_all(areas), best(fresh)
    type_in(fresh, "v per draft", "0.10")
    assert best(fresh) < before[1]
    assert fresh.box.locator(f"{PAGE} polygon").evaluate_all(areas) != before[0]


def test_a_drag_answers_quickly(fresh: Board, capsys: pytest.CaptureFixture[str]):
    times = {}
    for label in ("α", "v per draft"):
        keys = ["ArrowRight", "ArrowLeft"] * 10
        times[label] = sorted(fresh.latency(label, key, PAGE) for key in keys)
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
