"""F5: six words, q and p, what a rejection draws from, and what comes out; a page of HTML. Controls: `toy_board.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from speclib import accept
from speclib.distributions import overlap
from speclib.exactness import chi_square
from speclib.figures import style, svg
from speclib.figures.style import AMBER, BLUE, DARK_INK, GRID, PAGE_INK, PALE_BLUE, RED, WHITE, stripes
from speclib.figures.toy_draws import Draw

HEIGHT, LEFT = 172, 52  # of the plot in a panel, and beside it, in pixels

CSS = f"""<style>
.sl-toy {{ font: 13px/1.4 {style.FONT}; color: {PAGE_INK}; width: {style.WIDTH}px; box-sizing: border-box; }}
.sl-toy .legend {{ display: flex; gap: 22px; margin: 6px 0 8px {LEFT}px; font-size: 12px; }}
.sl-toy .legend i {{ display: inline-block; box-sizing: border-box; width: 12px; height: 12px; margin-right: 7px;
  vertical-align: -1px; }}
.sl-toy .panels {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 6px 16px; }}
.sl-toy .head {{ margin-left: {LEFT}px; display: flex; align-items: end; white-space: nowrap; }}
.sl-toy .panels > :nth-child(n + 3) .head {{ min-height: 37px; }}
.sl-toy .plot {{ position: relative; display: flex; height: {HEIGHT}px; margin: 14px 0 26px {LEFT}px; }}
.sl-toy .title {{ position: absolute; left: -{LEFT}px; height: 100%; writing-mode: vertical-rl; rotate: 180deg;
  text-align: center; font-size: 12px; }}
.sl-toy .line {{ position: absolute; left: 0; right: 0; border-top: 1px solid {GRID}; }}
.sl-toy .line small {{ position: absolute; right: calc(100% + 6px); top: -9px; font-size: 11px; }}
.sl-toy .word {{ position: relative; flex: 1; }}
.sl-toy .word > * {{ position: absolute; left: 19%; right: 19%; box-sizing: border-box; }}
.sl-toy .word b, .sl-toy .word small {{ left: 0; right: 0; text-align: center; font: 11px {style.FONT}; }}
.sl-toy .word b {{ top: calc(100% + 6px); }}
.sl-toy .both {{ background: {BLUE}; }}
.sl-toy .over {{ background: {stripes(AMBER)}; border: 1px solid {AMBER}; }}
.sl-toy .refill {{ background: {PALE_BLUE}; }}
.sl-toy .bug {{ background: {stripes(RED)}; border: 1px solid {RED}; }}
.sl-toy .word .p {{ left: 14%; right: 14%; border-top: 2.5px solid {PAGE_INK}; margin-bottom: -1px; }}
.sl-toy .word .dart {{ left: calc(50% - 7px); width: 14px; height: 14px; margin-bottom: -7px; border-radius: 7px;
  background: {WHITE}; border: 2px solid {DARK_INK}; font: bold 11px/10px {style.FONT}; text-align: center; }}
.sl-toy .word .missed {{ background: {RED}; border-color: {WHITE}; color: {WHITE}; }}
</style>"""

_KEPT, _OVER, _REFILLED = "min(p, q): drafted and kept", "q above p: rejected", "p above q: refilled"


class _Part(NamedTuple):
    """A share of every word's bar, on top of the parts before it: its class, what it is, its height."""

    kind: str
    what: str
    height: Tensor


class _Dart(NamedTuple):
    """Where a draw landed: the word, the height, and how it is marked."""

    word: int
    at: float
    kind: str = "dart"


