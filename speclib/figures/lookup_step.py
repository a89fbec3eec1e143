"""F7, one step: a generation by lookup, told round by round in words and as `lookup.lookup_html`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speclib.decode import Stats
from speclib.figures import style
from speclib.figures.lookup import lookup_html, rows_of
from speclib.figures.lookup_rounds import Found, Looked

PHASES = ("look up", "check")


def steps(rounds: Sequence[Looked]) -> int:
    """How many steps a generation has: two for each round, as `PHASES` names them."""
    return len(PHASES) * len(rounds)


def lookup_step(
    text: Sequence[int], rounds: Sequence[Looked], step: int, token_text: Callable[[int], str], max_ngram: int
) -> str:
    """One step of a generation by lookup. text: prompt and answer. rounds: as `rounds_of` gives them, at least one."""
    number, phase = divmod(max(0, min(step, steps(rounds) - 1)), len(PHASES))
    seen, words = rounds[number], [style.readable(token_text(t), 12) for t in text]
    proposed = [style.readable(token_text(t), 12) for t in seen.drafts]
    copied = {r.start + i for r in rounds[:number] for i in range(r.accepted)}
    token = style.readable(token_text(seen.tokens[-1]), 12)
    said = _looked(seen, max_ngram, len(text) - seen.start) if phase == 0 else _checked(seen, token)
    sentence = f"<b>Round {number + 1} of {len(rounds)} · {PHASES[phase]}.</b> {said}"
    found = seen.found or Found(0, 0)
    return lookup_html(
        words[: seen.start],
        found.n,
        found.start if seen.found else None,
        proposed,
        seen.accepted if phase else None,
        seen.last,
        token,
        copied=copied,
        answer=rounds[0].start,
        rows=rows_of(words),
        sentence=sentence,
        foot=_foot(rounds),
    )


def _looked(seen: Looked, max_ngram: int, left: int) -> str:
    if seen.found is None:
        why = "Only one token is left to write" if left == 1 else "Not even the last token stood in the text before"
        return f"{why}:<br>nothing is proposed, and the round is a plain step."
    n, start = seen.found
    end, back = "The last token" if n == 1 else f"The last {n} tokens", seen.start - n - start
    more = f"{n + 1} … {max_ngram}" if max_ngram > n + 1 else n + 1
    longer = "" if n == max_ngram else f" (of {more} there is no match)"
    what = "The token that" if len(seen.drafts) == 1 else f"The {len(seen.drafts)} tokens that"
    return f"{end} stood in the text before, {back} places back{longer}.<br>{what} followed there: the proposal."


def _checked(seen: Looked, token: str) -> str:
    k, kept = len(seen.drafts), seen.accepted
    start = f"One pass of the target over {k + 1} token{'s' if k else ''}: "
    if seen.last == "plain":
        return f"{start}a plain step, as if there were no lookup.<br>It says {token}."
    end = f"all {k} kept, and a bonus" if seen.last == "bonus" else f"{kept} of {k} kept, then a fix"
    return f"{start}{end}.<br>{len(seen.tokens)} token{'s' if kept else ''} committed."


def _foot(rounds: Sequence[Looked]) -> str:
    stats = Stats(list(rounds))
    alpha = "–" if stats.alpha_hat != stats.alpha_hat else f"{stats.alpha_hat:.2f}"
    misses = sum(not r.drafts for r in rounds)
    whole = f"Whole answer: {len(stats.tokens)} tokens in {len(rounds)} rounds, {misses} of them without a proposal"
    return f"{whole} · AL {stats.mean_accepted_length:.2f} · α̂ {alpha}"
