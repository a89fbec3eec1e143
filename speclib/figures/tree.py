"""The tree of outcomes: every way that the loop can take, drawn so that its leaves can be compared with p."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product

from speclib.figures import style
from speclib.figures.style import BLUE, DARK_INK, INK, ROLES, WHITE, Figure, axis, bar, note, scatter, tint

Text = tuple[int, ...]
Edge = tuple[Text, Text, str]  # from a text to a longer one, and how the round ended
Way = tuple[tuple[Text, int, int], ...]  # per round: tokens committed, drafts made, drafts kept
# The end of a round: its colour, and a fill that the eye tells from the others without it.
_KINDS = {"fix": ROLES["fix"].fill, "bonus": ROLES["bonus"].colour, "plain": tint(ROLES["plain"].colour, 0.5)}
_STRIPES = {
    "fix": {"shape": "/", "size": 12, "solidity": 0.25, "fgcolor": ROLES["fix"].colour, "bgcolor": _KINDS["fix"]}
}
_WORDS = {"fix": "a round with a fix", "bonus": "with a bonus", "plain": "without drafts"}
_NAMES = {kind: f"{ROLES[kind].mark} {words}" for kind, words in _WORDS.items()}
_SCALE = 2.4  # height of the whole probability, where leaves are 1 apart


def edges_of(ways: Mapping[Way, float]) -> dict[Edge, float]:
    """From each text to the text after one more round, and how that ended: the probability that flows there."""
    flows: dict[Edge, float] = defaultdict(float)
    for way, probability in ways.items():
        text: Text = ()
        for tokens, drafted, kept in way:
            kind = "plain" if not drafted else "bonus" if kept == drafted else "fix"
            flows[text, text + tokens, kind] += probability
            text += tokens
    return dict(flows)


def outcome_tree(ways: Mapping[Way, float], wanted: Mapping[Text, float], words: Sequence[str]) -> Figure:
    """Texts as nodes, rounds as bands as wide as they are likely, and the sums at the leaves beside p.

    ways: from a way to its probability; all end in texts of one length. wanted: from each such text to its
    probability under plain sampling. words: the vocabulary, two or three words.
    Taught in notebook 04_sampling_proof, section 'Every outcome'.
    """
    flows, length = edges_of(ways), len(next(iter(wanted)))
    leaves = list(product(range(len(words)), repeat=length))
    height = {leaf: len(leaves) - 1 - i for i, leaf in enumerate(leaves)}
    for n in range(length - 1, -1, -1):
        for text in product(range(len(words)), repeat=n):
            height[text] = sum(height[(*text, w)] for w in range(len(words))) / len(words)
    traces = [*_bands(flows, height), _nodes(flows, height, length, words)]
    traces += _leaves(flows, wanted, leaves, height, words)
    largest = max(abs(sum(v for e, v in flows.items() if e[1] == leaf) - wanted.get(leaf, 0.0)) for leaf in leaves)
    exact = "the sums at the leaves are p" if largest < 1e-9 else f"the leaves differ from p by up to {largest:.3f}"
    figure = style.figure(
        traces,
        106 + 36 * len(leaves),
        f"{len(ways)} ways through {max(map(len, ways))} rounds at most, {len(leaves)} texts: <b>{exact}</b>",
        margin={"l": 16, "r": 14, "t": 62, "b": 44},
        barmode="stack",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
        | {"itemclick": False, "itemdoubleclick": False, "font": {"size": 12}},
        xaxis=axis("tokens of the text", domain=[0, 0.64], range=[-0.25, length + 0.32], dtick=1, showgrid=False),
        yaxis=axis(range=[-0.6, len(leaves) - 0.4], showticklabels=False, showgrid=False),
        xaxis2=axis("probability", domain=[0.68, 1], anchor="y2", range=[0, 1.35 * max(wanted.values())], nticks=5),
        yaxis2=axis(range=[-0.6, len(leaves) - 0.4], anchor="x2", showticklabels=False, showgrid=False),
    )
    figure["layout"]["annotations"][0]["yshift"] = 32
    where = {"x": 0, "y": 1, "xref": "x2 domain", "yref": "y2 domain", "xanchor": "left", "yanchor": "bottom"}
    figure["layout"]["annotations"].append(note("sum at the leaf, tick at p", yshift=8, **where))
    return figure


def _bands(flows: Mapping[Edge, float], height: Mapping[Text, float]) -> list[dict]:
    """One filled band per edge; at both ends the bands of a node lie on each other, without overlap."""
    leaving, arriving = _stacked(flows, height, 0), _stacked(flows, height, 1)
    steps = [i / 16 for i in range(17)]
    ease = [t * t * (3 - 2 * t) for t in steps]
    bands, seen = [], set()
    # The longest leaps first, so that short ones lie on top where they cross.
    for edge in sorted(flows, key=lambda e: (len(e[0]) - len(e[1]), list(_KINDS).index(e[2]))):
        start, end, kind = edge
        x = [round(len(start) + (len(end) - len(start)) * t, 4) for t in steps]
        lower = [round(leaving[edge] + (arriving[edge] - leaving[edge]) * e, 4) for e in ease]
        upper = [round(y + _SCALE * flows[edge], 4) for y in lower]
        before = "".join(map(str, start)) or "start"
        bands.append(
            scatter(
                x=x + x[::-1],
                y=lower + upper[::-1],
                mode="lines",
                fill="toself",
                fillcolor=_KINDS[kind],
                fillpattern=_STRIPES.get(kind),
                line={"width": 0, "color": _KINDS[kind]},
                name=_NAMES[kind],
                text=f"{before} → {''.join(map(str, end))}, {_NAMES[kind]}: {flows[edge]:.4f}",
                hoveron="fills",
                hoverinfo="text",
                legendgroup=kind,
                legendrank=list(_KINDS).index(kind),
                showlegend=kind not in seen,
            )
        )
        seen.add(kind)
    return bands


def _stacked(flows: Mapping[Edge, float], height: Mapping[Text, float], end: int) -> dict[Edge, float]:
    """Where each band's lower side begins, at its source (end 0) or its target (end 1)."""
    lower: dict[Edge, float] = {}
    for node in {e[end] for e in flows}:
        mine = sorted((e for e in flows if e[end] == node), key=lambda e: (height[e[1 - end]], e[2]))
        y = height[node] - _SCALE * sum(flows[e] for e in mine) / 2
        for edge in mine:
            lower[edge] = y
            y += _SCALE * flows[edge]
    return lower


