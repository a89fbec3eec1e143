"""The proof that the output is p, as four lines of HTML with numbers in them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from speclib.distributions import overlap
from speclib.figures.style import BLUE, GREY, PALE_BLUE, RED, WIDTH, stripes, tint

_PIXELS = 380 / 0.6  # of a bar per unit of probability


def proof_html(words: Sequence[str], p: Tensor, q: Tensor, y: int, bug: bool = False) -> str:
    """The four lines for word y: each as a formula, then with the numbers of p and q, then as a bar.

    words: [n]. p, q: [n], each summing to 1. bug: a rejection draws from p, and the last line says what is
    wrong. Taught in notebook 04_sampling_proof, section 'Four lines'.
    """
    word, py, qy = words[y], float(p[y]), float(q[y])
    both, rest, alpha = min(py, qy), max(0.0, py - qy), float(overlap(p, q))
    rejected = float((p - q).clamp(min=0).sum())
    ratio = f"min(1, {py:.3f} / {qy:.3f})" if qy else "0"
    refill = rejected * py if bug else rest
    out = both + refill
    if bug:
        third = f"{rejected:.3f} · p(y) = {rejected:.3f} · {py:.3f}"
        source, formula = "rejected, and <b>all of p</b> gives y", "(1 − α) · p(y)"
    else:
        share = f"{rest:.3f} / {rejected:.3f}" if rejected > 1e-12 else "0"
        third = f"{rejected:.3f} · {share}"
        source, formula = "rejected, and the residual gives y", "P(rejected) · r(y) = max(0, p(y) − q(y))"
    equal = abs(out - py) < 5e-10
    verdict = f"= p({word}) ✓" if equal else f"but p({word}) = {py:.3f} ✕"
    pale = _hatched(refill) if bug else _bar(refill, PALE_BLUE)
    kept, grey = _bar(both, BLUE), _bar(rejected, tint(GREY, 0.35))
    end = f' <b style="color:{"inherit" if equal else RED}">{verdict}</b>'
    likely = "q(y) · min(1, p(y) / q(y)) = min(p(y), q(y))"
    lines = (
        ("y is drafted and kept", likely, f"{qy:.3f} · {ratio}", both, kept, ""),
        ("something is rejected", "1 − Σ min(p, q) = Σ max(0, p − q)", f"1 − {alpha:.3f}", rejected, grey, ""),
        (source, formula, third, refill, pale, ""),
        ("y comes out", "1st line + 3rd line", f"{both:.3f} + {refill:.3f}", out, kept + pale, end),
    )
    rows = "".join(_row(i, *line) for i, line in enumerate(lines, 1))
    caption = f"How does y = <b>{word}</b> come out? p(y) = {py:.3f}, q(y) = {qy:.3f}."
    return (
        f'<div style="width:{WIDTH}px;line-height:1.5"><div style="margin:4px 0 2px 12px">{caption}</div>'
        f'<table style="border-collapse:collapse;margin:0 0 0 6px"><tbody>{rows}</tbody></table></div>'
    )


def _row(i: int, what: str, formula: str, numbers: str, value: float, bars: str, verdict: str) -> str:
    cell = 'style="text-align:left;padding:5px 8px;vertical-align:top;white-space:nowrap"'
    return (
        f'<tr><td {cell}><b>{i}</b></td><td {cell}><div style="width:240px">{what}</div></td>'
        f'<td {cell}><span style="opacity:.75">{formula}</span><br>'
        f"{numbers} = <b>{value:.3f}</b>{verdict}<br>{bars}</td></tr>"
    )


def _bar(value: float, colour: str) -> str:
    return _block(value, f"background:{colour}")


def _hatched(value: float) -> str:
    return _block(value, f"background:{stripes(RED)};box-shadow:inset 0 0 0 1px {RED}")


def _block(value: float, look: str) -> str:
    width = round(value * _PIXELS)
    return f'<span style="display:inline-block;height:12px;width:{width}px;{look}"></span>'
