"""F7: a text as rows of tokens, where lookup found its end before, and what it proposed from there."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, CLEAR, GREY, INK, OUT, ROLES, Figure, axis, bar, note, scatter, tint

ROWS = 12  # of the text that are shown at most; of a longer one, those around the match and the end

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LEFT, INNER = 84, style.WIDTH - 84 - 14
CHAR, PAD, GAP = 6.65, 9, 2  # pixels: a letter at 11 px, the room around a word, between two words
PITCH, CELL, STRIP = 30, 18, 22

# What a token can be: fill, border, its width, and the word below it, so that no colour stands alone.
_LOOKS = {
    "text": (CLEAR, tint(GREY, 0.35), 1, ""),
    "copied": (tint(BLUE, 0.16), tint(BLUE, 0.5), 1, ROLES["kept"].mark),
    "match": (CLEAR, INK, 2.5, "match"),
    "source": (tint(AMBER, 0.2), AMBER, 1.5, "what followed"),
    "suffix": (CLEAR, INK, 2.5, "last {n}"),
}
_LOOKS |= {
    kind: (role.fill, role.colour, 1 if kind == "unchecked" else 2, f"{role.mark} {kind}")
    for kind, role in ROLES.items()
}


class _Cells:
    """The tokens of a figure with their places, in pixels, and the small words below them."""

    def __init__(self) -> None:
        self.cells: list[tuple[float, float, float, float, str, str, str]] = []
        self.labels: list[tuple[float, float, str]] = []

    def put(self, x: float, y: float, height: float, word: str, kind: str, hint: str = "") -> float:
        """Add a token whose left edge is at x; returns where the next one begins."""
        wide = _wide(word) if height == CELL else max(_wide(word), 66)
        self.cells.append((x, y, wide, height, word, kind, hint))
        return x + wide + GAP

    def label(self, x: float, y: float, text: str) -> None:
        """Put a small word below a place, to the right of what stands in that line already."""
        free = max((at + 5.6 * len(t) + 5 for at, line, t in self.labels if line == y), default=0.0)
        self.labels.append((max(x, free), y, text))

    def traces(self) -> list[dict]:
        x, y, wide, high, words, kinds, hints = ([*column] for column in zip(*self.cells, strict=True))
        fill, line, width, _ = ([*column] for column in zip(*(_LOOKS[k] for k in kinds), strict=True))
        struck = [f"<s>{w}</s>" if k in ("rejected", "unchecked") else w for w, k in zip(words, kinds, strict=True)]
        tokens = bar(
            orientation="h",
            base=x,
            x=wide,
            y=y,
            width=high,
            text=struck,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"family": MONO, "size": 11, "color": INK},
            marker={"color": fill, "line": {"color": line, "width": width}},
            customdata=hints,
            hovertemplate="%{customdata}<extra></extra>",
        )
        small = scatter(
            x=[at for at, _, _ in self.labels],
            y=[line for _, line, _ in self.labels],
            text=[text for _, _, text in self.labels],
            mode="text",
            textposition="middle right",
            textfont={"size": 10, "color": INK},
            hoverinfo="skip",
        )
        return [tokens, small]


def lookup_figure(
    words: Sequence[str],
    n: int,
    match: int | None,
    proposed: Sequence[str] = (),
    kept: int | None = None,
    last: str = "plain",
    token: str = "",
    *,
    copied: Collection[int] = (),
    answer: int | None = None,
    rows: int = ROWS,
    sentence: str = "",
    foot: str = "",
) -> Figure:
    """One round of lookup: the text with its end and the match marked, and below what was proposed.

    words: the text's tokens as labels. n: how many of the last ones were looked for; match: where they began before,
    None on a miss. proposed: the drafts. kept: how many the target kept, None before it was asked; last: what came
    behind them, "fix", "bonus" or "plain", and token its label. copied: places of the text that were kept drafts.
    answer: where the answer begins. rows: how many rows of text there is room for. sentence, foot: above and below.
    Taught in notebook 06_lookup, section 'Drag it: where drafts are found'.
    """
    cells, marks = _Cells(), _marks(len(words), n, match, len(proposed), copied)
    lines = _wrap([_wide(w) for w in words])
    here = None if match is None else next(i for i, (a, b) in enumerate(lines) if a <= match < b)
    y, said = CELL / 2 + 2, ""
    for line in _visible(len(lines), here, rows):
        if line is None:
            cells.label(0, y, "⋯")
        else:
            x = 0.0
            for i in range(*lines[line]):
                kind, at = marks.get(i, "text"), x
                x = cells.put(at, y, CELL, words[i], kind, f"{words[i]}: token {i + 1} of the text")
                name = "answer ▸" if i == answer and kind in ("text", "copied") else _LOOKS[kind][3].format(n=n)
                if name and (kind == "copied" or name != said):
                    cells.label(at, y + CELL / 2 + 7, name)
                said = name
        y += PITCH
    bottom = y = rows * PITCH + CELL / 2 + 18
    x = 0.0
    for word, kind in _judged(proposed, kept, last, token):
        if x + max(_wide(word), 66) > INNER:
            x, y = 0.0, y + PITCH + 10
        cells.label(x, y + STRIP / 2 + 7, _LOOKS[kind][3])
        x = cells.put(x, y, STRIP, word, kind, f"{word}: {_LOOKS[kind][3]}")
    if not x:
        cells.label(0, y, "nothing: a miss")
    height = bottom + 2 * PITCH + 20
    names = {"tickvals": [CELL / 2 + 2, bottom], "ticktext": ["text", "proposed" if kept is None else "judged"]}
    blank = {"showgrid": False}
    return style.figure(
        cells.traces(),
        int(height) + 62 + 30,
        sentence,
        margin={"l": LEFT, "r": 14, "t": 62, "b": 30},
        barmode="overlay",
        xaxis=axis(range=[0, INNER], showticklabels=False, **blank),
        yaxis=axis(range=[height, 0], **names, **blank),
        shapes=[_divider(bottom - STRIP / 2 - 10)],
        annotations=[
            note(sentence, x=0, y=1, xanchor="left", yanchor="bottom", xshift=12 - LEFT, yshift=6),
            note(foot, x=0, y=0, xanchor="left", yanchor="top", xshift=12 - LEFT, yshift=-4),
        ],
    )


def _marks(length: int, n: int, match: int | None, k: int, copied: Collection[int]) -> dict[int, str]:
    """What each place of the text is, where it is more than text; the end of the text wins where marks overlap."""
    marks = dict.fromkeys(copied, "copied")
    if match is not None:
        marks |= dict.fromkeys(range(match + n, min(match + n + k, length)), "source")
        marks |= dict.fromkeys(range(match, match + n), "match")
        marks |= dict.fromkeys(range(length - n, length), "suffix")
    return marks


def _judged(proposed: Sequence[str], kept: int | None, last: str, token: str) -> list[tuple[str, str]]:
    if kept is None:
        return [(w, "draft") for w in proposed]
    judged = ["kept"] * kept + ["rejected"] + ["unchecked"] * len(proposed)
    return [*zip(proposed, judged, strict=False), (token, last)]


def rows_of(words: Sequence[str]) -> int:
    """How many rows a text of these labels is shown in."""
    return min(ROWS, len(_wrap([_wide(w) for w in words])))


def _wide(word: str) -> float:
    return CHAR * len(html.unescape(word)) + PAD


def _wrap(widths: Sequence[float]) -> list[tuple[int, int]]:
    """The rows that words of these widths take: (first, behind the last) of each."""
    rows, start, x = [], 0, 0.0
    for i, wide in enumerate(widths):
        if x + wide > INNER and i > start:
            rows.append((start, i))
            start, x = i, 0.0
        x += wide + GAP
    return [*rows, (start, len(widths))]


def _visible(rows: int, match: int | None, most: int) -> list[int | None]:
    """Which rows of a text are shown, None for a gap: the last ones, and those around the match."""
    if rows <= most:
        return list(range(rows))
    tail = rows - most + 1
    if match is None or match >= tail:
        return [None, *range(tail, rows)]
    if match >= rows - most + 3:
        return [None, *range(match - 1, rows)]
    head = range(max(0, match - 1), match + 2)
    gap = [None] if head[0] else []
    return [*gap, *head, None, *range(rows - most + len(head) + len(gap) + 1, rows)]


def _divider(y: float) -> dict:
    line = {"color": OUT, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "y", "x0": 0, "x1": INNER, "y0": y, "y1": y, "line": line}
