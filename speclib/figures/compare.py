"""Two vectors side by side: p and q with what they share, and what was drawn beside what was expected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speclib.distributions import overlap
from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, OUT, PALE_BLUE, Figure, axis, bar, hatch, readable, scatter


def overlap_bars(words: Sequence[str], p: Tensor, q: Tensor, alpha: float | None = None) -> Figure:
    """p and q side by side with what they share, min(p, q), solid in both, and α above.

    words: [n] labels. p, q: [n], the target's and the draft's probabilities. alpha: the overlap over the
    whole vocabulary, when words are only some of it; None = the sum over the words. Where q is above p it is
    hatched amber, where p is above q it is pale blue. Taught in notebook 01_distributions, section 'Two
    vectors'.
    """
    p, q = p.double().cpu(), q.double().cpu()
    both = torch.minimum(p, q)
    places = torch.arange(len(p), dtype=torch.float64)
    q_x, p_x = (places - 0.2).tolist(), (places + 0.2).tolist()
    look = {"width": 0.36, "hovertemplate": "%{customdata}: %{y:.4f}<extra></extra>"}
    solid = {
        "y": both.tolist(),
        "marker": {"color": BLUE},
        "customdata": [f"min(p, q) of {w}" for w in words],
    }
    traces = [
        bar(x=q_x, name="min(p, q)", **solid, **look),
        bar(x=p_x, showlegend=False, **solid, **look),
        bar(
            x=q_x,
            y=_excess(q - both),
            base=both.tolist(),
            name="q above p",
            marker=hatch(AMBER),
            customdata=[f"q − p of {w}" for w in words],
            **look,
        ),
        bar(
            x=p_x,
            y=_excess(p - both),
            base=both.tolist(),
            name="p above q",
            marker={"color": PALE_BLUE},
            customdata=[f"p − q of {w}" for w in words],
            **look,
        ),
        scatter(
            x=q_x + p_x,
            y=q.tolist() + p.tolist(),
            mode="text",
            text=[f"q<br>{v:.2f}" for v in q.tolist()] + [f"p<br>{v:.2f}" for v in p.tolist()],
            textposition="top center",
            textfont={"size": 11},
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
        ),
    ]
    alpha = float(overlap(p, q)) if alpha is None else alpha
    return style.figure(
        traces,
        330,
        f"α = Σ min(p, q) = <b>{alpha:.2f}</b>",
        barmode="overlay",
        margin={"l": 60, "r": 20, "t": 40, "b": 40},
        showlegend=True,
        legend={
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
        },
        xaxis=axis(tickvals=places.tolist(), ticktext=[readable(w) for w in words], showgrid=False),
        yaxis=axis("probability", range=[0, float(torch.maximum(p, q).max()) * 1.22], nticks=6),
    )


def counts_beside_p(words: Sequence[str], counts: Tensor, p: Tensor) -> Figure:
    """How often each token was drawn, as a share, beside what p says and how far chance may carry it.

    words: [n] labels. counts: [n] whole numbers, p: [n] probabilities; both cover all that was drawn. The
    whiskers reach two standard deviations, √(p(1 − p)/draws) each, so about one bar in twenty ends outside.
    Taught in notebook 01_distributions, section 'Draw from it'.
    """
    p, draws = p.double().cpu(), int(counts.sum())
    places = list(range(len(p)))
    spread = (2 * (p * (1 - p) / draws).sqrt()).tolist()
    traces = [
        bar(
            x=places,
            y=(counts.double() / draws).tolist(),
            width=0.6,
            marker={"color": OUT},
            hovertemplate="drawn: %{y:.4f}<extra></extra>",
        ),
        scatter(
            x=places,
            y=p.tolist(),
            mode="markers",
            marker={"symbol": "line-ew", "size": 0.42 * 680 / len(places), "line": {"width": 3, "color": BLUE}},
            error_y={"array": spread, "color": BLUE, "thickness": 2, "width": 6},
            hovertemplate="p = %{y:.4f}<extra></extra>",
        ),
    ]
    return style.figure(
        traces,
        300,
        f"{draws:,} draws: a bar is what came out, a tick is p, whiskers are two standard deviations",
        margin={"l": 60, "r": 20, "t": 40, "b": 40},
        xaxis=axis(
            tickvals=places,
            ticktext=[readable(w, 8) for w in words],
            tickangle=0,
            tickfont={"size": 11},
            showgrid=False,
        ),
        yaxis=axis("share of draws", rangemode="tozero", nticks=6),
    )


def _excess(x: Tensor) -> list[float | None]:
    # A bar of height 0 would still draw its outline.
    return [v or None for v in x.tolist()]
