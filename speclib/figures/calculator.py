"""F6, the calculator: speedup against K for α and c, and a map of the best K. Its controls: `calculator_board.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt

from speclib import speedup as formulas
from speclib.figures import style, svg
from speclib.figures.style import AMBER, BLUE, DARK_INK, GREEN, PAGE_INK, RED, WHITE

Formula = Callable[[float, int, float, float], float]  # α, K, c, v(K) → speedup

MOST_K = 32
MOST_C = 0.6
ALPHAS = np.linspace(0, 1, 101).round(4)
CS = np.linspace(0, MOST_C, 61).round(4)
HEIGHT = 356  # of the plots with their titles, in pixels
_TOP, _HIGH = 30, 278
_TOPS = {2: 0.5, 3: 0.5, 4: 1, 6: 1, 8: 2, 12: 2, 16: 4, 24: 4, 36: 6}  # of the speedup axis, with the step of its grid
_STAR = "M0-9.5 2.2-3 9-2.9 3.6 1.2 5.6 7.7 0 3.8-5.6 7.7-3.6 1.2-9-2.9-2.2-3z"


class Point(NamedTuple):
    """A measured speedup at K, and the ends of its interval."""

    K: int
    speedup: float
    low: float
    high: float


def calculator_html(
    alpha: float,
    c: float,
    v: Sequence[float],
    points: Sequence[Point] = (),
    formula: Formula = formulas.speedup,
) -> str:
    """F6: speedup against K with the best K, free drafts, their limit and break-even; beside it a map of the best K.

    alpha: in [0, 1]. c: at least 0; the map ends at `MOST_C`. v: v[K] for K = 0 … the largest K that is drawn.
    points: as measured, laid on the curve. formula: whose speedup the curve shows.
    Taught in notebook 05_sweep, section 'Drag it: the calculator'.
    """
    curve = [float(formula(alpha, k, c, x)) for k, x in enumerate(v)]
    best = curve.index(max(curve))
    ring = _MAP.mark(alpha, min(c, MOST_C), 'circle r="6"', f"fill:{WHITE};stroke:{DARK_INK};stroke-width:3", "ring")
    parts = (*_curve(alpha, curve, best, v, points, formula), *best_k_map(tuple(v)), ring)
    return svg.chart(_sentence(alpha, c, best, curve[best], v), style.WIDTH, HEIGHT, parts)


def _curve(
    alpha: float, curve: Sequence[float], best: int, v: Sequence[float], points: Sequence[Point], formula: Formula
) -> Iterator[str]:
    ks, right = range(len(v)), len(v) - 0.4
    free = [float(formula(alpha, k, 0.0, v[k])) for k in ks]
    ceiling = 1 / (1 - alpha) if alpha < 1 else math.inf
    top = next((t for t in _TOPS if t > 1.08 * max(*free, *curve, *(p.high for p in points))), 36)
    plot = svg.Panel(66, _TOP, 380, _HIGH, (-0.4, right), (0, top))
    xs = {k: f"{k}" for k in ks[:: 4 if len(ks) > 14 else 1]}
    yield plot.axes(xs, svg.numbers(_TOPS[top], top, " ×"), ("K, drafts per round", "times plain decoding"))
    yield plot.line((-0.4, right), (1, 1), f"stroke:{PAGE_INK};stroke-width:1.5;stroke-dasharray:1.5 3", "even")
    if ceiling <= top:
        yield plot.line((-0.4, right), (ceiling,) * 2, f"stroke:{BLUE};stroke-width:1.5;stroke-dasharray:9 6", "limit")
    yield plot.line(ks, free, f"stroke:{AMBER};stroke-width:1.5;stroke-dasharray:9 4 2 4", "free")
    yield plot.line(ks, curve, f"stroke:{BLUE};stroke-width:2.5", "curve")
    for k in ks:
        yield plot.mark(k, curve[k], 'circle r="3"', f"fill:none;stroke:{BLUE}", "at")
    for k, times in enumerate(curve):  # all above and below a point says its number
        yield plot.column(max(k - 0.5, -0.4), k + 0.5, f"K = {k}: {times:.3f} ×")
    for p in points:
        ink = f"stroke:{PAGE_INK};stroke-width:1.5"
        yield plot.line((p.K, p.K), (p.low, p.high), ink, "whisker")
        yield from (plot.mark(p.K, end, 'path d="M-4 0h8"', ink) for end in (p.low, p.high))
        hint = f"measured, K = {p.K}: {p.speedup:.2f} × ({p.low:.2f}–{p.high:.2f})"
        yield plot.mark(p.K, p.speedup, 'circle r="5"', f"fill:{BLUE};{ink}", "point", hint)
    star = f"fill:{GREEN};stroke:{WHITE};pointer-events:none"
    yield plot.mark(best, curve[best], f'path d="{_STAR}"', star, "best")
    shown = min(ceiling, top)
    limit = ("∞" if ceiling == math.inf else f"{ceiling:.2f}") + (" off the figure ↑" if ceiling > top else "")
    yield plot.text(-0.2, shown, f"limit 1 ÷ (1 − α) = {limit}", dy=15 if shown > 0.93 * top else -5)
    yield plot.text(right, 1, "plain decoding: break-even", "end", dy=15)
    # The best K's own label stands above its star if a measured point is below, and in the way if it is the last.
    above = any(best == p.K for p in points)
    yield plot.text(right, free[-1], "if drafts cost nothing", "end", dy=-7 if above or best == ks[-1] else 17)
    yield plot.text(best, curve[best], f"K = {best}", "middle", dy=-14 if above else 24, look="font-weight:bold")


def _sentence(alpha: float, c: float, best: int, times: float, v: Sequence[float]) -> str:
    limit = formulas.break_even_c(alpha, v, k_max=len(v) - 1)
    if best == 0:
        return f"<b>✕ plain decoding wins</b>: no K is faster. {_break_even(limit)}"
    word = "" if best < len(v) - 1 else " or more"
    return f"best K = <b>{best}</b>{word}: <b>{times:.2f} ×</b> plain decoding. {_break_even(limit)}"


def _break_even(limit: float) -> str:
    return f"It breaks even up to c = {limit:.2f}." if limit > 0 else "Not even free drafts would pay."


@lru_cache(maxsize=64)
def edges(v: tuple[float, ...]) -> np.ndarray:
    """Below which c a K of at least k is best, for k = 1 … len(v) − 1 (rows) and all `ALPHAS` (columns).

    With T tokens per round, K drafts beat j < K while T_K ÷ (c K + v_K) > T_j ÷ (c j + v_j), so up to one c each.
    """
    ks, costs = np.arange(len(v))[:, None], np.array(v)
    tokens = formulas.expected_tokens(ALPHAS, ks)
    a, b = tokens[:, None], tokens[None]  # of K, and of j
    with np.errstate(divide="ignore", invalid="ignore"):  # where K = j
        ends = (a * costs[:, None] - b * costs[:, None, None]) / (b * ks[:, None] - a * ks)
    of_all = np.minimum.accumulate(ends, 1)  # up to which c K beats all of 0 … j
    return np.array([of_all[k:, k - 1].max(0) for k in range(1, len(v))])


def best_ks(v: tuple[float, ...]) -> np.ndarray:
    """The best K in 0 … len(v) − 1 for all of `CS` (rows) and `ALPHAS` (columns); the smallest where several tie."""
    return (CS[:, None] < edges(v)[:, None]).sum(0)


_MAP = svg.Panel(528, _TOP, 218, _HIGH, (0, 1), (0, MOST_C))


@lru_cache(maxsize=64)
def best_k_map(v: tuple[float, ...]) -> tuple[str, ...]:
    """The map: a tint for each K, a red edge where plain decoding wins, and the K's as words."""
    ends, best = edges(v).clip(0, MOST_C), best_ks(v)
    box = f'x="{_MAP.left}" y="{_MAP.top}" width="{_MAP.width}" height="{_MAP.height}"'
    parts = [f'<rect {box} style="fill:{style.tint(RED, 0.1)}"><title>best K = 0: plain decoding</title></rect>']
    for k, end in enumerate(ends, 1):
        level = np.diff(end.round(3)) == 0  # within half a pixel: of such a stretch its ends are enough
        bends = ~(np.append(level, False) & np.append(False, level))
        if end.any():
            parts.append(_MAP.area(ALPHAS[bends], end[bends], f"fill:{_shade(k)}", f"best K = {k}"))
    inside = int((ends[0] < MOST_C).sum()) + 1
    parts.append(_MAP.line(ALPHAS[:inside], ends[0][:inside], f"stroke:{RED}", "lost"))
    room = _room(best)
    for k in range(len(v)):
        if place := _place(np.where(best == k, room, 0)):
            word = "K = 0: plain" if k == 0 else f"K = {k}" if k < 3 else str(k)
            colour = PAGE_INK if k == 0 else DARK_INK if k < 6 else WHITE
            look = f"fill:{colour};font-size:11px;pointer-events:none" + ";font-weight:bold" * (k == 0)
            parts.append(_MAP.text(*place, word, "end" if place[0] > 0.9 else "middle", dy=4, look=look))
    parts.append(_MAP.axes(svg.numbers(0.2, 1), svg.numbers(0.1, MOST_C), ("α", "c")))
    title = '<tspan style="font-weight:bold">best K</tspan> for every α and c'
    return (*parts, _MAP.text(0, MOST_C, title, dy=-8))


def _room(best: np.ndarray) -> np.ndarray:
    """How far each cell is from the nearest edge of its region, in a map that is drawn about as wide as it is high."""
    across, down = np.diff(best, axis=1) != 0, np.diff(best, axis=0) != 0
    inside = np.pad(np.ones(best.shape, bool), 1)
    # An edge is a line of cells, those on its left or above it: one transform serves all regions.
    inside[1:-1, 1:-2] &= ~across
    inside[1:-2, 1:-1] &= ~down
    return distance_transform_edt(inside, sampling=(1 / len(CS), 1 / len(ALPHAS)))[1:-1, 1:-1]


def _place(room: np.ndarray) -> tuple[float, float] | None:
    """Where a region's label stands, as α and c: where most room is, 0 outside; None if that is not enough."""
    row, column = np.unravel_index(room.argmax(), room.shape)
    return (float(ALPHAS[column]), float(CS[row])) if room[row, column] >= 0.018 else None


def _shade(k: int) -> str:
    """From pale to deep blue, quickest where K is small."""
    return style.blues(math.log(k) / math.log(MOST_K))