def toy_html(
    words: Sequence[str],
    p: Tensor,
    q: Tensor,
    counts: Tensor,
    bug: bool = False,
    last: Draw | None = None,
    residual: Callable[[Tensor, Tensor], Tensor] = accept.residual,
) -> str:
    """F5: q and p with what they share, what a rejection draws from, and the tally beside p.

    words: [n], safe in HTML. p, q: [n], each summing to 1. counts: [2, n] whole numbers as `many_draws` gives:
    replaced, kept. bug: a rejection draws from p. last: a draw to mark by darts. In q the dart stands at height
    u · q(d): it is kept exactly if it hits the solid part. residual: from p and q to what is drawn below them.
    Taught in notebook 04_sampling_proof, section 'Drag it: the toy figure'.
    """
    p, q = p.double(), q.double()
    both, excess_q, excess_p = torch.minimum(p, q), (q - p).clamp(min=0), (p - q).clamp(min=0)
    alpha, rest, empty = float(overlap(p, q)), float(excess_p.sum()), not bool((q > p).any())
    refill = p if bug else torch.zeros(len(words)) if empty else torch.as_tensor(residual(p, q))
    fill = ("bug", "p, though the draft was rejected") if bug else ("refill", "residual")
    share = counts.double() / max(int(counts.sum()), 1)
    came = ("bug", "from p after a rejection") if bug else ("refill", "from the residual")
    refilled = "nothing is left to refill: empty" if empty else f"max(0, p − q) ÷ <b>{rest:.2f}</b>"
    high = 1.2 if float(torch.maximum(p, q).max()) > 0.5 else 0.6
    low = 1.2 if float(share.sum(0).max()) > 0.5 else 0.6
    in_q, in_refill, in_tally = _darts(last, q, refill, share.sum(0))
    panels = (
        _panel(
            f"<b>q</b>, the draft. α = Σ min(p, q) = <b>{alpha:.2f}</b>",
            words,
            (_Part("both", _KEPT, both), _Part("over", _OVER, excess_q)),
            high,
            title="probability",
            dart=in_q,
        ),
        _panel(
            "<b>p</b>, the target",
            words,
            (_Part("both", _KEPT, both), _Part("refill", _REFILLED, excess_p)),
            high,
        ),
        _panel(
            "<b>bug</b>: a rejection draws from all of p" if bug else f"<b>residual</b> = {refilled}",
            words,
            [_Part(*fill, refill)],
            1.2,
            digits=3,
            title="probability",
            dart=in_refill,
        ),
        _panel(
            _tally_head(counts, p),
            words,
            (_Part("both", "kept drafts", share[1]), _Part(*came, share[0])),
            low,
            digits=3,
            title="share of draws",
            dart=in_tally,
            p=p.tolist(),
        ),
    )
    keys = "".join(
        f'<span><i class="{kind}"></i>{what}</span>'
        for kind, what in (("both", _KEPT), ("over", _OVER), ("refill", _REFILLED))
    )
    return f'{CSS}<div class="sl-toy"><div class="legend">{keys}</div><div class="panels">{"".join(panels)}</div></div>'


def _panel(
    head: str,
    words: Sequence[str],
    parts: Sequence[_Part],
    top: float,
    *,
    digits: int = 2,
    title: str = "",
    dart: _Dart | None = None,
    p: Sequence[float] = (),
) -> str:
    """A bar for each word, from 0 to top. digits: of its label. title: what the axis counts. p: where ticks stand."""

    def up(value: float) -> str:
        return f"{100 * value / top:.3f}%"

    lines = svg.numbers(0.2 if top < 1 else 0.5, top)
    plot = [f'<div class="title">{title}</div>'] if title else []
    plot += [f'<div class="line" style="bottom:{up(y)}"><small>{text}</small></div>' for y, text in lines.items()]
    for i, word in enumerate(words):
        bars, base = [f"<b>{word}</b>"], 0.0
        for kind, what, heights in parts:
            if (height := float(heights[i])) > 0:
                size = f"bottom:{up(base)};height:{up(height)}"
                bars.append(f'<i class="{kind}" style="{size}" title="{word}, {what}: {height:.4f}"></i>')
                base += height
        tick = p[i] if p else 0.0
        if p:
            bars.append(f'<i class="p" style="bottom:{up(tick)}" title="{word}: p = {tick:.4f}"></i>')
        if base:
            bars.append(f'<small style="bottom:calc({up(max(base, tick))} + 1px)">{base:.{digits}f}</small>')
        if dart and dart.word == i:
            mark = "✕" if "missed" in dart.kind else ""
            bars.append(f'<i class="{dart.kind}" style="bottom:{up(dart.at)}" title="this draw">{mark}</i>')
        plot.append(f'<div class="word">{"".join(bars)}</div>')
    return f'<div><div class="head"><span>{head}</span></div><div class="plot">{"".join(plot)}</div></div>'


def _darts(last: Draw | None, q: Tensor, refill: Tensor, share: Tensor) -> tuple[_Dart | None, ...]:
    """Of a draw: in q, in what a rejection draws from, in the tally."""
    if last is None:
        return None, None, None
    height = (0.5 if last.u is None else last.u) * float(q[last.d])
    judged = _Dart(last.d, height, "dart" if last.kept else "dart missed")
    redrawn = None if last.kept else _Dart(last.token, float(refill[last.token]) / 2)
    return judged, redrawn, _Dart(last.token, float(share[last.token]) / 2)


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
