"""F1 and F2: one step's distribution as bars, and as slices of the unit interval."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from speclib.distributions import slice_at
from speclib.figures import style
from speclib.figures.style import BLUE, DEEP_BLUE, INK, OUT, Figure, axis, bar, hatch, readable, scatter, share

ROW = 23  # pixels of a bar with its gap


def distribution_bars(
    before: Tensor, p: Tensor, order: Tensor, token_text: Callable[[int], str], drawn: int | None = None
) -> Figure:
    """F1: the tokens of `order` as bars and one for all others, hatched what top-k, top-p or min-p cut away.

    before, p: [vocab] on the CPU, the distribution before and after the cut, each summing to 1. order: [n]
    ids, most likely first. token_text: from id to text. drawn: an id to mark. A tick on a bar shows where it
    ended before the cut. Taught in notebook 01_distributions, section 'Reshape it'.
    """
    ids = order.tolist()
    n_kept, cut_mass = int((p > 0).sum()), float((before * (p == 0)).sum(dtype=torch.float64))
    kept, was = p[order].tolist(), before[order].tolist()
    cut = [w if k == 0 else 0.0 for k, w in zip(kept, was, strict=True)]
    names = [readable(token_text(i)) for i in ids]
    if n_others := len(p) - len(ids):
        # By what is missing from 1: adding up a large vocabulary once more would be felt in a drag.
        others_kept = max(0.0, 1 - sum(kept)) if n_kept > sum(k > 0 for k in kept) else 0.0
        others_cut = max(0.0, cut_mass - sum(cut))
        kept, was, cut = [*kept, others_kept], [*was, max(0.0, 1 - sum(was))], [*cut, others_cut]
        names.append(f"{n_others:,} others")

    rows = list(range(len(kept)))
    ends = [k + c for k, c in zip(kept, cut, strict=True)]
    # A tick near the bar's own end would say nothing.
    ticks = [w if k and abs(end - w) > 0.015 else None for k, end, w in zip(kept, ends, was, strict=True)]
    labels = [_label(k, c) for k, c in zip(kept, cut, strict=True)]
    if drawn is not None:
        labels[ids.index(drawn) if drawn in ids else -1] += "  ◀ drawn"
    across = {"y": rows, "orientation": "h", "customdata": names}
    traces = [
        bar(x=kept, marker={"color": BLUE}, hovertemplate="%{customdata}: %{x:.5f}<extra></extra>", **across),
        bar(
            x=cut,
            base=kept,
            marker=hatch(OUT),
            hovertemplate="%{customdata}: %{x:.5f}, cut<extra></extra>",
            **across,
        ),
        scatter(
            x=ticks,
            y=rows,
            mode="markers",
            marker={"symbol": "line-ns", "size": 13, "line": {"width": 2, "color": INK}},
            hovertemplate="before the cut: %{x:.5f}<extra></extra>",
        ),
        scatter(
            x=ends,
            y=rows,
            mode="text",
            text=labels,
            textposition="middle right",
            cliponaxis=False,
            hoverinfo="skip",
        ),
    ]
    sentence = f"<b>{n_kept:,}</b> of {len(p):,} tokens can come out."
    if cut_mass > 1e-7:
        factor = f"what is left is multiplied by {1 / (1 - cut_mass):.3f}"
        sentence += f" Cut: <b>{share(cut_mass)}</b> of the mass; {factor}."
    return style.figure(
        traces,
        36 + ROW * len(rows) + 44,
        sentence,
        barmode="overlay",
        xaxis=axis("probability", range=[0, 1], dtick=0.2),
        yaxis=axis(range=[len(rows) - 0.5, -0.5], tickvals=rows, ticktext=names, showgrid=False),
    )


def _label(kept: float, cut: float) -> str:
    if not cut:
        return f" {share(kept)}"
    return f" {share(kept)} + {share(cut)} cut" if kept else f" {share(cut)} cut"


def unit_interval(p: Tensor, order: Tensor, token_text: Callable[[int], str], u: float | None = None) -> Figure:
    """F2: the interval 0 to 1 cut into slices as wide as p, most likely first, and the number u in one.

    p: [vocab] on the CPU, summing to 1. order: [n] ids, most likely first, with a slice of their own; all
    others share the last, hatched one. u: in [0, 1), or None for no number. `slice_of` says which token it
    is. Taught in notebook 01_distributions, section 'Draw from it'.
    """
    n = len(order)
    widths = p[order].double().tolist()
    others = max(0.0, 1.0 - sum(widths))
    widths.append(others if others > 1e-6 else 0.0)
    starts = [min(1.0, sum(widths[:i])) for i in range(n + 1)]
    names = [*(readable(token_text(i), 18) for i in order.tolist()), "all others"]
    pixels = style.WIDTH - style.LEFT - style.RIGHT
    fits = [name if w * pixels > 8.5 * len(name) + 6 else "" for name, w in zip(names, widths, strict=True)]
    hatched = hatch(OUT)
    marker = {
        "color": [BLUE if i % 2 == 0 else DEEP_BLUE for i in range(n)] + [hatched["color"]],
        "line": {"color": OUT, "width": [0] * n + [1]},
        "pattern": {**hatched["pattern"], "shape": [""] * n + ["/"]},
    }
    sentence, at = "Press <b>Draw</b>: a random number u falls somewhere between 0 and 1.", [None]
    if u is not None:
        token, start, end = slice_of(p, u)
        name = readable(token_text(token), 18)
        slice_text = f"the slice of <b>{name}</b>, from {start:.4f} to {end:.4f}"
        sentence, at = f"u = <b>{u:.4f}</b> is in {slice_text}.", [u]
    traces = [
        bar(
            x=widths,
            y=[0] * (n + 1),
            base=starts,
            orientation="h",
            width=0.8,
            text=fits,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            insidetextfont={"color": [style.WHITE] * n + [INK], "size": 12},
            marker=marker,
            customdata=[[name, s, s + w] for name, s, w in zip(names, starts, widths, strict=True)],
            hovertemplate="%{customdata[0]}: %{customdata[1]:.4f} to %{customdata[2]:.4f}<extra></extra>",
        ),
        scatter(
            x=[*at * 2, None, *at * 2],
            y=[0.5, 0.22, None, -0.22, -0.5],
            mode="lines",
            line={"color": INK, "width": 2},
            hoverinfo="skip",
            cliponaxis=False,
        ),
        scatter(
            x=at,
            y=[0.6],
            mode="markers",
            marker={"symbol": "triangle-down", "size": 12, "color": INK},
            hovertemplate="u = %{x:.4f}<extra></extra>",
            cliponaxis=False,
        ),
    ]
    return style.figure(
        traces,
        128,
        sentence,
        margin={"l": style.LEFT, "r": style.RIGHT, "t": 40, "b": 44},
        xaxis=axis("u", range=[0, 1], dtick=0.2, showgrid=False),
        yaxis=axis(range=[-0.6, 0.6], tickvals=[0], ticktext=["slices of 0…1"], showgrid=False),
    )


def slice_of(p: Tensor, u: float) -> tuple[int, float, float]:
    """The token whose slice holds u when the most likely comes first, and where that slice begins and ends.

    p: [vocab] on the CPU. The order of the slices is free: in every order each token has the same width,
    hence the same probability. Taught in notebook 01_distributions, section 'Draw from it'.
    """
    # A stable order, as `topk` gives none among equals.
    weights, ids = p.sort(descending=True, stable=True)
    place = int(slice_at(weights, u))
    end = float(weights[: place + 1].sum(dtype=torch.float64))
    return int(ids[place]), end - float(weights[place]), end
