"""F4, the round stepper: a recorded generation as a page of HTML, one step of one round at a time."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from speclib.figures import style
from speclib.figures.style import AMBER, GREEN, PAGE_INK, RED, ROLES, SOFT_INK, Role, stripes, tint
from speclib.watch import Cache, Seen, Trace

TokenText = Callable[[int], str]

PHASES = ("draft", "verify", "cut back")
COLUMNS = 12  # places of a cache that are shown: two before a round, eight drafts, and what follows them

_LOOKS = ROLES | {"held": Role(AMBER, "", "solid")}
_JUDGED = ("draft", "kept", "rejected", "unchecked")

CSS = f"""<style>
.sl-step {{ font: 13px/1.5 {style.FONT}; color: {PAGE_INK}; width: {style.WIDTH}px; box-sizing: border-box; }}
.sl-step .head {{ min-height: 40px; margin: 6px 0; }}
.sl-step .prompt {{ color: {SOFT_INK}; opacity: .75; }}
.sl-step .text {{ min-height: 132px; line-height: 2.0; border-left: 3px solid {tint(style.GREY, 0.3)};
  padding: 2px 0 2px 12px; overflow-wrap: anywhere; }}
.sl-step .t {{ white-space: pre-wrap; padding: 1px 0; border-bottom: 3px solid transparent; }}
.sl-step .tok {{ display: inline-flex; flex-direction: column; align-items: center; vertical-align: top;
  line-height: 1.25; margin: 3px 2px 0; }}
.sl-step .tok b {{ font-weight: 500; border: 2px solid; border-radius: 5px; padding: 1px 5px; color: {PAGE_INK}; }}
.sl-step .tok small, .sl-step .cell small {{ font-size: 10px; color: {SOFT_INK}; }}
.sl-step .s b, .sl-step .s .w {{ text-decoration: line-through; text-decoration-color: {RED}; }}
.sl-step .off {{ text-decoration: underline wavy {RED} 1.5px; text-underline-offset: 5px; }}
.sl-step .row {{ display: grid; grid-template-columns: 100px 50px repeat({COLUMNS}, 1fr); gap: 2px; margin: 3px 0; }}
.sl-step .row > div {{ min-width: 0; }}
.sl-step .name small {{ display: block; font-size: 11px; color: {SOFT_INK}; line-height: 1.2; }}
.sl-step .name {{ line-height: 1.3; }}
.sl-step .cell {{ height: 34px; border: 1px solid transparent; border-radius: 3px; text-align: center; font-size: 11px;
  line-height: 1.3; overflow: hidden; white-space: nowrap; box-sizing: border-box; padding-top: 1px; }}
