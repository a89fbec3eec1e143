"""F6, the calculator: speedup against K for α and c, and a map of the best K. Its controls: `calculator_board.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt

from speclib import speedup as formulas
from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, CLEAR, DARK_INK, GREEN, INK, RED, WHITE, Figure, axis, note, scatter

Formula = Callable[[float, int, float, float], float]  # α, K, c, v(K) → speedup

MOST_K = 32
MOST_C = 0.6
ALPHAS = np.linspace(0, 1, 101).round(4)
CS = np.linspace(0, MOST_C, 61).round(4)


class Point(NamedTuple):
    """A measured speedup at K, and the ends of its interval."""

    K: int
    speedup: float
    low: float
    high: float


def calculator_figure(
    alpha: float,
    c: float,
    v: Sequence[float],
    points: Sequence[Point] = (),
    formula: Formula = formulas.speedup,
) -> Figure:
    """F6: speedup against K with the best K, free drafts, their limit and break-even; beside it a map of the best K.

    alpha: in [0, 1]. c: at least 0; the map ends at `MOST_C`. v: v[K] for K = 0 … the largest K that is drawn.
    points: as measured, laid on the curve. formula: whose speedup the curve shows.
    Taught in notebook 05_sweep, section 'Drag it: the calculator'.
    """
    ks = list(range(len(v)))
    curve = [float(formula(alpha, k, c, v[k])) for k in ks]
    free = [float(formula(alpha, k, 0.0, v[k])) for k in ks]
    best = curve.index(max(curve))
    ceiling = 1 / (1 - alpha) if alpha < 1 else math.inf
    top = _top(max(*free, *curve, *(p.high for p in points)))
    shown = min(ceiling, top)
    right = ks[-1] + 0.6
    line = {"mode": "lines", "hoverinfo": "skip"}
    traces = [
        scatter(x=[-0.4, right], y=[1, 1], line={"color": INK, "width": 1.5, "dash": "dot"}, **line),
        scatter(
            x=[-0.4, right],
            y=[ceiling if alpha < 1 else None] * 2,
            line={"color": BLUE, "width": 1.5, "dash": "dash"},
            **line,
        ),
        scatter(x=ks, y=free, line={"color": AMBER, "width": 1.5, "dash": "dashdot"}, **line),
        scatter(
            x=ks,
            y=curve,
            mode="lines+markers",
            line={"color": BLUE, "width": 2.5},
            marker={"symbol": "circle-open", "size": 6, "color": BLUE},
            hovertemplate="K = %{x}: %{y:.3f} ×<extra></extra>",
        ),
        scatter(
            x=[best],
            y=[curve[best]],
            mode="markers",
            marker={"symbol": "star", "size": 16, "color": GREEN, "line": {"width": 1, "color": WHITE}},
            hovertemplate="best: K = %{x}, %{y:.3f} ×<extra></extra>",
        ),
        measured(points, mode="markers", hovertemplate="measured, K = %{x}: %{y:.2f} ×<extra></extra>"),
        *best_k_map(tuple(v)),
        scatter(
            x=[alpha],
            y=[c],
            xaxis="x2",
            yaxis="y2",
            mode="markers",
            marker={"symbol": "circle", "size": 13, "color": WHITE, "line": {"width": 3, "color": DARK_INK}},
            hovertemplate="α = %{x:.2f}, c = %{y:.3f}<extra></extra>",
            cliponaxis=False,
        ),
    ]
    across = axis("K, drafts per round", range=[-0.4, right], dtick=4 if len(ks) > 14 else 1, domain=[0, 0.56])
    up = axis("times plain decoding", range=[0, top], nticks=7, ticksuffix=" ×")
    fig = style.figure(
        traces,
        380,
        _sentence(alpha, c, best, curve[best], v),
        margin={"l": 66, "r": 14, "t": 44, "b": 48},
        xaxis=across,
        yaxis=up,
        xaxis2=axis("α", range=[0, 1], dtick=0.2, domain=[0.68, 1], anchor="y2", showgrid=False),
        yaxis2=axis("c", range=[0, MOST_C], dtick=0.1, anchor="x2", showgrid=False),
    )
    high = "off the figure ↑" if ceiling > top else ""
    limit = "∞" if ceiling == math.inf else f"{ceiling:.2f}"
    side, shift = ("bottom", 9) if any(best == p.K for p in points) else ("top", -9)
    small = {"xref": "x", "yref": "y", "font": {"size": 12, "color": INK}}
    fig["layout"]["annotations"] += [
        note(f"limit 1 ÷ (1 − α) = {limit} {high}".rstrip(), x=-0.2, y=shown, xanchor="left", **small)
        | {"yanchor": "top" if shown > 0.93 * top else "bottom"},
        note("plain decoding: break-even", x=right, y=1, xanchor="right", yanchor="top", **small),
        note("if drafts cost nothing", x=right, y=free[-1], xanchor="right", **small)
        # Where the best K is the last, its own label stands below.
        | ({"yanchor": "bottom", "yshift": 5} if best == ks[-1] else {"yanchor": "top", "yshift": -5}),
        note(f"K = {best}", x=best, y=curve[best], xanchor="center", yanchor=side, yshift=shift, **small)
        | {"font": {"size": 13, "color": INK}},
        note("<b>best K</b> for every α and c", x=0, y=1, xanchor="left", yanchor="bottom", yshift=4)
        | {"xref": "x2 domain", "yref": "y2 domain"},
    ]
    return fig


def _top(highest: float) -> float:
    """The end of the speedup axis: one of a few, so that it does not move with every step of a slider."""
    return next((top for top in (2, 3, 4, 6, 8, 12, 16, 24) if top > 1.08 * highest), 36)


def _sentence(alpha: float, c: float, best: int, times: float, v: Sequence[float]) -> str:
    limit = formulas.break_even_c(alpha, v, k_max=len(v) - 1)
    if best == 0:
        return f"<b>✕ plain decoding wins</b>: no K is faster. {_break_even(limit)}"
    word = "" if best < len(v) - 1 else " or more"
    return f"best K = <b>{best}</b>{word}: <b>{times:.2f} ×</b> plain decoding. {_break_even(limit)}"


def _break_even(limit: float) -> str:
    return f"It breaks even up to c = {limit:.2f}." if limit > 0 else "Not even free drafts would pay."


def measured(points: Sequence[Point], **more: Any) -> dict[str, Any]:
    """The trace of measured speedups, with their intervals as whiskers; of one empty point if there is none."""
    up, down = [p.high - p.speedup for p in points] or [0], [p.speedup - p.low for p in points] or [0]
    return scatter(
        x=[p.K for p in points] or [None],
        y=[p.speedup for p in points] or [None],
        marker={"symbol": "circle", "size": 10, "color": BLUE, "line": {"width": 1.5, "color": INK}},
        error_y={"type": "data", "array": up, "arrayminus": down, "color": INK, "thickness": 1.5, "width": 4},
        cliponaxis=False,
        **more,
    )


@lru_cache(maxsize=64)
def best_ks(v: tuple[float, ...]) -> np.ndarray:
    """The best K in 0 … len(v) − 1 for all of `CS` (rows) and `ALPHAS` (columns); the smallest where several tie."""
    ks = np.arange(len(v))
    tokens = formulas.expected_tokens(ALPHAS[:, None], ks)
    costs = 1 / formulas.speedup(0.0, ks, CS[:, None], list(v))
    return (tokens[None] / costs[:, None]).argmax(-1)


@lru_cache(maxsize=64)
def best_k_map(v: tuple[float, ...]) -> tuple[dict[str, Any], ...]:
    """The traces of the map: a tint for each K, a red edge where plain decoding wins, and the K's as words."""
    best = best_ks(v)
    lost = (best == 0).sum(0)  # rows from the top, since a dearer draft never helps
    edge = [float(CS[len(CS) - n] if n else MOST_C) for n in lost]
    labels = [found for k in range(len(v)) if (found := _place(best == k, k))]
    heat = {
        "type": "heatmap",
        "x": ALPHAS.tolist(),
        "y": CS.tolist(),
        "z": best.tolist(),
        "xaxis": "x2",
        "yaxis": "y2",
        "zmin": -0.5,
        "zmax": MOST_K + 0.5,
        "colorscale": _SCALE,
        "showscale": False,
        "hovertemplate": "α = %{x:.2f}, c = %{y:.2f}: best K = %{z}<extra></extra>",
    }
    lost_corner = scatter(
        x=[*ALPHAS.tolist(), 1, 0],
        y=[*edge, MOST_C, MOST_C],
        xaxis="x2",
        yaxis="y2",
        mode="lines",
        line={"color": RED, "width": 1},
        fill="toself",
        fillcolor=style.tint(RED, 0.1),
        hoverinfo="skip",
    )
    words = scatter(
        x=[x for x, *_ in labels],
        y=[y for _, y, *_ in labels],
        text=[text for *_, text, _ in labels],
        textfont={"size": 11, "color": [colour for *_, colour in labels]},
        xaxis="x2",
        yaxis="y2",
        mode="text",
        textposition=["middle left" if x > 0.9 else "middle center" for x, *_ in labels],
        hoverinfo="skip",
    )
    return heat, lost_corner, words


def _place(region: np.ndarray, k: int) -> tuple[float, float, str, str] | None:
    """Where a label has most room within its region, in a map that is drawn about as wide as it is high."""
    if not region.any():
        return None
    inside = np.pad(region, 1)
    room = distance_transform_edt(inside, sampling=(1 / len(CS), 1 / len(ALPHAS)))[1:-1, 1:-1]
    row, column = np.unravel_index(room.argmax(), room.shape)
    if room[row, column] < 0.024:
        return None
    text = "<b>K = 0: plain</b>" if k == 0 else f"K = {k}" if k < 3 else str(k)
    return float(ALPHAS[column]), float(CS[row]), text, INK if k == 0 else DARK_INK if k < 6 else WHITE


# From pale to deep blue, quickest where K is small.
_SHADES = [CLEAR, *(style.blues(math.log(k) / math.log(MOST_K)) for k in range(1, MOST_K + 1))]
# A step for each K: both ends of its share have its colour.
_SCALE = [[(k + end) / (MOST_K + 1), shade] for k, shade in enumerate(_SHADES) for end in (0, 1)]
