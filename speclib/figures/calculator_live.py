"""The sweep while it runs: measured speedup against K beside the predicted one, run by run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from speclib.figures import style
from speclib.figures.calculator import Point
from speclib.figures.live import Board, settle
from speclib.figures.style import AMBER, BLUE, INK, Figure, axis, note, scatter
from speclib.rows import Row, Run, table


def race_figure(rows: Sequence[Row], ks: Sequence[int], recorded: Sequence[Row] = (), sentence: str = "") -> Figure:
    """Measured speedup against K with its 95 % interval, the predicted one, and a recorded run beside them.

    rows, recorded: as `rows.table` gives them, one drafter's; plain rows and what was not measured yet are left out.
    ks: what the axis shows. Taught in notebook 05_sweep, section 'Measure'.
    """
    of = {row.K: row for row in rows if row.K and not math.isnan(row.speedup)}
    before = [row for row in recorded if row.K]
    places = {k: i for i, k in enumerate(sorted({*ks, *(row.K for row in before)}))}
    seen = sorted(of)
    points = [Point(places[k], of[k].speedup, *of[k].interval) for k in seen]
    told = {
        "text": [f"{p.speedup:.2f}" for p in points] or [""],
        "textposition": "middle right",
        "textfont": {"size": 11},
    }
    traces = [
        scatter(
            x=[-0.5, len(places) - 0.5],
            y=[1, 1],
            mode="lines",
            line={"color": INK, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
            showlegend=False,
        ),
        scatter(
            x=[places[row.K] - 0.12 for row in before] or [None],
            y=[row.speedup for row in before] or [None],
            mode="lines+markers",
            line={"color": INK, "width": 1.5, "dash": "dash"},
            marker={"symbol": "square-open", "size": 8, "color": INK},
            name="recorded",
            hovertemplate="recorded: %{y:.2f} ×<extra></extra>",
            showlegend=bool(before),
        ),
        _measured(
            points,
            mode="markers+text",
            name="measured, with 95 % interval",
            hovertemplate="measured: %{y:.2f} ×<extra></extra>",
            **told,
        ),
        scatter(
            x=[p.K for p in points] or [None],
            y=[of[k].predicted for k in seen] or [None],
            mode="markers",
            marker={"symbol": "diamond-open", "size": 13, "color": AMBER, "line": {"width": 2}},
            name="predicted from AL, c and v",
            hovertemplate="predicted: %{y:.2f} ×<extra></extra>",
        ),
    ]
    highest = [of[k].interval[1] for k in seen] + [row.speedup for row in before] + [of[k].predicted for k in seen]
    top = math.ceil(2 * 1.05 * max([1.4, *highest])) / 2
    fig = style.figure(
        traces,
        330,
        sentence,
        margin={"l": 66, "r": 20, "t": 66, "b": 48},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}}
        | {"itemclick": False, "itemdoubleclick": False},
        xaxis=axis("K, drafts per round", range=[-0.5, len(places) - 0.5], showgrid=False)
        | {"tickvals": list(places.values()), "ticktext": [str(k) for k in places]},
        yaxis=axis("times plain decoding", range=[0, top], nticks=6, ticksuffix=" ×"),
    )
    fig["layout"]["annotations"][0]["yshift"] = 34
    fig["layout"]["annotations"].append(
        note("break-even", x=len(places) - 0.5, y=1, xref="x", yref="y", xanchor="right", yanchor="top")
        | {"font": {"size": 12, "color": INK}}
    )
    return fig


def _measured(points: Sequence[Point], **more: Any) -> dict[str, Any]:
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


def live_sweep(runs: Iterable[Run], total: int, ks: Sequence[int], recorded: Sequence[Row] = ()) -> list[Run]:
    """Display a sweep's figure and a progress bar, then measure, and let the figure follow run by run.

    runs: what `sweep.race` yields. total: how many it will be. ks, recorded: as `race_figure` takes them.
    Interrupting the kernel ends it early and keeps the runs that were made, if one of each kind is among them;
    otherwise the interruption goes on. Returns the runs. Taught in notebook 05_sweep, section 'Measure'.
    """
    done: list[Run] = []
    bar = widgets.IntProgress(0, 0, total, description="sweep", tooltip="runs made", layout={"width": "360px"})
    word = widgets.Label("warming up")
    word.add_class("speclib-progress")

    def draw() -> Figure:
        return race_figure(table(done), ks, recorded, _so_far(done, total))

    row = widgets.HBox([bar, word], layout={"align_items": "center"})
    board = Board([], draw, "Figure: measured and predicted speedup against K.", [row])
    handle = display(board, display_id=True)
    try:
        for run in runs:
            done.append(run)
            bar.value = len(done)
            word.value = f"{len(done)} of {total} runs; the last: {run.prompt}, {f'K = {run.K}' if run.K else 'plain'}"
            board.redraw()
    except KeyboardInterrupt:
        if not {0, *ks} <= {run.K for run in done}:
            raise
        print("Interrupted: the figure shows the runs that were made. Run the cell again to start over.")
    settle(handle, board)
    return done


def _so_far(done: Sequence[Run], total: int) -> str:
    rows = [row for row in table(done) if row.K]
    if not rows:
        return "Nothing is measured yet."
    best = max(rows, key=lambda row: row.speedup)
    rest = "" if len(done) >= total else f" · {len(done)} of {total} runs"
    if best.speedup < 1:
        return f"plain decoding is the fastest here: <b>{best.speedup:.2f} ×</b> at the best K, {best.K}{rest}"
    return f"fastest: <b>K = {best.K}</b>, <b>{best.speedup:.2f} ×</b> plain decoding{rest}"
