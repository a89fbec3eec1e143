"""Counts beside p while they grow: chi-square on a real model, started and stopped by the reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
import torch
from torch import Tensor

from speclib.distributions import Rng
from speclib.exactness import chi_square
from speclib.figures import style
from speclib.figures.live import Board
from speclib.figures.style import INK, OUT, Figure, axis, bar, readable, scatter

SIZES = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
_SLICE = 0.15  # seconds between two looks at the Stop button


def counts_figure(labels: Sequence[str], counts: Tensor, p: Tensor, most: int) -> Figure:
    """Shares of what was counted as bars, p as ticks, the likeliest `most` cells and all others as one; χ² above.

    labels: [n]. counts: [n] whole numbers; p: [n], summing to 1. χ² is over all n cells, pooled where fewer than 5 are
    expected. Taught in notebook 04_sampling_proof, section 'Measure'.
    """
    p, total = p.double().cpu(), int(counts.sum())
    order = p.sort(descending=True, stable=True).indices
    top, rest = order[:most], order[most:]
    names = [readable(labels[i], 16) for i in top.tolist()]
    shares, ticks = counts.double()[top].tolist(), p[top].tolist()
    if len(rest):
        names.append(f"{len(rest)} others")
        shares.append(float(counts.double()[rest].sum()))
        ticks.append(float(p[rest].sum()))
    shares = [s / max(total, 1) for s in shares]
    places = list(range(len(names)))
    across = {"x": places, "customdata": names}
    width = (style.WIDTH - 80) / len(places)
    marker = {"symbol": "line-ew", "size": 0.55 * width, "line": {"width": 2.5, "color": INK}}
    traces = [
        bar(
            y=shares,
            width=0.62,
            marker={"color": OUT},
            hovertemplate="%{customdata}: %{y:.4f}<extra></extra>",
            **across,
        ),
        scatter(y=ticks, mode="markers", marker=marker, hovertemplate="p = %{y:.4f}<extra></extra>") | across,
    ]
    return style.figure(
        traces,
        310,
        _sentence(counts, p),
        margin={"l": 60, "r": 20, "t": 40, "b": 96},
        xaxis=axis(tickvals=places, ticktext=names, tickangle=-45, tickfont={"size": 11}, showgrid=False),
        yaxis=axis("share of draws", range=[0, 1.15 * max(*shares, *ticks)], nticks=6),
    )


def _sentence(counts: Tensor, p: Tensor) -> str:
    total = int(counts.sum())
    try:
        test = chi_square(counts.tolist(), p.tolist())
    except ValueError:
        return f"<b>{total:,}</b> drawn: too few for χ². The ticks are p."
    sign, side = ("✓", "below") if test.statistic < test.threshold else ("✕", "above")
    value = f"χ² = <b>{test.statistic:,.1f}</b> {sign} {side} {test.threshold:.1f} ({test.degrees} degrees of freedom)"
    return f"<b>{total:,}</b> drawn. {value}, p-value {test.p_value:.2g}"


class Counting(Board):
    """Draws when asked to, a slice of time after the other, so that Stop is heard; the figure follows.

    draw: from an rng to the index of a cell. labels, p: [cells]. counts: what was drawn before, or None. most: how many
    cells are shown by themselves.
    """

    def __init__(
        self,
        draw: Callable[[Rng], int],
        labels: Sequence[str],
        p: Tensor,
        counts: Tensor | None = None,
        rng: Rng | None = None,
        most: int = 21,
    ):
        self.one, self.labels, self.p, self.rng = draw, labels, p, rng or Rng()
        self.counts = torch.zeros(len(p), dtype=torch.int64) if counts is None else counts.clone()
        self.left, self.task = 0, None
        look = {"description_width": "52px"}
        self.n = widgets.SelectionSlider(
            options=[(f"{n:,}", n) for n in SIZES],
            value=2_000,
            description="draws",
            tooltip="how many to add",
            style=look,
            layout={"width": "270px"},
        )
        self.n.add_class("jupyter-widgets")
        go = widgets.Button(description="Draw", icon="play", tooltip="add that many", layout={"width": "96px"})
        stop = widgets.Button(description="Stop", icon="stop", tooltip="enough", layout={"width": "96px"})
        self.progress = widgets.IntProgress(
            0, 0, 1, description="drawn", tooltip="how many of those asked for", style=look, layout={"width": "230px"}
        )
        row = widgets.HBox([self.n, go, stop, self.progress], layout={"align_items": "center"})
        text = "Figure: how often each outcome was drawn, beside p; chi-square above."
        super().__init__([], lambda: counts_figure(self.labels, self.counts, self.p, most), text, [row])
        go.on_click(self.guard(self._go))
        stop.on_click(self.guard(self._stop))

    def _go(self, _: Any) -> None:
        # An interrupt of the kernel ends the task without a word, so `left` does not tell.
        running, self.left = self.task is not None and not self.task.done(), self.n.value
        self.progress.max, self.progress.value = self.left, 0
        if running:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while self.left:
                self._some()
            return
        self.task = loop.create_task(self._run())

    def _stop(self, _: Any) -> None:
        self.left = 0

    async def _run(self) -> None:
        try:
            while self.left:
                self.guard(lambda _: self._some())(None)
                await asyncio.sleep(0.02)
        except Exception:  # shown on the board
            self.left = 0

    def _some(self) -> None:
        end, counts = time.perf_counter() + _SLICE, self.counts.clone()
        while self.left and time.perf_counter() < end:
            counts[self.one(self.rng)] += 1
            self.left -= 1
        self.counts = counts
        self.progress.value = self.progress.max - self.left if self.left else self.progress.max
        self.redraw()
