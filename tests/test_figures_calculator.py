"""The calculator shows the numbers it is given at every control, and the map beside it which K is best."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from boards import controls

from speclib import speedup as formulas
from speclib.figures.calculator import ALPHAS, CS, MOST_C, MOST_K, Point, best_ks, calculator_html, edges
from speclib.figures.calculator_board import Calculator

FLAT = (1.0,) * 17
MEASURED = [1.0, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3]
MINE = [Point(1, 1.3, 1.1, 1.5), Point(4, 1.5, 1.2, 1.7), Point(6, 1.4, 1.2, 1.6)]


class Seen:
    """What a reader sees of the calculator: numbers are read off its axes."""

    def __init__(self, page):
        self.root = ElementTree.fromstring(page.split("</style>")[1])
        self.sentence = "".join(self.root.find("div").itertext())
        self.texts = ["".join(t.itertext()) for t in self.root.iter("text")]
        self.hints = [t.text for t in self.root.iter("title")]
        numbers = (t for t in self.root.iter("text") if re.fullmatch(r"[\d.]+ ×", t.text or ""))
        (_, self.bottom), *_, (top, end) = ((t.text, float(t.get("y")) - 4) for t in numbers)
        self.top = float(top[:-2])
        self.one = (self.bottom - end) / self.top  # pixels for a speedup of 1
        box = next(r for r in self.root.iter("rect") if r.get("class") is None)
        self.map = [float(box.get(k)) for k in ("x", "y", "width", "height")]

    def near(self, values):
        return pytest.approx(values, abs=0.15 / self.one)  # pixels are written to a tenth

    def line(self, kind):
        """The heights of a line's points."""
        return [(self.bottom - y) / self.one for _, y in self._points(kind)]

    def marks(self, kind):
        """Where marks of a kind are, as pixels."""
        of = (g.get("transform") for g in self.root.iter("g") if g.get("class") == kind)
        return [tuple(map(float, re.findall(r"[\d.]+", place))) for place in of]

    def heights(self, kind):
        return [(self.bottom - y) / self.one for _, y in self.marks(kind)]

    def in_map(self, x, y):
        """α and c at a place in pixels."""
        left, top, width, height = self.map
        return (x - left) / width, MOST_C * (1 - (y - top) / height)

    def edge(self):
        return [self.in_map(*point) for point in self._points("lost")]

    def areas(self):
        return [p.get("points") for p in self.root.iter("polygon")]

    def curve(self):
        """What is said above and below each point."""
        return [float(x) for hint in self.hints for x in re.findall(r"^K = \d+: ([\d.]+) ×", hint)]

    def best(self):
        """The K at which the star stands."""
        return self.marks("at").index(*self.marks("best"))

    def _points(self, kind):
        of = [p.get("points") for p in self.root.iter("polyline") if p.get("class") == kind]
        return [tuple(map(float, xy.split(","))) for points in of for xy in points.split()]


def figure(alpha=0.7, c=0.1, v=FLAT, points=(), **more):
    return Seen(calculator_html(alpha, c, v, points, **more))


@pytest.mark.parametrize(
    ("alpha", "c", "K", "times"),
    [(0.7, 0.05, 6, "2.35"), (0.7, 0.1, 4, "1.98"), (0.7, 0.25, 2, "1.46"), (0.7, 0.3, 2, "1.37"),
     (0.7, 0.15, 3, "1.75"), (0.5, 0.05, 3, "1.63")],
)  # fmt: skip
def test_the_lessons_numbers(alpha, c, K, times):
    seen = figure(alpha, c)
    assert seen.best() == K and f"K = {K}" in seen.texts
    assert seen.sentence.startswith(f"best K = {K}: {times} × plain decoding.")
    wanted = [formulas.speedup(alpha, k, c) for k in range(17)]
    assert seen.curve() == pytest.approx(wanted, abs=5.1e-4)
    assert seen.line("curve") == seen.heights("at") == seen.near(wanted)


def test_ceiling_break_even_and_free_drafts():
    seen = figure()
    assert seen.line("limit") == seen.near([1 / 0.3] * 2) and seen.line("even") == seen.near([1, 1])
    free = seen.line("free")
    assert free == seen.near([formulas.expected_tokens(0.7, k) for k in range(17)])
    assert free[-1] < 1 / 0.3 < seen.top and "limit 1 ÷ (1 − α) = 3.33" in seen.texts
    assert "It breaks even up to c = 0.70." in seen.sentence


def test_where_plain_decoding_wins_it_says_so():
    seen = figure(0.2, 0.4)
    assert seen.best() == 0 and "plain decoding wins" in seen.sentence
    assert "Not even free drafts" in figure(0.1, 0.0, [1 + 0.3 * k for k in range(9)]).sentence


def test_a_ceiling_that_is_off_the_figure_is_told():
    for alpha, says in ((0.98, "= 50.00 off the figure ↑"), (1.0, "= ∞ off the figure ↑")):
        seen = figure(alpha, 0.3)
        assert f"limit 1 ÷ (1 − α) {says}" in seen.texts and seen.line("limit") == []
        assert max(seen.line("free")) < seen.top
    assert " or more: " in figure(0.95, 0.0).sentence


def test_measured_points_lie_where_they_were_measured():
    seen = figure(0.5, 0.05, MEASURED, MINE)
    assert seen.heights("point") == seen.near([1.3, 1.5, 1.4])
    assert [x for x, _ in seen.marks("point")] == [seen.marks("at")[k][0] for k in (1, 4, 6)]
    assert seen.line("whisker") == seen.near([1.1, 1.5, 1.2, 1.7, 1.2, 1.6])
    assert "measured, K = 4: 1.50 × (1.20–1.70)" in seen.hints
    assert figure().marks("point") == []
    assert figure(points=[Point(2, 7.0, 6.0, 7.9)]).top > 7.9


