"""F7: a text as rows of tokens, where lookup found its end before, and what it proposed from there; a page of HTML."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from typing import NamedTuple

from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, CLEAR, GREY, OUT, PAGE_INK, ROLES, SOFT_INK, tint

ROWS = 12  # of the text that are shown at most; of a longer one, those around the match and the end

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LEFT, INNER = 84, style.WIDTH - 84 - 14
CHAR, PAD, GAP = 6.65, 9, 2  # pixels: a letter at 11 px, the room around a word, between two words
SMALL, LEAST = 5.6, 66  # a letter of the words below; the least width of a proposed token, which has such a word
PITCH, CELL, STRIP = 30, 18, 22  # from row to row; a token's height in the text, and among the proposed


class _Look(NamedTuple):
    fill: str
    border: str
    word: str


# What a token can be, and the word below it, so that no colour stands alone.
_LOOKS = {
    "text": _Look(CLEAR, f"1px solid {tint(GREY, 0.35)}", ""),
    "copied": _Look(tint(BLUE, 0.16), f"1px solid {tint(BLUE, 0.5)}", ROLES["kept"].mark),
    "match": _Look(CLEAR, f"2.5px solid {PAGE_INK}", "match"),
    "source": _Look(tint(AMBER, 0.2), f"1.5px solid {AMBER}", "what followed"),
    "suffix": _Look(CLEAR, f"2.5px solid {PAGE_INK}", "last {n}"),
}
_LOOKS |= {
    # Thinner, a double line would be a single one.
    kind: _Look(role.fill, f"{2 + (role.border == 'double')}px {role.border} {role.colour}", f"{role.mark} {kind}")
    for kind, role in ROLES.items()
}

CSS = f"""<style>
.sl-look {{ font: 13px/1.4 {style.FONT}; color: {PAGE_INK}; width: {style.WIDTH}px; box-sizing: border-box; }}
.sl-look .head {{ min-height: 37px; margin: 6px 0 8px; }}
.sl-look .part {{ position: relative; padding-left: {LEFT}px; }}
.sl-look .proposed {{ border-top: 1px dotted {OUT}; padding-top: 10px; min-height: {2 * PITCH + 20}px; }}
.sl-look .name {{ position: absolute; left: 0; width: {LEFT - 10}px; text-align: right; }}
.sl-look .line {{ position: relative; display: flex; gap: {GAP}px; height: {PITCH}px; }}
.sl-look .proposed .line {{ height: {PITCH + 10}px; }}
.sl-look .line span {{ display: flex; align-items: center; justify-content: center; box-sizing: border-box; flex: none;
  height: {CELL}px; font: 11px {MONO}; white-space: pre; overflow: hidden; }}
.sl-look .proposed span {{ height: {STRIP}px; }}
.sl-look small {{ position: absolute; top: {CELL}px; font-size: 10px; white-space: pre; }}
.sl-look .proposed small {{ top: {STRIP + 1}px; }}
.sl-look .foot {{ color: {SOFT_INK}; }}
{" ".join(f".sl-look .line .{k} {{ background: {look.fill}; border: {look.border}; }}" for k, look in _LOOKS.items())}
</style>"""


class _Line:
    """One row of tokens, and the small words below them."""

    def __init__(self) -> None:
        self.right = self.free = 0.0
        self.parts: list[str] = []

    def put(self, word: str, kind: str, below: str = "", least: int = 0, hint: str = "") -> None:
        """Add a token; below: to the right of what stands below already."""
        wide = max(_wide(word), least)
        if below:
            at = max(self.right, self.free)
            self.free = at + SMALL * len(below) + 5
            self.parts.append(f'<small style="left: {at:.1f}px">{below}</small>')
        word = f"<s>{word}</s>" if kind in ("rejected", "unchecked") else word
        self.parts.append(f'<span class="{kind}" style="width: {wide:.1f}px" title="{hint}">{word}</span>')
        self.right += wide + GAP

    def __str__(self) -> str:
        return f'<div class="line">{"".join(self.parts)}</div>'


def lookup_html(
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
) -> str:
    """One round of lookup: the text with its end and the match marked, and below what was proposed.

    words: the text's tokens as labels, safe in HTML. n: how many of the last ones were looked for; match: where they
    began before, None on a miss. proposed: the drafts. kept: how many the target kept, None before it was asked; last:
    what came behind them, "fix", "bonus" or "plain", and token its label. copied: places of the text that were kept
    drafts. answer: where the answer begins. rows: how many rows of text there is room for. sentence, foot: above and
    below. Taught in notebook 06_lookup, section 'Drag it: where drafts are found'.
    """
    marks = _marks(len(words), n, match, len(proposed), copied)
    spans = _wrap([_wide(w) for w in words])
    here = None if match is None else next(i for i, (a, b) in enumerate(spans) if a <= match < b)
    lines, said = [], ""
    for row in _visible(len(spans), here, rows):
        line = _Line()
        if row is None:
            line.parts.append("⋯")
        for i in range(*spans[row]) if row is not None else ():
            kind = marks.get(i, "text")
            name = "answer ▸" if i == answer and kind in ("text", "copied") else _LOOKS[kind].word.format(n=n)
            below, said = name if kind == "copied" or name != said else "", name
            line.put(words[i], kind, below, hint=f"token {i + 1} of the text")
        lines.append(line)
    strip = [_Line()]
    for word, kind in _judged(proposed, kept, last, token):
        if strip[-1].right + max(_wide(word), LEAST) > INNER:
            strip.append(_Line())
        strip[-1].put(word, kind, _LOOKS[kind].word, LEAST)
    if not strip[0].parts:
        strip[0].parts.append("nothing: a miss")
    above = _part("text", "text", lines, f"min-height: {rows * PITCH + 6}px")
    below = _part("proposed", "proposed" if kept is None else "judged", strip)
    head = f'<div class="head" role="status">{sentence}</div>'
    return f'{CSS}<div class="sl-look">{head}{above}{below}<div class="foot">{foot}</div></div>'


def _part(kind: str, name: str, lines: Sequence[_Line], css: str = "") -> str:
    inner = f'<div class="name">{name}</div>{"".join(map(str, lines))}'
    return f'<div class="part {kind}" role="group" aria-label="{name}" style="{css}">{inner}</div>'


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