def _nodes(flows: Mapping[Edge, float], height: Mapping[Text, float], length: int, words: Sequence[str]) -> dict:
    nodes = sorted({e[0] for e in flows})
    return scatter(
        x=[len(t) for t in nodes],
        y=[height[t] for t in nodes],
        mode="markers+text",
        marker={"size": 22, "color": WHITE, "line": {"color": BLUE, "width": 1.5}},
        text=[" ".join(words[w] for w in t) or "▶" for t in nodes],
        textfont={"size": 10, "color": DARK_INK},
        hoverinfo="skip",
        showlegend=False,
    )


def _leaves(
    flows: Mapping[Edge, float],
    wanted: Mapping[Text, float],
    leaves: Sequence[Text],
    height: Mapping[Text, float],
    words: Sequence[str],
) -> list[dict]:
    rows = [height[leaf] for leaf in leaves]
    on = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
    shares = {k: [sum(v for e, v in flows.items() if e[1] == t and e[2] == k) for t in leaves] for k in _KINDS}
    totals = [sum(shares[k][i] for k in _KINDS) for i in range(len(leaves))]
    bars = [
        bar(
            x=shares[k],
            y=rows,
            orientation="h",
            width=0.5,
            marker={"color": colour, "pattern": _STRIPES.get(k)},
            hovertemplate=f"{_NAMES[k]}: %{{x:.4f}}<extra></extra>",
            **on,
        )
        for k, colour in _KINDS.items()
    ]
    p = [wanted.get(t, 0.0) for t in leaves]
    tick = {"symbol": "line-ns", "size": 18, "line": {"width": 2.5, "color": INK}}
    names = ["".join(f"{words[w]} " for w in t) for t in leaves]
    labels = {"mode": "text", "textposition": "middle right", "hoverinfo": "skip", "cliponaxis": False}
    return [
        *bars,
        scatter(x=p, y=rows, mode="markers", marker=tick, hovertemplate="p = %{x:.4f}<extra></extra>", **on),
        scatter(x=[max(a, b) for a, b in zip(totals, p, strict=True)], y=rows, **labels, **on)
        | {"text": [f"  {v:.4f}" for v in totals]},
        scatter(x=[len(t) + 0.06 for t in leaves], y=rows, text=names, showlegend=False, **labels),
    ]
