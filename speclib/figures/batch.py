"""Why speculation fades as users share a batch, to drag: the speedup against the users, and the best K; an SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import ipywidgets as widgets

from speclib.cost import Machine, roofline
from speclib.figures import style, svg
from speclib.figures.page import HALF, LABEL, PageBoard, selection, slider
from speclib.figures.style import BLUE, GREEN, PAGE_INK
from speclib.speedup import best_k, speedup

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST_K = 12
_ACROSS = (-0.15, math.log2(USERS[-1]) + 0.07)
_LEFT, _WIDE, _UPPER, _LOWER = 72, 540, 230, 84  # pixels


def verify_in_batch(
    users: int, bytes: float, cache: float, flops: float, bandwidth: float, peak: float, most: int = MOST_K
) -> list[float]:
    """v(K) for K = 0 … most when `users` texts share a pass: its time over K + 1 tokens each ÷ over one each.

    bytes: of the weights, read once for all; cache: of one text's KV cache, read for each; flops: per token; bandwidth
    and peak of the machine. By the roofline, so at the least.
    Taught in notebook 07_serve_and_bench, section 'Why it fades with many users'.
    """
    seconds = [roofline(users * (k + 1), bytes + users * cache, flops, bandwidth, peak) for k in range(most + 1)]
    return [s / seconds[0] for s in seconds]


def batch_html(
    users: int, alpha: float, K: int, c: float, bytes: float, cache: float, flops: float, bandwidth: float, peak: float
) -> str:
    """Speedup against the users that share a batch, for K and for the best K at each; below, which K that is.

    users: marked. alpha, K, c: as in `speedup`; a draft model's steps are taken to grow with the batch as the target's
    do, so c stays. Others: as `verify_in_batch`. Every user's drafts are kept or not on their own; what a round waits
    for is the one pass that they share.
    Taught in notebook 07_serve_and_bench, section 'Why it fades with many users'.
    """
    v = {n: verify_in_batch(n, bytes, cache, flops, bandwidth, peak) for n in USERS}
    best = [best_k(alpha, c, v[n], MOST_K) for n in USERS]
    fixed = [speedup(alpha, K, c, v[n]) for n in USERS]
    tuned = [speedup(alpha, k, c, v[n]) for k, n in zip(best, USERS, strict=True)]
    at, places = USERS.index(users), [math.log2(n) for n in USERS]
    word = f"best K = <b>{best[at]}</b>, <b>{tuned[at]:.2f} ×</b>" if best[at] else "<b>no draft pays</b>: K = 0"
    sentence = f"{users} user{'s' * (users > 1)} in a batch: {word}. With K = {K} it is <b>{fixed[at]:.2f} ×</b> plain."
    top = 1.12 * max(1.0, *tuned)
    upper = svg.Panel(_LEFT, 10, _WIDE, _UPPER, _ACROSS, (0, top))
    lower = svg.Panel(_LEFT, 10 + _UPPER + 64, _WIDE, _LOWER, _ACROSS, (0, MOST_K + 2))
    xs = {x: f"{n:,}" for x, n in zip(places, USERS, strict=True)}
    ink, green = f"stroke:{PAGE_INK};stroke-width:", f"stroke:{GREEN};stroke-width:2"
    halves = [min(max(x + half, 0), places[-1]) for x in places for half in (-0.5, 0.5)]
    parts = [
        upper.axes(xs, svg.numbers(0.5 if top < 3 else 1, top), ("", "speedup")),
        upper.line((0, places[-1]), (1, 1), f"{ink}1.5;stroke-dasharray:1.5 3"),
        upper.line((places[at],) * 2, (0, top), f"{ink}1", "users"),
        upper.line(places, tuned, green, "tuned"),
        upper.line(places, fixed, f"stroke:{BLUE};stroke-width:2;stroke-dasharray:9 6", "fixed"),
    ]
    parts += [_square(upper, x, y, 4.5) for x, y in zip(places, tuned, strict=True)]
    parts += [upper.mark(x, y, 'circle r="4.5"', f"fill:{BLUE}") for x, y in zip(places, fixed, strict=True)]
    ends = style.apart([("plain", 1.0), ("the best K", tuned[-1]), (f"K = {K}", fixed[-1])], 0.09 * top)
    parts += [upper.text(places[-1], y, name, dx=12, dy=4, look="font-weight:bold") for name, y in ends]
    parts += [
        lower.axes(xs, svg.numbers(5, MOST_K), ("users in a batch", "K")),
        lower.text(_ACROSS[0], MOST_K + 2, "The best K:", dx=-58, dy=-10, look="font-size:13px"),
        lower.line(halves, [k for k in best for _ in range(2)], green, "best"),
    ]
    for i, (x, k) in enumerate(zip(places, best, strict=True)):
        parts += [_square(lower, x, k, 4), lower.text(x, k, f"{k}", "middle", dy=-9)]
        hint = f"{USERS[i]:,} users: best K = {k}, {tuned[i]:.2f} ×; K = {K}: {fixed[i]:.2f} ×"
        parts += [panel.column(x - 0.5, x + 0.5, hint) for panel in (upper, lower)]
    return svg.chart(sentence, style.WIDTH, lower.top + lower.height + 46, parts)


def _square(panel: svg.Panel, x: float, y: float, half: float) -> str:
    return panel.mark(x, y, f'rect x="-{half}" y="-{half}" width="{2 * half}" height="{2 * half}"', f"fill:{GREEN}")


class Batch(PageBoard):
    """The speedup in a batch to drag: users, α, K and c, for pairs of models and machines.

    shapes: by the name of a pair its "target" and, if any, "draft", each with the number of weights that a step reads,
    bytes of one text's KV cache and FLOPs per token, as in `figures.cost.roofline_figure`. c starts at the first pair's
    own, from bytes. bits: per weight.
    Taught in notebook 07_serve_and_bench, section 'Why it fades with many users'.
    """

    height = 476
    text = "Figure: speedup against the users that share a batch, and the best K at each."

    def __init__(
        self,
        shapes: Mapping[str, Mapping[str, tuple[float, float, float]]],
        machines: Sequence[Machine],
        alpha: float = 0.7,
        bits: float = 16,
    ):
        self.shapes, self.machines, self.bits = shapes, {m.name: m for m in machines}, bits
        first = next(iter(shapes.values()))
        c_bytes = first["draft"][0] / first["target"][0] if "draft" in first else 0.0
        self.pair = widgets.Dropdown(options=list(shapes), description="models", style=LABEL, layout=HALF)
        self.machine = widgets.Dropdown(options=list(self.machines), description="machine", style=LABEL, layout=HALF)
        self.users = selection("users", 1, USERS, "texts that share a pass")
        hint = "drafts per round, for the dashed line"
        self.k = widgets.IntSlider(4, min=1, max=8, description="K", tooltip=hint, style=LABEL, layout=HALF)
        self.alpha = slider("α", alpha, 0.0, 1.0, 0.01, "probability that a draft is kept")
        self.c = slider("c", round(c_bytes, 2), 0.0, 0.5, 0.01, "a draft step in target steps; 0 is lookup")
        rows = (self.pair, self.machine), (self.users, self.k), (self.alpha, self.c)
        super().__init__([widgets.HBox(row) for row in rows])
        self.follow(self._draw, *rows[0], *rows[1], *rows[2])
        self._draw()

    def _draw(self) -> None:
        weights, cache, flops = self.shapes[self.pair.value]["target"]
        on = self.machines[self.machine.value]
        size = weights * self.bits / 8
        of = self.users.value, self.alpha.value, self.k.value, self.c.value
        self.page.value = batch_html(*of, size, cache, flops, on.bandwidth, on.peak)