.sl-step .cell .w {{ display: block; overflow: hidden; text-overflow: clip; }}
.sl-step .foot {{ margin-top: 8px; min-height: 42px; }}
.sl-step .sum {{ color: {SOFT_INK}; }}
</style>"""


def steps(trace: Trace) -> int:
    """How many steps a trace has: three for each round, as `PHASES` names them."""
    return len(PHASES) * len(trace.rounds)


def stepper_html(trace: Trace, step: int, token_text: TokenText) -> str:
    """One step of a generation: a sentence, the text with its drafts, and below it both caches.

    trace: as `watch.record` gives it. step: 0 … steps(trace) − 1, cut to that. token_text: from id to text.
    Taught in notebook 03_greedy, section 'Drag it: one round'.
    """
    if not trace.rounds:
        return f'{CSS}<div class="sl-step">No round was recorded: ask for at least one token.</div>'
    step = max(0, min(step, steps(trace) - 1))
    number, phase = divmod(step, len(PHASES))
    seen = trace.rounds[number]
    head = (
        f'<div class="head" role="status"><b>Round {number + 1} of {len(trace.rounds)} · {PHASES[phase]}.</b> '
        f"{_sentence(seen, phase, token_text)}</div>"
    )
    body = _text(trace, number, phase, token_text) + _strips(trace, seen, phase, token_text)
    return f'{CSS}<div class="sl-step">{head}{body}<div class="foot">{_legend()}{_verdict(trace)}</div></div>'


def word(token_text: TokenText, token: int, most: int = 14) -> str:
    """A token as a label, safe in HTML."""
    return style.readable(token_text(token), most)


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _sentence(seen: Seen, phase: int, token_text: TokenText) -> str:
    k, kept = len(seen.drafts), seen.accepted
    if phase == 0:
        if not k:
            return "Nothing is drafted: the budget has room for one token, or nobody had a guess."
        return f"The draft model guesses {_count(k, 'token')}, one after another: so many small passes."
    if phase == 1:
        rows = f"One pass of the target over the last token of the text and {_count(k, 'draft')}"
        rows += f": {_count(k + 1, 'row')}, so {_count(k + 1, 'argmax', 'argmaxes')}. "
        if seen.last == "end":
            return rows + f"{kept} kept, and the text ends there."
        token = f"<b>{word(token_text, seen.tokens[-1])}</b>"
        if seen.last == "plain":
            return rows + f"It says {token}: a plain step."
        if seen.last == "bonus":
            return rows + f"All {k} kept, and the last row brings a bonus: {token}."
        return rows + f"{kept} kept, then the target says {token} instead: the fix."
    gone = [len(a) - len(b) for a, b in ((seen.target_cache[1], seen.target_cache[2]), seen.draft_cache)]
    ghosts = sum(c.ghost for c in seen.target_cache[2]) - sum(c.ghost for c in seen.target_cache[1])
    done = f"{_count(len(seen.tokens), 'token')} committed. "
    if ghosts > 0:
        return done + f"The target's cache should forget {ghosts} and does not: <b>{_count(ghosts, 'new ghost')}</b>."
    return done + f"The target's cache forgets {gone[0]}, the draft's {gone[1]}."


# --- the text -----------------------------------------------------------------------------------------------


def kinds(seen: Seen, phase: int) -> list[tuple[int, str]]:
    """The tokens of a round in reading order, each with what it is in this phase (a key of the looks)."""
    if phase == 0:
        return [(d, "draft") for d in seen.drafts]
    kept = [(d, "kept") for d in seen.tokens[: seen.accepted]]
    end = [] if seen.last == "end" else [(seen.tokens[-1], seen.last)]
    if phase == 2:
        return kept + end
    rest = seen.drafts[seen.accepted :]
    judged = ["rejected" if seen.last == "fix" else "unchecked", *["unchecked"] * len(rest)]
    return kept + list(zip(rest, judged, strict=False)) + end


def _text(trace: Trace, number: int, phase: int, token_text: TokenText) -> str:
    prompt = "".join(token_text(t) for t in trace.prompt)
    prompt = prompt if len(prompt) <= 100 else "… " + prompt[-98:]
    out, place = [f'<span class="prompt">{escape(prompt)}</span>'], 0
    wrong_from = len(trace.tokens) + 1 if trace.parts_at is None else trace.parts_at
    for seen in trace.rounds[:number]:
        for token, kind in kinds(seen, 2):
            out.append(_past(token_text(token), kind, place >= wrong_from))
            place += 1
    for token, kind in kinds(trace.rounds[number], phase):
        out.append(_chip(word(token_text, token), kind, phase > 0 and place >= wrong_from))
        place += kind not in ("rejected", "unchecked")
    return f'<div class="text">{"".join(out)}</div>'


def _named(kind: str) -> str:
    return f"{_LOOKS[kind].mark} {kind}"


def _past(text: str, kind: str, wrong: bool) -> str:
    look = _LOOKS[kind]
    label = f"{_named(kind)} earlier" + (", not what plain greedy says" if wrong else "")
    # A real line break would push the caches down the page, step by step.
    text = text.replace("\n", "⏎")
    css = f"border-bottom: 3px {look.border} {look.colour}; background: {look.fill}"
    return f'<span class="t{" off" if wrong else ""}" style="{css}" title="{label}">{escape(text)}</span>'


def _chip(text: str, kind: str, wrong: bool) -> str:
    look = _LOOKS[kind]
    name = _named(kind) + (" ≠" if wrong and kind not in ("rejected", "unchecked") else "")
    struck = " s" if kind in ("rejected", "unchecked") else ""
    css = f"border-color: {look.colour}; border-style: {look.border}; background: {look.fill}"
    return f'<span class="tok {kind}{struck}"><b style="{css}">{text}</b><small>{name}</small></span>'


# --- the caches ---------------------------------------------------------------------------------------------


def _strips(trace: Trace, seen: Seen, phase: int, token_text: TokenText) -> str:
    first = max(0, seen.start - 2)
    text = [*trace.prompt, *trace.tokens][: seen.start]
    judged = kinds(seen, phase)
    over = {"rejected", "unchecked"}
    shown = [_cell(word(token_text, t, 6), "kept", "") for t in text[first:]]
    shown += [_cell(word(token_text, t, 6), kind, _named(kind)) for t, kind in judged if kind not in over]
    length = seen.start + (len(seen.tokens) if phase else 0)
    rows = _row("text", f"{length} tokens", first, shown)
    scored = seen.target_cache[1]
    drafts_at = len(scored) - len(seen.drafts)
    rows += _cache_row("target’s cache", seen.target_cache[phase], scored, seen, phase, token_text, "kept", drafts_at)
    if seen.draft_cache[0]:
        now = seen.draft_cache[phase == 2]
        rows += _cache_row("draft’s cache", now, seen.draft_cache[0], seen, phase, token_text, "held", seen.start)
    return f'<div role="group" aria-label="both caches">{rows}</div>'


def _cache_row(
    name: str, now: Cache, fullest: Cache, seen: Seen, phase: int, token_text: TokenText, kind: str, drafts_at: int
) -> str:
    """now: what is held; fullest: what was, before the cut, so that what is gone can be shown as gone."""
    ghosts = sum(c.ghost for c in now)
    # With ghosts a place in the cache is no longer a place in the text: show the end of what there is.
    first = max(0, len(fullest) - COLUMNS) if ghosts else max(0, seen.start - 2)
    judged = [k for _, k in kinds(seen, phase) if k in _JUDGED] if phase < 2 else []
    cells = []
    for place, held in enumerate(fullest[first:], first):
        label, mark = word(token_text, held.token, 6), place - drafts_at
        if place >= len(now):
            cells.append(_cell(label, "cut", "cut") if phase == 2 else _cell("", "empty", ""))
        elif now[place].ghost:
            cells.append(_cell(label, "ghost", "ghost"))
        elif 0 <= mark < len(judged):
            cells.append(_cell(label, judged[mark], _LOOKS[judged[mark]].mark))
        else:
            cells.append(_cell(label, kind, ""))
    covers = f"{len(now)}, {_count(ghosts, 'ghost')}" if ghosts else f"{len(now)} places"
    if phase == 2 and not ghosts and len(now) == seen.start + len(seen.tokens) - 1:
        covers = f"{len(now)} = text − 1"
    return _row(name, covers, first, cells)


def _cell(text: str, kind: str, below: str) -> str:
    if kind in ("cut", "empty", "ghost"):
        css = f"border: 1px dashed {SOFT_INK}; opacity: .55"
        css = f"border: 1px solid {RED}; background: {stripes(tint(RED, 0.3))}" if kind == "ghost" else css
    else:
        look = _LOOKS[kind]
        css = f"border: 1px {look.border.replace('double', 'solid')} {look.colour}; background: {look.fill}"
    struck = " s" if kind in ("rejected", "unchecked", "ghost", "cut") else ""
    return f'<div class="cell{struck}" style="{css}"><span class="w">{text}</span><small>{below}</small></div>'


def _row(name: str, covers: str, before: int, cells: list[str]) -> str:
    earlier = f'<div class="cell" style="color: {SOFT_INK}"><span class="w">{before}</span><small>earlier</small></div>'
    head = f'<div class="name">{name}<small>{covers}</small></div>'
    return (
        f'<div class="row" role="group" aria-label="{name}, {covers}">{head}{earlier}{"".join(cells[:COLUMNS])}</div>'
    )


def _legend() -> str:
    names = (("kept", "kept earlier"), ("fix", "fix or bonus earlier"))
    parts = [_past(f" {label} ", kind, False) for kind, label in names]
    return f'<span class="sum" style="float: right">{" ".join(parts)}</span>'


def _verdict(trace: Trace) -> str:
    stats = trace.stats
    alpha = "–" if stats.alpha_hat != stats.alpha_hat else f"{stats.alpha_hat:.2f}"
    whole = f"Whole text: {len(trace.tokens)} tokens in {_count(len(trace.rounds), 'pass', 'passes')} of the target"
    whole = f'<span class="sum">{whole} · AL {stats.mean_accepted_length:.2f} · α̂ {alpha}</span>'
    if trace.expected is None:
        return whole
    at = trace.parts_at
    if at is None:
        return f'<b style="color: {GREEN}">✓</b> token for token the text of plain greedy<br>{whole}'
    start = len(trace.prompt)
    in_round = next(
        (i for i, r in enumerate(trace.rounds, 1) if at < r.start - start + len(r.tokens)), len(trace.rounds)
    )
    return f'<b style="color: {RED}">✗</b> parts from plain greedy at token {at + 1}, in round {in_round}<br>{whole}'
