"""The one look of all figures: palette, layout for light and dark pages, names of tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

# In plotly's own JSON form, {"data": …, "layout": …}: `plotly.graph_objects.Figure(figure)` is the object.
# Building that takes longer than a drag may, so figures are functions to this form, and a drag never makes it.
Figure = dict[str, Any]


def tint(colour: str, alpha: float) -> str:
    """A colour of the palette over what is behind it: alpha 1 hides that, 0 nothing."""
    return f"rgba({_rgb(colour)}, {alpha})"


def _rgb(colour: str) -> str:
    return ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))


AMBER = "#E6A23C"  # the draft, and whatever guesses
DEEP_AMBER = "#A8641A"  # the same, where two lines lie side by side
BLUE = "#2F6FDE"  # the target, and what is kept
DEEP_BLUE = "#2257B5"  # the same, where two slices lie side by side
PALE_BLUE = "#A9C8F5"  # the residual
RED = "#D64550"  # rejected
GREEN = "#2E9E6B"  # what the target adds itself: fix and bonus; and the best of several
WHITE, DARK_INK = "#FFFFFF", "#1F2933"  # for what has its own background on light and dark pages alike
CLEAR = "rgba(0,0,0,0)"
# Between the inks of light and dark pages, equally readable on both; in JupyterLab `INK_CSS` puts the page's
# ink.
INK = "#74808E"
PAGE_INK = f"var(--jp-ui-font-color1, {INK})"
SOFT_INK = f"var(--jp-ui-font-color2, {INK})"
GREY = "#808080"
GRID = tint(GREY, 0.15)
OUT = tint(GREY, 0.7)  # what is cut away


class Role(NamedTuple):
    """What became of a token, in every figure: a colour, and a mark and a border, so that no colour stands alone."""

    colour: str
    mark: str
    border: str

    @property
    def fill(self) -> str:
        return tint(self.colour, 0.2)


ROLES = {
    "draft": Role(AMBER, "?", "dashed"),
    "kept": Role(BLUE, "✓", "solid"),
    "rejected": Role(RED, "✗", "solid"),  # and struck through, as is the next
    "unchecked": Role(RED, "–", "dotted"),
    "fix": Role(GREEN, "+", "double"),
    "bonus": Role(GREEN, "★", "double"),
    "plain": Role(INK, "·", "dotted"),
}
# Plain decoding, and who guesses: colour and symbol. All that guess are amber, so the symbol tells them apart.
LOOKS = {"plain": (INK, "circle"), "speculative": (AMBER, "diamond")}
LOOKS |= {"model": (AMBER, "circle"), "lookup": (DEEP_AMBER, "diamond"), "lookup+model": (AMBER, "square")}
OTHERS = ("triangle-up", "star", "pentagon", "hexagon")

WIDTH = 760
LEFT, RIGHT = 132, 92
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

INK_CSS = "<style>.js-plotly-plot .main-svg { background: transparent !important; } " + " ".join(
    f'.js-plotly-plot [style*="{how}: rgb({_rgb(INK)})"] {{ {how}: {PAGE_INK} !important; }}'
    for how in ("fill", "stroke")
)
INK_CSS += "</style>"


def looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and symbol of each name; one that `LOOKS` does not know takes the next of the other symbols."""
    others = itertools.cycle(OTHERS)
    return {name: LOOKS.get(name) or (DEEP_AMBER, next(others)) for name in names}


def figure(traces: list[dict[str, Any]], height: int, sentence: str = "", **layout: Any) -> Figure:
    """A figure with the course's look: transparent, nothing to zoom by accident, a sentence above its plot.

    height: pixels. layout: plotly's, on top of the base. The sentence is the figure's first annotation.
    """
    layout = {"margin": {"l": LEFT, "r": RIGHT, "t": 36, "b": 44}, **layout}
    left = 12 - layout["margin"]["l"]
    base = {
        "template": "none",
        "width": WIDTH,
        "height": height,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": FONT, "size": 13, "color": INK},
        "showlegend": False,
        "bargap": 0.28,
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {"font": {"family": FONT}},
        "annotations": [note(sentence, x=0, y=1, xanchor="left", yanchor="bottom", xshift=left, yshift=8)],
    }
    return {"data": traces, "layout": {**base, **layout}}


def bar(**properties: Any) -> dict[str, Any]:
    """A trace of bars."""
    return {"type": "bar", **properties}


