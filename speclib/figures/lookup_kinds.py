"""Drafters beside each other by kind of text: how fast, and how many tokens a round brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from speclib.figures import style
from speclib.figures.style import INK, OUT, Figure, axis, bar, scatter
from speclib.rows import PLAIN, Row


def kinds_figure(rows: Mapping[str, Sequence[Row]], recorded: Mapping[str, Sequence[Row]] | None = None) -> Figure:
    """The speedup of each drafter on each kind of text, at one K, as bars with AL beside them.

    rows: for each kind its rows, as `sweep.by_kind` gives them; those of plain decoding are left out. recorded: the
    same from a record, drawn as diamonds where kind, drafter and K are the same.
    Taught in notebook 06_lookup, section 'Measure'.
    """
    names = list(dict.fromkeys(row.drafter for of in rows.values() for row in of))
    looks = style.looks(names)
    in_order = (row for of in rows.values() for row in sorted(of, key=lambda row: names.index(row.drafter)))
    shown = [row for row in in_order if row.drafter != PLAIN]
    known = {(r.kind, r.drafter, r.K): r for of in (recorded or {}).values() for r in of}
    then = [known.get((row.kind, row.drafter, row.K)) for row in shown]
    kinds = list(dict.fromkeys(row.kind for row in shown))
    y = [i + 0.7 * kinds.index(row.kind) for i, row in enumerate(shown)]
    most = max([1.0, *(row.speedup for row in shown), *(r.speedup for r in then if r)])
    sentence = "<b>Speedup</b> (dotted: plain decoding), and AL, the tokens per round"
    sentence += f"; ◇ recorded, {max(r.prompts for r in then if r)} prompts of a kind" if any(then) else ""
    traces = [
        bar(
            orientation="h",
            x=[row.speedup for row in shown],
            y=y,
            width=0.74,
            marker={"color": [looks[row.drafter][0] for row in shown]},
            hovertemplate="%{x:.2f}× plain<extra></extra>",
        ),
        scatter(
            x=[1.25 * most] * len(shown),
            y=y,
            mode="text",
            text=[f"{row.speedup:.2f}× · AL {row.mean_accepted_length:.2f}" for row in shown],
            textposition="middle left",
            textfont={"size": 12, "color": INK},
            hoverinfo="skip",
        ),
        scatter(
            x=[r.speedup if r else None for r in then],
            y=y,
            mode="markers",
            marker={"symbol": "diamond-open", "size": 10, "color": INK, "line": {"width": 2}},
            hovertemplate="recorded: %{x:.2f}×<extra></extra>",
        ),
    ]
    labels = [f"{row.kind.replace('_', ' ')} · {row.drafter}" for row in shown]
    line = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "y domain", "xref": "x"}
    return style.figure(
        traces,
        76 + round(24 * (max(y, default=0) + 1)),
        sentence,
        margin={"l": 208, "r": 20, "t": 36, "b": 44},
        xaxis=axis("plain seconds ÷ speculative seconds, per token", range=[0, 1.26 * most]),
        yaxis=axis(range=[max(y, default=0) + 0.6, -0.6], tickvals=y, ticktext=labels, showgrid=False),
        shapes=[{**line, "line": {"color": OUT, "width": 1.5, "dash": "dot"}}],
    )
