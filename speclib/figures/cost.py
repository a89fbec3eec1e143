"""F3: what a pass costs. Measured points over the roofline that predicts them, and machines side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from speclib.cost import SIZES, Timing, ceiling_tokens_per_second, ridge_point, roofline, verify_ratio
from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, INK, RED, Figure, axis, note, scatter

# Colour never alone: each series has a marker and a dash of its own.
LOOK = {"target": (BLUE, "circle"), "draft": (AMBER, "diamond"), "loop": (RED, "x")}
MOST_TOKENS = 4096


def verify_figure(
    points: Mapping[str, Mapping[int, Timing]],
    roofs: Mapping[str, Sequence[float]],
    trials: int,
    sizes: Sequence[int] = SIZES,
) -> Figure:
    """Milliseconds of a pass against its tokens, as measured so far, over what the roofline says.

    points: for each series of `LOOK` its Timings by number of tokens; those that are missing are not drawn. roofs:
    for some of the series the predicted seconds at each of `sizes`, drawn dashed. trials: a point is hollow until it
    has that many passes. Whiskers are the quartiles. The sentence tells v(7) of the first series once both its
    points are there. Taught in notebook 02_verify_cost, section 'Measure'.
    """
    traces, ends = [], []
    for name, found in points.items():
        colour, symbol = LOOK[name]
        timings = [found.get(n) for n in sizes]
        ms = [1000 * t.median if t else None for t in timings]
        up = [1000 * (t.spread[1] - t.median) if t else 0 for t in timings]
        down = [1000 * (t.median - t.spread[0]) if t else 0 for t in timings]
        done = [bool(t) and len(t.seconds) >= trials for t in timings]
        roof = [1000 * s for s in roofs.get(name, [])]
        traces += [
            scatter(x=list(sizes), y=roof or [None] * len(sizes), mode="lines", hoverinfo="skip")
            | {"line": {"color": colour, "width": 1.5, "dash": "dash"}},
            scatter(
                x=list(sizes),
                y=ms,
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"symbol": [symbol if d else f"{symbol}-open" for d in done], "size": 9, "color": colour},
                error_y={
                    "type": "data",
                    "array": up,
                    "arrayminus": down,
                    "color": colour,
                    "thickness": 1.2,
                    "width": 4,
                },
                hovertemplate=f"{name}, %{{x}} tokens: %{{y:.2f}} ms<extra></extra>",
                cliponaxis=False,
            ),
        ]
        ends.append((name, next((m for m in reversed(ms) if m), None), roof[-1] if roof else None))
    fig = style.figure(
        traces,
        360,
        _so_far(points, trials, len(sizes)),
        margin={"l": 66, "r": 120, "t": 40, "b": 48},
        xaxis=log2_axis("tokens in the pass", sizes[0], sizes[-1]),
        yaxis=axis("milliseconds", rangemode="tozero", nticks=7),
    )
    fig["layout"]["annotations"] += _end_labels(ends, math.log10(sizes[-1]))
    return fig


def _so_far(points: Mapping[str, Mapping[int, Timing]], trials: int, sizes: int) -> str:
    passes = sum(len(t.seconds) for found in points.values() for t in found.values())
    asked = trials * sizes * len(points)
    name, found = next(iter(points.items()))
    seconds = {n: t.median for n, t in found.items()}
    if not {1, 8} <= seconds.keys():
        return "Nothing is measured yet." if not passes else f"{passes} of {asked} passes measured"
    v = verify_ratio(seconds, 7)
    rest = "" if passes >= asked else f" · {passes} of {asked} passes"
    return f"<b>v(7) = {v:.2f}</b>: for the {name}, a pass over 8 tokens takes {v:.2f} × one over 1{rest}"


def _end_labels(ends: list[tuple[str, float | None, float | None]], x: float) -> list[dict[str, Any]]:
    """The series' names at their last points, far enough apart to be read, and what the dashes are."""
    highest = max((m for _, *both in ends for m in both if m), default=1.0)
    labels = []
    for name, last, roof in ends:
        if last:
            labels.append((last, f"<b>{name}</b>"))
        if roof:
            labels.append((roof, f"{name}, roofline"))
    labels.sort(key=lambda label: label[0])
    place, notes = -math.inf, []
    for ms, text in labels:
        place = max(ms, place + highest * 0.062)
        notes.append(
            note(text, x=x, y=place, xref="x", yref="y", xanchor="left", yanchor="middle", xshift=10)
            | {"font": {"size": 12, "color": INK}}
        )
    return notes


