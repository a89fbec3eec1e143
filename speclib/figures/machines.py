"""Measured machines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speclib import records
from speclib.cost import SIZES
from speclib.figures import style
from speclib.figures.cost import log2_axis
from speclib.figures.style import INK, Figure, axis, readable, scatter


def machines_figure(found: Sequence[dict[str, Any]]) -> Figure:
    """v by tokens in the pass for several records of `speclib verify-cost`, the target of each.

    Taught in notebook 02_verify_cost, section 'Other machines'.
    """
    dashes, symbols = ("solid", "dash", "dot", "dashdot"), ("circle", "diamond", "square", "x", "cross", "star")
    traces = []
    for i, record in enumerate(found):
        rows = record["models"]["target"]["verify"]
        one = {row["n"]: row["median"] for row in rows}[1]
        label = f"{records.label(record)}, {record['context']} tokens cached, {1000 * one:.1f} ms for 1"
        traces.append(
            scatter(
                x=[row["n"] for row in rows],
                y=[row["median"] / one for row in rows],
                mode="lines+markers",
                name=readable(label, 80).replace("␣", " "),
                line={"color": INK, "dash": dashes[i % len(dashes)], "width": 2},
                marker={"symbol": symbols[i % len(symbols)], "size": 8, "color": INK},
                hovertemplate="%{x} tokens: %{y:.2f} × one<extra></extra>",
            )
        )
    return style.figure(
        traces,
        330 + 22 * len(traces),
        "Time of a pass, in passes over one token",
        margin={"l": 60, "r": 30, "t": 40, "b": 60 + 22 * len(traces)},
        showlegend=True,
        legend={"orientation": "v", "x": 0, "y": -0.22, "yanchor": "top", "font": {"size": 12}},
        xaxis=log2_axis("tokens in the pass", SIZES[0], SIZES[-1]),
        yaxis=axis("× one token", rangemode="tozero", nticks=7),
    )
