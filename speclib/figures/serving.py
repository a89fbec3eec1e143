"""F8: a server under load, latency and throughput by concurrency; and why speculation fades as users share a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from speclib.cost import roofline
from speclib.figures import style
from speclib.figures.cost import log2_axis
from speclib.figures.style import BLUE, GREEN, INK, Figure, axis, note, scatter
from speclib.speedup import best_k, speedup

MOST_ROWS = 4
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST_K = 12
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


def verify_in_batch(
    users: int, bytes: float, cache: float, flops: float, bandwidth: float, peak: float, most: int = MOST_K
) -> list[float]:
    """v(K) for K = 0 … most when `users` texts share a pass: its time over K + 1 tokens each ÷ over one each.

    bytes: of the weights, read once for all; cache: of one text's KV cache, read for each; flops: per token; bandwidth
    and peak of the machine. By the roofline, so at the least.
    Taught in notebook 07_serve_and_bench, section 'Why it fades with many users'.
    """
    seconds = [roofline(users * (k + 1), bytes + users * cache, flops, bandwidth, peak) for k in range(most + 1)]
    return [s / seconds[0] for s in seconds]


def batching(
    users: int, alpha: float, K: int, c: float, bytes: float, cache: float, flops: float, bandwidth: float, peak: float
) -> Figure:
    """Speedup against the users that share a batch, for K and for the best K at each; below, which K that is.

    users: marked. alpha, K, c: as in `speedup`; a draft model's steps are taken to grow with the batch as the target's
    do, so c stays. Others: as `verify_in_batch`. Every user's drafts are kept or not on their own; what a round waits
    for is the one pass that they share.
    Taught in notebook 07_serve_and_bench, section 'Why it fades with many users'.
    """
    v = {n: verify_in_batch(n, bytes, cache, flops, bandwidth, peak) for n in USERS}
    best = [best_k(alpha, c, v[n], MOST_K) for n in USERS]
    fixed = [speedup(alpha, K, c, v[n]) for n in USERS]
    tuned = [speedup(alpha, k, c, v[n]) for k, n in zip(best, USERS, strict=True)]
    at = USERS.index(users)
    hover = "%{x} users: %{y:.2f} ×<extra></extra>"
    top = 1.12 * max(1.0, *tuned)
    traces = [
        scatter(x=[1, USERS[-1]], y=[1, 1], mode="lines", hoverinfo="skip")
        | {"line": {"color": INK, "width": 1.5, "dash": "dot"}},
        _line(USERS, tuned, GREEN, "square", "solid") | {"hovertemplate": hover},
        _line(USERS, fixed, BLUE, "circle", "dash") | {"hovertemplate": hover},
        scatter(x=[users] * 2, y=[0, top], mode="lines", hoverinfo="skip") | {"line": {"color": INK, "width": 1}},
    ]
    word = f"best K = <b>{best[at]}</b>, <b>{tuned[at]:.2f} ×</b>" if best[at] else "<b>no draft pays</b>: K = 0"
    sentence = f"{users} user{'s' * (users > 1)} in a batch: {word}. With K = {K} it is <b>{fixed[at]:.2f} ×</b> plain."
    upper = style.figure(
        traces, 290, sentence, margin=_MARGIN, xaxis=log2_axis("", 1, USERS[-1]),
        yaxis=axis("speedup", range=[0, top], nticks=6),
    )  # fmt: skip
    ends = [("plain", 1.0), ("the best K", tuned[-1]), (f"K = {K}", fixed[-1])]
    upper["layout"]["annotations"] += _names(ends, math.log10(USERS[-1]), logarithmic=False, height=top)
    steps = scatter(
        x=list(USERS), y=best, mode="lines+markers+text", text=[str(k) for k in best], textposition="top center",
        line={"color": GREEN, "width": 2, "shape": "hvh"}, marker={"symbol": "square", "size": 8, "color": GREEN},
        hovertemplate="%{x} users: K = %{y}<extra></extra>", cliponaxis=False,
    )  # fmt: skip
    lower = style.figure(
        [steps], 170, "The best K:", margin={**_MARGIN, "b": 48},
        xaxis=log2_axis("users in a batch", 1, USERS[-1]), yaxis=axis("K", range=[0, MOST_K + 2], nticks=4),
    )  # fmt: skip
    return style.below(upper, lower)


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


def _names(
    ends: Sequence[tuple[str, float | None]], x: float, *, logarithmic: bool, height: float | None = None
) -> list[dict[str, Any]]:
    """Names at the right ends of lines, pushed apart where they would overlap; none where a line has no end.

    height: of the axis; None = the largest of the ends. On a logarithmic axis places are exponents.
    """
    known = [(math.log10(y) if logarithmic else y, name) for name, y in ends if y]
    apart = 0.22 if logarithmic else 0.11 * (height or max((y for y, _ in known), default=1.0))
    place, notes = -math.inf, []
    for y, name in sorted(known):
        place = max(y, place + apart)
        where = {"x": x, "y": place, "xref": "x", "yref": "y", "xanchor": "left", "yanchor": "middle", "xshift": 10}
        notes.append(note(f"<b>{name}</b>", **where) | {"font": {"size": 12, "color": INK}})
    return notes
