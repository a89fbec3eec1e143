"""F1 and F2: one step's distribution as bars, and as slices of the unit interval; pages of HTML."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from speclib.distributions import slice_at
from speclib.figures import style, svg
from speclib.figures.style import BLUE, DEEP_BLUE, GRID, LEFT, OUT, PAGE_INK, RIGHT, WHITE, readable, share, stripes

INNER = style.WIDTH - LEFT - RIGHT  # pixels from 0 to 1
ROW, SLICE = 23, 30  # of a bar with its gap, and of the interval

CSS = f"""<style>
.sl-dist {{ font: 13px/1.4 {style.FONT}; color: {PAGE_INK}; width: {style.WIDTH}px; box-sizing: border-box; }}
.sl-dist .head {{ margin: 6px 12px 8px; min-height: 18px; }}
.sl-dist .plot {{ position: relative; margin: 0 {RIGHT}px 44px {LEFT}px; }}
.sl-dist .line {{ position: absolute; top: 0; bottom: 0; border-left: 1px solid {GRID}; }}
.sl-dist .line small, .sl-dist .title {{ position: absolute; top: calc(100% + 5px); font-size: 12px; }}
.sl-dist .line small {{ transform: translateX(-50%); }}
.sl-dist .title {{ top: calc(100% + 22px); left: 0; right: 0; text-align: center; }}
.sl-dist .row {{ position: relative; height: {ROW}px; white-space: nowrap; }}
.sl-dist .row > *, .sl-dist .slices > * {{ position: absolute; box-sizing: border-box; }}
.sl-dist .name {{ right: calc(100% + 9px); top: 2px; white-space: nowrap; }}
.sl-dist .row i {{ top: 3px; height: 17px; }}
.sl-dist .kept {{ background: {BLUE}; }}
.sl-dist .cut {{ background: {stripes(style.tint(style.GREY, 0.45))}; border: 1px solid {OUT}; }}
.sl-dist .was {{ border-left: 2px solid {PAGE_INK}; margin-left: -1px; }}
.sl-dist .label {{ top: 2px; margin-left: 5px; }}
.sl-dist .slices {{ position: relative; height: {SLICE}px; }}
.sl-dist .slices i {{ height: 100%; overflow: hidden; text-align: center; color: {WHITE};
  font: 12px/{SLICE}px {style.FONT}; }}
.sl-dist .slices .cut {{ color: {PAGE_INK}; }}
.sl-dist .u {{ top: -16px; height: {SLICE + 22}px; transform: translateX(-50%); line-height: 12px; }}
.sl-dist .u::after {{ content: ""; position: absolute; left: calc(50% - 1px); top: 12px; bottom: 0; width: 2px;
  background: linear-gradient({PAGE_INK} 11px, transparent 11px calc(100% - 11px), {PAGE_INK} calc(100% - 11px)); }}
</style>"""


def distribution_html(
    before: Tensor, p: Tensor, order: Tensor, token_text: Callable[[int], str], drawn: int | None = None
) -> str:
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
    marked = None if drawn is None else ids.index(drawn) if drawn in ids else len(names) - 1
    rows = []
    for i, (name, k, c, w) in enumerate(zip(names, kept, cut, was, strict=True)):
        row = f'<span class="name">{name}</span>'
        if k:
            row += f'<i class="kept" style="width:{k:.3%}" title="{name}: {k:.5f}"></i>'
        if c:
            row += f'<i class="cut" style="left:{k:.3%};width:{c:.3%}" title="{name}: {c:.5f}, cut"></i>'
        if k and abs(k + c - w) > 0.015:  # near the bar's own end it would say nothing
            row += f'<i class="was" style="left:{w:.3%}" title="before the cut: {w:.5f}"></i>'
        label = _label(k, c) + (" ◀ drawn" if i == marked else "")
        rows.append(f'<div class="row">{row}<span class="label" style="left:{k + c:.3%}">{label}</span></div>')
    sentence = f"<b>{n_kept:,}</b> of {len(p):,} tokens can come out."
    if cut_mass > 1e-7:
        factor = f"what is left is multiplied by {1 / (1 - cut_mass):.3f}"
        sentence += f" Cut: <b>{share(cut_mass)}</b> of the mass; {factor}."
    return _page(sentence, "".join(rows), "probability")


def _label(kept: float, cut: float) -> str:
    if not cut:
        return share(kept)
    return f"{share(kept)} + {share(cut)} cut" if kept else f"{share(cut)} cut"


def interval_html(p: Tensor, order: Tensor, token_text: Callable[[int], str], u: float | None = None) -> str:
    """F2: the interval 0 to 1 cut into slices as wide as p, most likely first, and the number u in one.

    p: [vocab] on the CPU, summing to 1. order: [n] ids, most likely first, with a slice of their own; all
    others share the last, hatched one. u: in [0, 1), or None for no number. `slice_of` says which token it
    is. Taught in notebook 01_distributions, section 'Draw from it'.
    """
    widths = p[order].double().tolist()
    others = max(0.0, 1.0 - sum(widths))
    names = [*(readable(token_text(i), 18) for i in order.tolist()), "all others"]
    start, slices = 0.0, ['<span class="name" style="top:6px">slices of 0…1</span>']
    for i, (name, width) in enumerate(zip(names, [*widths, others if others > 1e-6 else 0.0], strict=True)):
        if width:
            word = name if width * INNER > 8.5 * len(name) + 6 else ""
            kind = "cut" if i == len(order) else "slice"
            look = f"left:{start:.4%};width:{width:.4%}" + f";background:{(BLUE, DEEP_BLUE)[i % 2]}" * (kind == "slice")
            hint = f"{name}: {start:.4f} to {start + width:.4f}"
            slices.append(f'<i class="{kind}" style="{look}" title="{hint}">{word}</i>')
        start = min(1.0, start + width)
    sentence = "Press <b>Draw</b>: a random number u falls somewhere between 0 and 1."
    if u is not None:
        token, low, high = slice_of(p, u)
        slice_text = f"the slice of <b>{readable(token_text(token), 18)}</b>, from {low:.4f} to {high:.4f}"
        sentence = f"u = <b>{u:.4f}</b> is in {slice_text}."
        slices.append(f'<span class="u" style="left:{u:.4%}" title="u = {u:.4f}">▼</span>')
    return _page(sentence, f'<div class="slices">{"".join(slices)}</div>', "u", "margin-top:22px")


def _page(sentence: str, inside: str, title: str, look: str = "") -> str:
    """A sentence above what stands between 0 and 1."""
    lines = (f'<div class="line" style="left:{x:.0%}"><small>{t}</small></div>' for x, t in svg.numbers(0.2, 1).items())
    plot = f'<div class="plot" style="{look}">{"".join(lines)}{inside}<div class="title">{title}</div></div>'
    return f'{CSS}<div class="sl-dist"><div class="head" role="status">{sentence}</div>{plot}</div>'


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