def test_the_curve_is_that_of_the_formula_it_is_given():
    seen = figure(formula=lambda a, k, c, v: 1 + k)
    assert seen.curve() == [1 + k for k in range(17)] and seen.best() == 16


@pytest.mark.parametrize("v", [FLAT, tuple(MEASURED), tuple(1 + 0.1 * k for k in range(33))])
def test_the_map_is_the_best_k_everywhere(v):
    best = best_ks(v)
    assert best.shape == (len(CS), len(ALPHAS)) and CS[-1] == MOST_C
    for row, column in zip(*np.unravel_index(np.arange(0, best.size, 97), best.shape), strict=True):
        times = [formulas.speedup(ALPHAS[column], k, CS[row], v[k]) for k in range(len(v))]
        assert times[best[row, column]] == pytest.approx(max(times), rel=1e-12)  # where several tie, any of them
    assert (np.diff(best, axis=0) <= 0).all()  # a dearer draft never wants more


@pytest.mark.parametrize("v", [FLAT, tuple(MEASURED)])
def test_the_edges_part_the_best_k(v):
    """Below each edge its K or a larger one is best, above it a smaller one."""
    for alpha in (0.2, 0.5, 0.83):
        ends = edges(v)[:, list(ALPHAS).index(alpha)]
        for k, end in enumerate(ends, 1):
            for c, more in ((end - 1e-9, True), (end + 1e-9, False)):
                if c > 0:
                    assert (formulas.best_k(alpha, c, list(v), k_max=len(v) - 1) >= k) == more
        assert edges(v)[0, list(ALPHAS).index(alpha)] == pytest.approx(
            formulas.break_even_c(alpha, v, k_max=len(v) - 1)
        )


def test_the_red_line_is_where_plain_decoding_wins():
    for alpha, c in figure().edge():
        assert c == pytest.approx(min(MOST_C, formulas.break_even_c(min(1, max(0, alpha)))), abs=1e-3)


@pytest.mark.parametrize("v", [FLAT, tuple(MEASURED)])
def test_each_label_of_the_map_stands_in_its_own_region(v):
    seen, found = figure(v=v), []
    for text in seen.root.iter("text"):
        if "font-size:11px" in text.get("style"):
            alpha, c = seen.in_map(float(text.get("x")), float(text.get("y")) - 4)
            k = int(re.search(r"\d+", text.text)[0])
            assert best_ks(v)[np.abs(CS - c).argmin(), np.abs(ALPHAS - alpha).argmin()] == k
            found.append(k)
    assert {0, 1, 2, 3, len(v) - 1} <= set(found)


def test_every_control_moves_the_figure_from_end_to_end():
    board = Calculator()
    labels = controls(board)
    assert set(labels) == {"α", "c", "v per draft", "K up to", "v as measured (none is, yet)"}
    for name in ("α", "c", "v per draft", "K up to"):
        widget, seen = labels[name], []
        start = widget.value
        for value in (widget.min, widget.max):
            widget.value = value
            shown = Seen(board.page.value)
            seen.append((shown.curve(), shown.marks("ring")))
        assert seen[0] != seen[1], name
        widget.value = start
        assert widget.tooltip


def test_the_ring_follows_alpha_and_c_and_the_map_follows_v():
    board = Calculator()
    before = Seen(board.page.value).areas()
    board.alpha.value, board.c.value = 0.35, 0.2
    seen = Seen(board.page.value)
    assert seen.in_map(*seen.marks("ring")[0]) == pytest.approx((0.35, 0.2), abs=1e-3)
    assert seen.areas() == before
    board.slope.value = 0.1
    assert Seen(board.page.value).areas() != before


def test_points_are_laid_with_alpha_c_and_v_as_measured():
    assert Calculator().measured.disabled
    board = Calculator(formulas.speedup, 0.473, 0.052, MINE, MEASURED)
    assert board.slope.disabled and board.most.max == 6
    assert not board.measured.disabled and board.measured.value
    assert board.v == MEASURED and len(Seen(board.page.value).marks("point")) == 3
    assert board.alpha.value == pytest.approx(0.473) and board.c.value == pytest.approx(0.052)
    wanted = [formulas.speedup(0.473, k, 0.052, MEASURED) for k in range(7)]
    assert Seen(board.page.value).curve() == pytest.approx(wanted, abs=5.1e-4)
    board.most.value = 3
    assert len(Seen(board.page.value).marks("point")) == 1 and len(Seen(board.page.value).curve()) == 4
    board.measured.value = False
    assert not board.slope.disabled and board.most.max == MOST_K
    wanted = [formulas.speedup(0.473, k, 0.052) for k in range(4)]
    assert Seen(board.page.value).curve() == pytest.approx(wanted, abs=5.1e-4)
    slow = Calculator(formulas.speedup, 0.5, 1.4, [Point(1, 0.4, 0.3, 0.5)], [1.0, 1.1])
    assert slow.c.value == MOST_C and slow.error.value == ""


def test_a_drag_takes_no_heavy_work():
    board = Calculator()
    for slider in (board.alpha, board.slope):
        steps = []
        for i in range(20):
            start = time.process_time()
            slider.value = 0.01 * (i + 1)
            steps.append(time.process_time() - start)
        assert sorted(steps)[10] < 0.1  # processor time: what else the machine does is not counted
