"""F8: a server under load, latency and throughput by concurrency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from speclib.figures import style
from speclib.figures.cost import log2_axis
from speclib.figures.style import INK, Figure, axis, note, scatter

MOST_ROWS = 4
_MARGIN = {"l": 72, "r": 150, "t": 40, "b": 30}


def by_concurrency(summaries: Mapping[str, Mapping[int, Mapping[str, Any]]], levels: Sequence[int]) -> Figure:
    """TTFT and TPOT (median, whiskers up to p95) above tokens/s of all users, both against the users at once.

    summaries: by a row's label and concurrency what `bench_trace.summary` says; what is missing is not drawn. levels:
    the concurrencies of the axis. ValueError: more rows than `MOST_ROWS`, or none.
    Taught in notebook 07_serve_and_bench, section 'Measure'.
    """
    if not 1 <= len(summaries) <= MOST_ROWS:
        raise ValueError(f"{len(summaries)} rows: give 1 to {MOST_ROWS}")
    times, speeds, time_ends, speed_ends = [], [], [], []
    for label, (colour, symbol) in style.looks(summaries).items():
        of, name = summaries[label], style.readable(label, 24).replace("␣", " ")
        for what, dash, shape in (("ttft", "dot", f"{symbol}-open"), ("tpot", "solid", symbol)):
            spreads = [(of.get(c) or {}).get(what) for c in levels]
            ms = [1000 * s["p50"] if s else None for s in spreads]
            up = [1000 * (s["p95"] - s["p50"]) if s else 0 for s in spreads]
            whisker = {"type": "data", "array": up, "arrayminus": [0] * len(up), "color": colour}
            times.append(
                _line(levels, ms, colour, shape, dash)
                | {"error_y": whisker | {"thickness": 1.2, "width": 4}}
                | {"hovertemplate": f"{name}, {what.upper()}, %{{x}} users: %{{y:,.0f}} ms<extra></extra>"}
            )
            time_ends.append((f"{name}, {what.upper()}", ms[-1]))
        speed = [(of.get(c) or {}).get("tokens_per_second") for c in levels]
        hover = {"hovertemplate": f"{name}, %{{x}} users: %{{y:.1f}} tokens/s<extra></extra>"}
        speeds.append(_line(levels, speed, colour, symbol, "solid") | hover)
        speed_ends.append((name, speed[-1]))
    across = log2_axis("", min(levels), max(levels))
    upper = style.figure(
        times, 300, _load_sentence(summaries, levels), margin=_MARGIN, xaxis=across,
        yaxis=axis("milliseconds", type="log", tickvals=[10.0**i for i in range(-1, 7)], dtick=1),
    )  # fmt: skip
    lower = style.figure(
        speeds, 230, "All users together:", margin={**_MARGIN, "b": 48},
        xaxis=log2_axis("users at once", min(levels), max(levels)),
        yaxis=axis("tokens/s", rangemode="tozero", nticks=6),
    )  # fmt: skip
    x = math.log10(max(levels))
    upper["layout"]["annotations"] += _names(time_ends, x, logarithmic=True)
    both = style.below(upper, lower)
    # Names stand at values, not at shares of the panel, so they are put in place behind `below`.
    both["layout"]["annotations"] += [
        n | {"xref": "x2", "yref": "y2"} for n in _names(speed_ends, x, logarithmic=False)
    ]
    return both


def _line(x: Sequence[int], y: Sequence[float | None], colour: str, symbol: str, dash: str) -> dict[str, Any]:
    return scatter(
        x=list(x), y=list(y), mode="lines+markers", line={"color": colour, "width": 2, "dash": dash},
        marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}}, cliponaxis=False,
    )  # fmt: skip


def _load_sentence(summaries: Mapping[str, Mapping[int, Mapping[str, Any]]], levels: Sequence[int]) -> str:
    """The highest concurrency that all rows have, in words."""
    common = [c for c in levels if all(c in of for of in summaries.values())]
    if not common:
        return "Nothing is measured yet."
    parts = []
    for label, of in summaries.items():
        s, name = of[common[-1]], style.readable(label, 24).replace("␣", " ")
        speed = f"{s['tokens_per_second']:.1f} tokens/s" if s["tokens_per_second"] else "no tokens"
        parts.append(f"{name} <b>{speed}</b>")
    return f"{common[-1]} user{'s' * (common[-1] > 1)} at once: {', '.join(parts)}"


def _names(ends: Sequence[tuple[str, float | None]], x: float, *, logarithmic: bool) -> list[dict[str, Any]]:
    """Names at the right ends of lines, pushed apart where they would overlap; none where a line has no end.

    On a logarithmic axis places are exponents.
    """
    known = [(name, math.log10(y) if logarithmic else y) for name, y in ends if y]
    gap = 0.22 if logarithmic else 0.11 * max((y for _, y in known), default=1.0)
    where = {"x": x, "xref": "x", "yref": "y", "xanchor": "left", "yanchor": "middle", "xshift": 10}
    small = {"font": {"size": 12, "color": INK}}
    return [note(f"<b>{name}</b>", y=y, **where) | small for name, y in style.apart(known, gap)]
