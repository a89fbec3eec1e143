"""Where drafts are kept: along one text, by position in the round, and by kind of text or temperature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from speclib.decode import Round
from speclib.figures import style
from speclib.figures.style import AMBER, BLUE, CLEAR, INK, ROLES, Figure, axis, bar, note, scatter

# What a token of the text was in its round.
_WORDS = {
    "kept": "a kept draft",
    "fix": "the fix, where a draft was rejected",
    "bonus": "the bonus, after all were kept",
    "plain": "a plain step",
}
_CSS = f"""<style>
.sl-strip {{ font: 12px/1.25 {style.FONT}; width: {style.WIDTH}px; color: {style.PAGE_INK}; }}
.sl-strip i {{ display: inline-block; border: 1px solid; border-radius: 3px; padding: 0 2px; margin: 1px 0 1px 1px;
  white-space: pre; text-align: center; min-width: 10px; font-style: normal; }}
.sl-strip i:first-child {{ margin-left: 7px; }}
.sl-strip small {{ display: block; font-size: 9px; line-height: 1.1; }}
.sl-strip p {{ margin: 4px 0; }}
"""
_CSS += "".join(
    f".sl-strip .{role} {{ border: 1px {look.border} {look.colour}; background: {look.fill}; }}\n"
    for role, look in ROLES.items()
)
_CSS += "</style>"


def roles(r: Round) -> list[str]:
    """What each committed token of a round was: kept, then fix, bonus, or plain where nothing was drafted."""
    end = "plain" if not r.drafted else "bonus" if r.accepted == r.drafted else "fix"
    return ["kept"] * r.accepted + [end] * (len(r.tokens) - r.accepted)


def strip_html(rounds: Sequence[Round], token_text: Callable[[int], str]) -> str:
    """One text as a strip of its tokens, each with what it was in its round; a gap begins a round.

    rounds: as `decode` yields them. token_text: from id to text. Pointing at a token tells its round.
    Taught in notebook 05_sweep, section 'Easy stretches, hard ones'.
    """
    cells = []
    for number, r in enumerate(rounds, 1):
        # A span for each round, which tells about all of it; a page without styles still shows signs.
        cells.append(f'<span title="round {number}: {r.accepted} of {r.drafted} drafts kept">')
        for token, role in zip(r.tokens, roles(r), strict=True):
            text = style.readable(token_text(token))
            cells.append(f'<i class="{role}">{text}<small>{ROLES[role].mark}</small></i>')
        cells.append("</span>")
    counts = {role: sum(roles(r).count(role) for r in rounds) for role in _WORDS}
    legend = " &nbsp; ".join(f"{ROLES[role].mark} {_WORDS[role]}: {n}" for role, n in counts.items() if n)
    return f'{_CSS}<div class="sl-strip"><p>{legend}</p>{"".join(cells)}</div>'


def by_position(kept: Sequence[float], checked: Sequence[float], alpha: float) -> Figure:
    """Acceptance at position i beside α^i, and, of the drafts that were checked there, the share kept beside α.

    kept: acceptance at positions 1 …: kept there ÷ rounds that drafted so far. checked: kept there ÷ checked there.
    alpha: α̂ over all positions. Taught in notebook 05_sweep, section 'Per position'.
    """
    places = list(range(1, len(kept) + 1))
    independent = [alpha**i for i in places]
    label = {"mode": "markers+text", "textposition": "top center", "textfont": {"size": 11}, "cliponaxis": False}
    tick = {"symbol": "line-ew", "size": 34, "line": {"width": 2.5, "color": INK}}
    traces = [
        bar(x=places, y=list(kept), width=0.6, marker={"color": BLUE}, hovertemplate="%{y:.3f}<extra></extra>"),
        scatter(x=places, y=independent, mode="markers", marker=tick, hovertemplate="α^%{x} = %{y:.3f}<extra></extra>"),
        scatter(
            x=places,
            y=list(checked),
            text=[f"{x:.2f}" for x in checked],
            marker={"symbol": "circle", "size": 9, "color": BLUE},
            hovertemplate="checked at %{x}: %{y:.3f} kept<extra></extra>",
            xaxis="x2",
            yaxis="y2",
            **label,
        ),
        scatter(
            x=[0.5, places[-1] + 0.5],
            y=[alpha, alpha],
            mode="lines",
            line={"color": INK, "width": 1.5, "dash": "dash"},
            hoverinfo="skip",
            xaxis="x2",
            yaxis="y2",
        ),
    ]
    across = {"range": [0.4, places[-1] + 0.6], "dtick": 1, "showgrid": False}
    fig = style.figure(
        traces,
        300,
        "<b>kept at i</b>, of all rounds. The ticks are α̂^i",
        margin={"l": 58, "r": 12, "t": 40, "b": 48},
        xaxis=axis("position i in the round", domain=[0, 0.46], **across),
        yaxis=axis("share of rounds", range=[0, 1.05], dtick=0.2),
        xaxis2=axis("position i in the round", domain=[0.56, 1], anchor="y2", **across),
        yaxis2=axis("share of those checked", range=[0, 1.05], dtick=0.2, anchor="x2"),
    )
    where = {"xref": "x2 domain", "yref": "y2 domain", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
    fig["layout"]["annotations"] += [
        note(f"<b>kept at i</b>, of those checked there. Dashed: α̂ = {alpha:.2f}", yshift=8, **where)
    ]
    return fig


def alphas(values: Mapping[str, tuple[float, int]], sentence: str) -> Figure:
    """α̂ for each name, with how many drafts were checked for it.

    values: by name α̂ and the number of checked drafts. Whiskers: two standard errors, if drafts were independent.
    Taught in notebook 05_sweep, section 'Temperature'.
    """
    names = list(values)
    error = [2 * (a * (1 - a) / n) ** 0.5 if n else 0 for a, n in values.values()]
    traces = [
        bar(
            x=[a if n else None for a, n in values.values()],
            y=names,
            orientation="h",
            width=0.6,
            marker={"color": BLUE},
            error_x={"type": "data", "array": error, "color": INK, "thickness": 1.5, "width": 4},
            hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        ),
        scatter(
            x=[a + e if n else 0 for (a, n), e in zip(values.values(), error, strict=True)],
            y=names,
            text=[f"  {a:.2f} of {n} checked" if n else "  none checked" for a, n in values.values()],
            mode="text",
            textposition="middle right",
            textfont={"size": 12},
            hoverinfo="skip",
            cliponaxis=False,
        ),
    ]
    return style.figure(
        traces,
        70 + 34 * len(names) + 34,
        sentence,
        margin={"l": 132, "r": 130, "t": 40, "b": 44},
        xaxis=axis("α̂, kept ÷ checked", range=[0, 1], dtick=0.2),
        yaxis=axis(autorange="reversed", showgrid=False),
    )


_OUTLINE = {"color": CLEAR, "line": {"color": AMBER, "width": 1.5}}


def schedules(runs: Mapping[str, Sequence[Round]]) -> Figure:
    """What each schedule drafted along one text: kept drafts upwards, rejected and unchecked ones downwards.

    runs: by name the rounds of one and the same text, as `adaptive.replay` gives them.
    Taught in notebook 05_sweep, section 'Adaptive K'.
    """
    traces, layout, notes = [], {}, []
    n = len(runs)
    most = max(r.drafted for rounds in runs.values() for r in rounds) + 1
    ticks = [round(most * part) for part in (-0.8, -0.4, 0, 0.4, 0.8)]
    for i, (name, rounds) in enumerate(runs.items()):
        number = "" if i == 0 else i + 1
        on = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        starts, place = [], 0
        for r in rounds:
            starts.append(place + len(r.tokens) / 2)
            place += len(r.tokens)
        widths = [len(r.tokens) - 0.3 for r in rounds]
        wasted = [r.accepted - r.drafted or None for r in rounds]
        hover = "%{y} drafts<extra></extra>"
        traces += [
            bar(x=starts, y=[r.accepted or None for r in rounds], width=widths, marker={"color": BLUE})
            | {"hovertemplate": "kept: " + hover, **on},
            bar(x=starts, y=wasted, width=widths, marker=_OUTLINE) | {"hovertemplate": "in vain: " + hover, **on},
        ]
        high = 1 - i / n
        layout[f"xaxis{number}"] = axis(
            "token of the text" if i == n - 1 else "",
            range=[0, place],
            anchor=f"y{number}",
            showticklabels=i == n - 1,
            showgrid=False,
        )
        layout[f"yaxis{number}"] = axis(
            "drafts",
            range=[-most, most],
            tickvals=ticks,
            ticktext=[str(abs(t)) for t in ticks],
            domain=[high - 1 / n + 0.09, high - 0.02],
            anchor=f"x{number}",
        )
        drafted, kept = sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)
        text = f"<b>{name}</b>: {len(rounds)} rounds, {kept} drafts kept (solid), {drafted - kept} in vain (outlined)"
        notes.append(note(text, x=0, y=1, xanchor="left", yanchor="bottom", yshift=1))
        notes[-1] |= {"xref": f"x{number} domain", "yref": f"y{number} domain"}
    fig = style.figure(traces, 120 * n + 60, barmode="relative", margin={"l": 58, "r": 12, "t": 26, "b": 48}, **layout)
    fig["layout"]["annotations"] = notes
    return fig