def scatter(**properties: Any) -> dict[str, Any]:
    """A trace of points, lines or text."""
    return {"type": "scatter", **properties}


def hatch(colour: str) -> dict[str, Any]:
    """A marker that is drawn in outline and diagonal lines: colour never carries a meaning alone."""
    lines = {"shape": "/", "size": 6, "solidity": 0.25, "fgcolor": colour, "fillmode": "overlay"}
    return {"color": CLEAR, "line": {"color": colour, "width": 1}, "pattern": lines}


def stripes(colour: str) -> str:
    """The same as a background in CSS."""
    return f"repeating-linear-gradient(135deg, {colour} 0 2px, transparent 2px 7px)"


def blues(part: float) -> str:
    """From pale blue (part 0) to deep blue (1)."""
    pale, deep = (214, 228, 250), (20, 52, 110)
    return f"rgb({', '.join(str(round(a + part * (b - a))) for a, b in zip(pale, deep, strict=True))})"


def note(text: str, **where: Any) -> dict[str, Any]:
    """An annotation without an arrow; x and y are shares of the plot unless `where` says otherwise."""
    return {
        "text": text,
        "showarrow": False,
        "xref": "x domain",
        "yref": "y domain",
        "align": "left",
        "font": {"size": 13, "color": INK},
        **where,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis that cannot be zoomed by accident, with faint grid lines and a title that holds the unit."""
    base = {"fixedrange": True, "gridcolor": GRID, "zeroline": False, "showline": False}
    base |= {"ticks": "", "ticklabelstandoff": 6}  # labels keep off the plot
    # Else plotly measures every label at each change, a sixth of a drag; the margins hold them all.
    base |= {"ticklabeloverflow": "allow"}
    return {**base, "title": {"text": title, "font": {"size": 12}, "standoff": 8}, **more}


def below(upper: Figure, lower: Figure) -> Figure:
    """Two figures as one, the second below the first: one widget, updated in one message.

    Each keeps the pixels of its own height; traces and annotations of the lower move to x2 and y2.
    """
    up, low = upper["layout"], lower["layout"]
    top, bottom = up["margin"]["t"], low["margin"]["b"]
    # Domains are shares of what lies between the outer margins.
    inner = up["height"] + low["height"] - top - bottom
    low_top = (low["height"] - low["margin"]["t"] - bottom) / inner
    up_bottom = (low["height"] - bottom + up["margin"]["b"]) / inner
    refs = {"xref": "x2 domain", "yref": "y2 domain"}
    layout = {
        **low,
        **up,
        "height": up["height"] + low["height"],
        "margin": {**up["margin"], "b": bottom},
        "xaxis": {**up["xaxis"], "anchor": "y"},
        "yaxis": {**up["yaxis"], "domain": [up_bottom, 1]},
        "xaxis2": {**low["xaxis"], "anchor": "y2"},
        "yaxis2": {**low["yaxis"], "anchor": "x2", "domain": [0, low_top]},
        "annotations": up["annotations"] + [{**a, **refs} for a in low["annotations"]],
    }
    moved = [{**trace, "xaxis": "x2", "yaxis": "y2"} for trace in lower["data"]]
    return {"data": upper["data"] + moved, "layout": layout}


def readable(text: str, most: int = 14) -> str:
    """A token's text as a label: blanks as ␣, line ends as ⏎, shortened, and safe in HTML, attributes and plotly's."""
    shown = text.replace(" ", "␣").replace("\n", "⏎").replace("\r", "␍").replace("\t", "⇥")
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown) or "(empty)"
    if len(shown) > most:
        shown = shown[: most - 1] + "…"
    # The dollar would start a formula where the page has MathJax.
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&#34;"), ("$", "&#36;")):
        shown = shown.replace(char, entity)
    return shown


def apart(names: Iterable[tuple[str, float]], gap: float) -> list[tuple[str, float]]:
    """Names with their places, from the lowest up, pushed apart to at least a gap."""
    place, out = -math.inf, []
    for name, at in sorted(names, key=lambda named: named[1]):
        place = max(at, place + gap)
        out.append((name, place))
    return out


def share(x: float) -> str:
    """A probability as text: three decimals, but a small one is never written as 0.000."""
    return "0" if x == 0 else "<0.001" if x < 0.0005 else f"{x:.3f}"