def roofline_figure(
    models: Mapping[str, tuple[float, float, float]],
    bandwidth: float,
    peak: float,
    bits: float = 16,
    batch: int = 1,
    measured: Mapping[str, Mapping[int, float]] | None = None,
) -> Figure:
    """Milliseconds of a pass against its tokens for a machine of given bandwidth and peak, with the ridge marked.

    models: for "target" and perhaps "draft" the number of weights that a step reads, bytes of one sequence's KV
    cache, FLOPs per token. bandwidth: bytes per second. peak: FLOP per second, whatever the weights are kept in. bits:
    per weight (32, 16, 8, 4). batch: sequences, which share the weights and each read a cache. measured: seconds
    by tokens, drawn as points. Taught in notebook 02_verify_cost, section 'The roofline'.
    """
    traces, ends, lines = [], [], {}
    for name in ("target", "draft"):
        if name not in models:
            continue
        colour, symbol = LOOK[name]
        weights, cache, flops = models[name]
        size = weights * bits / 8 + batch * cache
        lines[name] = (size, flops)
        # Two straight lines on logarithmic axes: their ends and the bend are all there is to draw.
        bend = min(max(ridge_point(bandwidth, peak) * size / (flops * batch), 1), MOST_TOKENS)
        grid = [1, bend, MOST_TOKENS]
        ms = [1000 * roofline(n * batch, size, flops, bandwidth, peak) for n in grid]
        points = (measured or {}).get(name, {})
        traces += [
            scatter(x=grid, y=ms, mode="lines", line={"color": colour, "width": 3})
            | {"hovertemplate": f"{name}, %{{x:.0f}} tokens: %{{y:.3g}} ms<extra></extra>"},
            scatter(
                x=list(points) or [None],
                y=[1000 * s for s in points.values()] or [None],
                mode="markers",
                marker={"symbol": f"{symbol}-open", "size": 9, "color": colour, "line": {"width": 2}},
                hovertemplate=f"{name}, measured, %{{x}} tokens: %{{y:.3g}} ms<extra></extra>",
            ),
        ]
        ends.append((f"<b>{name}</b>", ms[-1]))
    size, flops = lines["target"]
    # Where reading and computing the target's pass take equally long.
    ridge = peak / bandwidth * size / (flops * batch)
    inside = min(max(ridge, 1), MOST_TOKENS)
    top = 1000 * roofline(inside * batch, size, flops, bandwidth, peak)
    traces.append(
        scatter(x=[inside] * 2, y=[top / 30, top], mode="lines+markers", hoverinfo="skip")
        | {
            "line": {"color": INK, "width": 1.5, "dash": "dot"},
            "marker": {"size": [0, 11], "symbol": "circle", "color": INK},
        }
    )
    side = "right" if inside > MOST_TOKENS**0.5 else "left"
    where = f"{ridge:,.0f} tokens" if 1 <= ridge <= MOST_TOKENS else f"{ridge:,.2g} tokens, off the axis"
    label = f"ridge: {ridge_point(bandwidth, peak):,.0f} FLOP per byte,<br>here {where} a sequence"
    each = ceiling_tokens_per_second(size, bandwidth)
    v = roofline(8 * batch, size, flops, bandwidth, peak) / roofline(batch, size, flops, bandwidth, peak)
    sentence = (
        f"Plain decoding: at most <b>{each:,.1f}</b> tokens/s for each sequence.<br>A pass over 8 tokens costs "
        f"<b>{v:.2f} ×</b> one over 1."
    )
    if "draft" in lines:
        sentence += f" c from bytes: <b>{lines['draft'][0] / size:.3f}</b>."
    labels = [
        note(label, x=math.log10(inside), y=math.log10(top / 30), xref="x", yref="y", yanchor="bottom")
        | {"xanchor": side, "xshift": -8 if side == "right" else 8, "font": {"size": 12, "color": INK}}
    ]
    for name, ms in ends:
        labels.append(
            note(name, x=math.log10(MOST_TOKENS), y=math.log10(ms), xref="x", yref="y")
            | {"xanchor": "left", "yanchor": "middle", "xshift": 8, "font": {"size": 12, "color": INK}}
        )
    ticks = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 3)]
    fig = style.figure(
        traces,
        396,
        sentence,
        margin={"l": 84, "r": 76, "t": 56, "b": 48},
        xaxis=log2_axis("tokens in the pass, each sequence", 1, MOST_TOKENS),
        yaxis=axis(
            "milliseconds at the least",
            type="log",
            tickvals=ticks,
            ticktext=[f"{t:,.3g}" if t < 1000 else f"{t:,.0f}" for t in ticks],
        ),
    )
    fig["layout"]["annotations"] += labels
    return fig


def log2_axis(title: str, low: int, high: int) -> dict[str, Any]:
    """An axis of numbers of tokens on which each doubling has the same length."""
    ticks = [2**i for i in range(int(math.log2(low)), int(math.log2(high)) + 1)]
    ends = [math.log10(low) - 0.04, math.log10(high) + 0.02]
    return axis(title, type="log", range=ends, tickvals=ticks, ticktext=[f"{t:,}" for t in ticks])
