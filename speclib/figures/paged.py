"""A cache that is kept in pages, and what a rollback does to it."""

from __future__ import annotations

from typing import Any

from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, CLEAR, INK, OUT, RED, Figure, axis, note, scatter

SLOTS = 4
# What stands in each slot, block by block: text, drafts, and what is left behind without belonging to anything.
_ROWS = (
    ("before the round: 6 tokens covered", "t1 t2 t3 t4 t5 t6 - -", (7, 2)),
    ("one pass over t7 and 4 drafts: 11 covered", "t1 t2 t3 t4 t5 t6 t7 d1 d2 d3 d4 -", (7, 2, 9)),
    ("d1 is kept, the rest is not: 8 covered", "t1 t2 t3 t4 t5 t6 t7 ✓d1 ✗d2 ✗d3 ✗d4 -", (7, 2, 9)),
)


def paged_rollback() -> Figure:
    """A round in a paged cache of four slots a block: filled, then rewound, and a block handed back.

    Taught in notebook 03_greedy, section 'Where the cache has pages'.
    """
    shapes: list[dict[str, Any]] = []
    words: dict[str, list[Any]] = {"x": [], "y": [], "text": []}
    notes = []
    for row, (name, line, blocks) in enumerate(_ROWS):
        slots = [text.strip("-") for text in line.split()]
        y = 2 - row
        notes.append(note(f"<b>{name}</b>", x=0, y=y + 0.50, xref="x", yref="y", xanchor="left", yanchor="bottom"))
        for b, block in enumerate(blocks):
            left = b * (SLOTS + 0.6)
            freed = row == 2 and b == 2
            for i, text in enumerate(slots[b * SLOTS : (b + 1) * SLOTS]):
                colour, border = _look(text)
                shapes.append(_box(left + i, y, colour, border))
                words["x"].append(left + i + 0.5)
                words["y"].append(y + 0.16)
                words["text"].append(text)
            label = f"block {block}" + (
                ": back to the free blocks" if freed else ", newly taken" if row == 1 and b == 2 else ""
            )
            notes.append(
                note(
                    label,
                    x=left,
                    y=y - 0.13,
                    xref="x",
                    yref="y",
                    xanchor="left",
                    yanchor="top",
                    font={"size": 11, "color": INK},
                )
            )
    width = 3 * (SLOTS + 0.6)
    return style.figure(
        [scatter(**words, mode="text", textfont={"size": 12, "color": INK}, hoverinfo="skip")],
        330,
        margin={"l": 16, "r": 16, "t": 10, "b": 10},
        shapes=shapes,
        annotations=notes,
        xaxis=axis(range=[-0.1, width], visible=False),
        yaxis=axis(range=[-0.45, 2.9], visible=False),
    )


def _look(text: str) -> tuple[str, str]:
    colour = {"t": BLUE, "✓": BLUE, "d": AMBER, "✗": RED}.get(text[:1], OUT)
    return colour, "solid" if text[:1] in ("t", "✓", "d") else "dot"


def _box(x: float, y: float, colour: str, border: str) -> dict[str, Any]:
    fill = colour if border == "solid" else CLEAR
    return {
        "type": "rect",
        "x0": x + 0.04,
        "x1": x + 0.96,
        "y0": y - 0.12,
        "y1": y + 0.44,
        "fillcolor": fill,
        "opacity": 1.0 if border == "dot" else 0.35,
        "line": {"color": colour, "width": 1.5, "dash": border},
        "layer": "below",
    }
