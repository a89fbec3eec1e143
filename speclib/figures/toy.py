"""F5: six words, q and p, what a rejection draws from, and what comes out. `toy_board.py` puts controls to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from speclib import accept
from speclib.distributions import overlap
from speclib.exactness import chi_square
from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, INK, PALE_BLUE, RED, Figure, axis, bar, hatch, note, scatter
from speclib.figures.toy_draws import Draw


def toy_figure(
    words: Sequence[str],
    p: Tensor,
    q: Tensor,
    counts: Tensor,
    bug: bool = False,
    last: Draw | None = None,
    residual: Callable[[Tensor, Tensor], Tensor] = accept.residual,
) -> Figure:
    """F5: q and p with what they share, what a rejection draws from, and the tally beside p.

    words: [n]. p, q: [n], each summing to 1. counts: [2, n] whole numbers as `many_draws` gives: replaced, kept.
    bug: a rejection draws from p. last: a draw to mark by darts. In q the dart stands at height u · q(d):
    it is kept exactly if it hits the solid part. residual: from p and q to what is drawn below them.
    Taught in notebook 04_sampling_proof, section 'Drag it: the toy figure'.
    """
    p, q, n = p.double(), q.double(), len(words)
    both, excess_q, excess_p = torch.minimum(p, q), (q - p).clamp(min=0), (p - q).clamp(min=0)
    alpha, rest, empty = float(overlap(p, q)), float(excess_p.sum()), not bool((q > p).any())
    refill = p if bug else torch.zeros(n) if empty else torch.as_tensor(residual(p, q))
    total = int(counts.sum())
    share = counts.double() / max(total, 1)
    right, wrong = ([None] * n, refill) if bug else (refill, [None] * n)
    tally_fix, tally_bug = ([None] * n, share[0]) if bug else (share[0], [None] * n)
    traces = [
        _bars(1, both, words, "min(p, q): drafted and kept", name="min(p, q): drafted and kept", showlegend=True),
        _bars(1, excess_q, words, "q − p", both, hatch(AMBER), name="q above p: rejected", showlegend=True),
        _bars(2, both, words, "min(p, q)"),
        _bars(2, excess_p, words, "p − q", both, _WASH, name="p above q: refilled", showlegend=True),
        _bars(3, right, words, "residual", marker=_WASH),
        _bars(3, wrong, words, "p, though the draft was rejected", marker=hatch(RED)),
        _bars(4, share[1], words, "kept drafts"),
        _bars(4, tally_fix, words, "from the residual", share[1], _WASH),
        _bars(4, tally_bug, words, "from p after a rejection", share[1], hatch(RED)),
        _ticks(p, words),
        _labels(1, q, q),
        _labels(2, p, p),
        _labels(3, refill, refill),
        _labels(4, torch.maximum(share.sum(0), p), share.sum(0) if total else None),
        *_darts(last, q, refill, share.sum(0)),
    ]
    high = 1.2 if float(torch.maximum(p, q).max()) > 0.5 else 0.6
    tops = (high, high, 1.2, 1.2 if float(share.sum(0).max()) > 0.5 else 0.6)
    refilled = "nothing is left to refill: empty" if empty else f"max(0, p − q) ÷ <b>{rest:.2f}</b>"
    heads = (
        f"<b>q</b>, the draft. α = Σ min(p, q) = <b>{alpha:.2f}</b>",
        "<b>p</b>, the target",
        "<b>bug</b>: a rejection draws from all of p" if bug else f"<b>residual</b> = {refilled}",
        _tally_head(counts, p),
    )
    places = {f"{axis_}axis{i or ''}": spec for i in (0, 2, 3, 4) for axis_, spec in _axes(i or 1, words, tops)}
    return style.figure(
        traces,
        520,
        barmode="overlay",
        margin={"l": 58, "r": 12, "t": 54, "b": 34},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.05, "yanchor": "bottom", "font": {"size": 12}, **_NO_CLICKS},
        annotations=[_head(i, text) for i, text in enumerate(heads, 1)],
        **places,
    )


_WASH = {"color": PALE_BLUE}
_NONE = "\u00a0"  # plotly loses track of labels that are empty for a while
_NO_CLICKS = {"itemclick": False, "itemdoubleclick": False}
_LEFT, _RIGHT = [0, 0.47], [0.53, 1]
_UPPER, _LOWER = [0.575, 1], [0, 0.405]


def _bars(
    place: int,
    height: Tensor | list[None],
    words: Sequence[str],
    what: str,
    base: Tensor | None = None,
    marker: dict | None = None,
    **more: object,
) -> dict:
    # A bar of height 0 would still draw its outline.
    heights = [v or None for v in (height.tolist() if isinstance(height, Tensor) else height)]
    return bar(
        x=list(range(len(words))),
        y=heights,
        base=[0.0] * len(words) if base is None else base.tolist(),
        width=0.62,
        marker=marker or {"color": BLUE},
        customdata=[f"{w}, {what}" for w in words],
        hovertemplate="%{customdata}: %{y:.4f}<extra></extra>",
        # What is not drawn costs a drag no time.
        visible=any(heights) or "showlegend" in more,
        **{"showlegend": False, **more},
        **_on(place),
    )


def _labels(place: int, height: Tensor, values: Tensor | None) -> dict:
    digits = 3 if place > 2 else 2
    text = [_NONE] * len(height) if values is None else [f"{v:.{digits}f}" for v in values.tolist()]
    text = [_NONE if place == 3 and float(h) == 0 else t for h, t in zip(height, text, strict=True)]
    look = {"mode": "text", "textposition": "top center", "textfont": {"size": 11}, "cliponaxis": False}
    where = {"x": list(range(len(height))), "y": height.tolist(), "text": text}
    return scatter(**where, **look, hoverinfo="skip", showlegend=False, **_on(place))


def _ticks(p: Tensor, words: Sequence[str]) -> dict:
    return scatter(
        x=list(range(len(p))),
        y=p.tolist(),
        mode="markers",
        marker={"symbol": "line-ew", "size": 30, "line": {"width": 2.5, "color": INK}},
        customdata=list(words),
        hovertemplate="%{customdata}: p = %{y:.4f}<extra></extra>",
        showlegend=False,
        **_on(4),
    )


def _darts(last: Draw | None, q: Tensor, refill: Tensor, share: Tensor) -> list[dict]:
    at = {1: [None, None], 3: [None, None], 4: [None, None]}
    if last:
        at[1] = [last.d, (0.5 if last.u is None else last.u) * float(q[last.d])]
        at[4] = [last.token, float(share[last.token]) / 2]
        if not last.kept:
            at[3] = [last.token, float(refill[last.token]) / 2]
    missed = last is not None and not last.kept
    return [
        scatter(
            x=[x],
            y=[y],
            visible=x is not None,
            mode="markers",
            marker={
                "symbol": "x" if place == 1 and missed else "circle",
                "size": 11,
                "color": RED if place == 1 and missed else style.WHITE,
                "line": {"width": 2, "color": style.WHITE if place == 1 and missed else style.DARK_INK},
            },
            hovertemplate="this draw<extra></extra>",
            showlegend=False,
            **_on(place),
        )
        for place, (x, y) in at.items()
    ]


def _tally_head(counts: Tensor, p: Tensor) -> str:
    total, kept = int(counts.sum()), int(counts[1].sum())
    if not total:
        return "<b>tally</b>: nothing drawn yet. The ticks are p"
    text = f"<b>{total:,}</b> drawn, {kept / total:.3f} of them kept drafts<br>"
    try:
        test = chi_square(counts.sum(0).tolist(), p.tolist())
    except ValueError:
        return text + "χ²: draw more, each word should be expected 5 times"
    sign, side = ("✓", "below") if test.statistic < test.threshold else ("✕", "above")
    what = f"χ² = <b>{test.statistic:,.1f}</b> {sign} {side} {test.threshold:.2f}"
    return text + f"{what}, {test.degrees} degrees of freedom"


def _head(place: int, text: str) -> dict:
    where = {"x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "yshift": 4}
    number = "" if place == 1 else place
    return note(text, **where, xref=f"x{number} domain", yref=f"y{number} domain")


def _axes(place: int, words: Sequence[str], tops: Sequence[float]) -> list[tuple[str, dict]]:
    number, left, top = "" if place == 1 else place, place in (1, 3), tops[place - 1]
    name = {1: "probability", 3: "probability", 4: "share of draws"}.get(place, "")
    across = axis(tickvals=list(range(len(words))), ticktext=list(words), tickfont={"size": 11}, showgrid=False)
    across |= {"anchor": f"y{number}", "domain": _LEFT if left else _RIGHT, "range": [-0.5, len(words) - 0.5]}
    up = axis(name if left else "", range=[0, top], dtick=0.2 if top < 1 else 0.5, tickfont={"size": 11})
    up |= {"anchor": f"x{number}", "domain": _UPPER if place < 3 else _LOWER}
    return [("x", across), ("y", up)]


def _on(place: int) -> dict[str, str]:
    number = "" if place == 1 else place
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}
