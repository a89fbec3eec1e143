"""Line charts as SVG, for figures that are dragged: plotly takes half of 100 ms to draw one anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from speclib.figures import style
from speclib.figures.style import GRID, PAGE_INK

CSS = f"""<style>
.sl-chart {{ font: 13px/1.4 {style.FONT}; color: {PAGE_INK}; width: {style.WIDTH}px; box-sizing: border-box; }}
.sl-chart .head {{ margin: 4px 12px 6px; }}
.sl-chart svg {{ display: block; overflow: visible; }}
.sl-chart text {{ font: 12px {style.FONT}; fill: {PAGE_INK}; }}
.sl-chart .grid {{ stroke: {GRID}; }}
.sl-chart .hit {{ fill: transparent; }}
.sl-chart .hit:hover {{ fill: {GRID}; }}
</style>"""


@dataclass(frozen=True)
class Panel:
    """A plot within an SVG: its place in pixels, and the numbers at the ends of its axes."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """From numbers to pixels."""
        (x0, x1), (y0, y1) = self.x, self.y
        return self.left + self.width * (x - x0) / (x1 - x0), self.top + self.height * (y1 - y) / (y1 - y0)

    def line(self, xs: Iterable[float], ys: Iterable[float], look: str, kind: str = "") -> str:
        """Straight lines from point to point. look: in CSS, such as that of `stroke`. kind: the class."""
        points = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))
        return f'<polyline class="{kind}" points="{points}" style="fill:none;{look}"/>'

    def area(self, xs: Iterable[float], ys: Iterable[float], look: str, hint: str) -> str:
        """What lies below the line. hint: said when one points at it."""
        points = [*zip(xs, ys, strict=True)]
        shape = [(points[0][0], self.y[0]), *points, (points[-1][0], self.y[0])]
        d = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in shape)
        # Soft edges, many to a pixel in a corner, would make pictures of a map a fifth larger.
        return f'<polygon points="{d}" style="shape-rendering:crispEdges;{look}"><title>{hint}</title></polygon>'

    def mark(self, x: float, y: float, shape: str, look: str, kind: str = "", hint: str = "") -> str:
        """A shape around its own origin, such as `circle r="3"`, put at (x, y). hint: as for `area`."""
        across, down = self.at(x, y)
        title = f"<title>{hint}</title>" if hint else ""
        place = f'transform="translate({across:.1f} {down:.1f})"'
        return f'<g class="{kind}" {place}>{title}<{shape} style="{look}"/></g>'

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", *, dx: float = 0, dy: float = 0, look: str = ""
    ) -> str:
        """Words that start, have their middle or end at (x, y) as `anchor` says; moved by dx and dy pixels."""
        across, down = self.at(x, y)
        place = f'x="{across + dx:.1f}" y="{down + dy:.1f}"'
        return f'<text {place} style="text-anchor:{anchor};{look}">{words}</text>'

    def column(self, left: float, right: float, hint: str) -> str:
        """All that lies between two x, unseen: it says something when one points at it."""
        x0, x1 = self.at(left, 0)[0], self.at(right, 0)[0]
        box = f'x="{x0:.1f}" y="{self.top}" width="{x1 - x0:.1f}" height="{self.height}"'
        return f'<rect class="hit" {box}><title>{hint}</title></rect>'

    def axes(self, xs: Mapping[float, str], ys: Mapping[float, str], titles: tuple[str, str]) -> str:
        """Grid lines with their labels. titles: of x and y."""
        bottom, left = self.top + self.height, self.left
        parts = []
        for x, label in xs.items():
            across, _ = self.at(x, 0)
            parts.append(f'<path class="grid" d="M{across:.1f} {bottom}v-{self.height}"/>')
            parts.append(self.text(x, self.y[0], label, "middle", dy=18))
        for y, label in ys.items():
            _, down = self.at(0, y)
            parts.append(f'<path class="grid" d="M{left} {down:.1f}h{self.width}"/>')
            parts.append(self.text(self.x[0], y, label, "end", dx=-8, dy=4))
        across, middle = left + self.width / 2, self.top + self.height / 2
        parts.append(f'<text x="{across}" y="{bottom + 38}" style="text-anchor:middle">{titles[0]}</text>')
        turned = f'transform="rotate(-90)" x="{-middle}" y="{left - 48}"'
        parts.append(f'<text {turned} style="text-anchor:middle">{titles[1]}</text>')
        return "".join(parts)


def numbers(step: float, most: float, unit: str = "") -> dict[float, str]:
    """0, a step, two steps … up to most, with their labels."""
    return {i * step: f"{i * step:g}{unit}" for i in range(int(most / step + 1e-9) + 1)}


def chart(head: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A sentence, and below it an SVG of these parts."""
    svg = f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'
    return f'{CSS}<div class="sl-chart"><div class="head" role="status">{head}</div>{svg}</div>'
