"""A sweep drawn: speedup against K for every drafter, measured beside predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speclib.figures import style
from speclib.figures.style import INK, OUT, Figure, axis, note, readable, scatter
from speclib.rows import PEER, PLAIN, Row

HEIGHT, TOP, BOTTOM = 380, 40, 52
APART = 17  # pixels between two labels


def sweep_figure(rows: Sequence[Row]) -> Figure:
    """Speedup against K: filled marks and whiskers are measured (95 % over prompts), open ones predicted.

    rows: of `sweep.table`. A peer has the mark of the drafter that it is compared with, in grey on a dashed line;
    plain decoding is the line at 1. ValueError: rows without any drafter.
    Taught in notebook 05_sweep, section 'Predicted and measured'.
    """
    drawn = [row for row in rows if row.K > 0]
    if not drawn:
        raise ValueError("there is nothing to draw: give rows of at least one drafter")
    names, ks = list(dict.fromkeys(row.drafter for row in drawn)), sorted({row.K for row in drawn})
    looks = _looks(names)
    tops = [max(row.interval[1], row.predicted if row.predicted == row.predicted else 0.0) for row in drawn]
    low, high = min(0.0, *(row.interval[0] for row in drawn)), 1.08 * max(1.0, *tops)
    traces: list[dict[str, Any]] = []
    ends: list[tuple[float, str, str]] = []
    for i, name in enumerate(names):
        of, (colour, symbol, dash) = [row for row in drawn if row.drafter == name], looks[name]
        shift = 0.08 * (i - (len(names) - 1) / 2)  # whiskers side by side
        x = [row.K + shift for row in of]
        look = {"color": colour, "symbol": symbol, "size": 9}
        traces.append(
            scatter(
                x=x,
                y=[row.speedup for row in of],
                mode="lines+markers",
                marker=look,
                line={"color": colour, "width": 1.5, "dash": dash},
                error_y={
                    "array": [row.interval[1] - row.speedup for row in of],
                    "arrayminus": [row.speedup - row.interval[0] for row in of],
                    "color": colour,
                    "thickness": 1.2,
                    "width": 3,
                },
                customdata=[[row.K, row.tokens_per_second, row.mean_accepted_length] for row in of],
                hovertemplate=readable(name, 40).replace("␣", " ")
                + ", K = %{customdata[0]}: %{y:.2f} ×, %{customdata[1]:.1f} tokens/s, AL %{customdata[2]:.2f}"
                "<extra>measured</extra>",
            )
        )
        foretold = [(at, row) for at, row in zip(x, of, strict=True) if row.predicted == row.predicted]
        if foretold:
            traces.append(
                scatter(
                    x=[at for at, _ in foretold],
                    y=[row.predicted for _, row in foretold],
                    mode="markers",
                    marker={**look, "symbol": f"{symbol}-open", "size": 13, "line": {"width": 1.5}},
                    customdata=[row.K for _, row in foretold],
                    hovertemplate=readable(name, 40).replace("␣", " ")
                    + ", K = %{customdata}: %{y:.2f} ×<extra>predicted</extra>",
                )
            )
        ends.append((of[-1].speedup, name, colour))
    traces.append(
        scatter(
            x=[ks[0] - 0.4, ks[-1] + 0.4],
            y=[1, 1],
            mode="lines",
            line={"color": INK, "width": 1, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    figure = style.figure(
        traces,
        HEIGHT,
        "Speedup over plain decoding: <b>filled</b> measured, with 95 % over prompts; <b>open</b> predicted",
        margin={"l": 60, "r": 170, "t": TOP, "b": BOTTOM},
        xaxis=axis("K, drafts asked for per round", tickvals=ks, showgrid=False, range=[ks[0] - 0.4, ks[-1] + 0.4]),
        yaxis=axis("× plain", range=[low, high], nticks=8),
    )
    figure["layout"]["annotations"] += _labels([(1.0, PLAIN, INK), *ends], low, high)
    return figure


def _looks(names: list[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, symbol and dash of each drafter."""
    own = style.looks(name for name in names if not name.startswith(PEER))
    peers = {name: name.removeprefix(PEER).strip() for name in names if name.startswith(PEER)}
    return {name: (*look, "solid") for name, look in own.items()} | {
        name: (OUT, (own.get(like) or style.looks([like])[like])[1], "dash") for name, like in peers.items()
    }


def _labels(ends: list[tuple[float, str, str]], low: float, high: float) -> list[dict[str, Any]]:
    """The names right of the plot, each at the height of its line's end or as near as its neighbours let it."""
    step = APART * (high - low) / (HEIGHT - TOP - BOTTOM)
    found: list[dict[str, Any]] = []
    at = float("-inf")
    for y, name, colour in sorted(ends):
        at = max(y, at + step)
        font = {"size": 12, "color": INK if colour == OUT else colour}
        shown = readable(name, 24).replace("␣", " ")
        found.append(note(shown, x=1, y=at, yref="y", xanchor="left", xshift=6, font=font))
    return found
