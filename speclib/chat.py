"""One answer, streamed: the loop on a real pair, as the command line shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speclib.decode import Round, Stats
    from speclib.distributions import Sampling
    from speclib.drafters import Drafter
    from speclib.pairs import Pair

DRAFTERS = ("model", "lookup", "lookup+model", "none")


def make_drafter(kind: str, pair: Pair) -> Drafter | None:
    """The drafter that a name stands for: the pair's draft model, lookup in the text, both in turn, or none.

    ValueError: another name. PairError: a model is asked for and the pair has no draft.
    """
    from speclib.drafters import FallbackDrafter, LookupDrafter, ModelDrafter

    if kind not in DRAFTERS:
        raise ValueError(f"there is no drafter {kind!r}: choose {', '.join(DRAFTERS)}")
    if kind == "none":
        return None
    if kind == "lookup":
        return LookupDrafter()
    model = ModelDrafter(pair.draft)
    return model if kind == "model" else FallbackDrafter(LookupDrafter(), model)


def answer(
    pair: Pair, text: str, drafter: Drafter | None, k: int, sampling: Sampling, max_new: int, seed: int | None = None
) -> Iterator[Round]:
    """The target's answer to one user turn, round by round; each round carries its text.

    text: what the user says. k: drafts per round. max_new: most tokens to commit. seed: None for a fresh one.
    """
    from speclib.context import as_context
    from speclib.decode import decode
    from speclib.distributions import Rng
    from speclib.stopping import Stop

    stop = Stop(max_new, eos=pair.eos_ids, tokenizer=pair.tokenizer)
    rng = Rng(seed, device=pair.device)
    return decode(as_context(pair.target), drafter, pair.chat_ids(text), k=k, sampling=sampling, stop=stop, rng=rng)


def show(pair: Pair, rounds: Iterator[Round], marks: bool) -> int:
    """Print rounds as they come and a line of statistics at the end; the exit status (130 when interrupted).

    marks: kept drafts stand in ‹ ›, and in blue where the output is a terminal.
    """
    from tokenizers.decoders import DecodeStream

    from speclib.decode import Stats

    stream, stats, status = DecodeStream(skip_special_tokens=True), Stats(), 0
    on, off = ("\x1b[34m‹", "›\x1b[0m") if sys.stdout.isatty() else ("‹", "›")
    try:
        for r in rounds:
            stats.rounds.append(r)
            if marks:
                pieces = [stream.step(pair.tokenizer.backend_tokenizer, t) or "" for t in r.tokens]
                kept, rest = "".join(pieces[: r.accepted]), "".join(pieces[r.accepted :])
                print((on + kept + off if kept else "") + rest, end="", flush=True)
            else:
                print(r.text, end="", flush=True)
    except KeyboardInterrupt:
        status = 130
    print("\n\n" + summary(stats))
    return status


def summary(stats: Stats) -> str:
    """A generation in one line: tokens, tokens/s (prefill excluded), AL, α̂, acceptance rate, rounds."""

    def share(value: float) -> Any:
        return "–" if value != value else f"{value:.2f}"

    if not stats.rounds:
        return "no tokens"
    return (
        f"{len(stats.tokens)} tokens, {len(stats.tokens) / stats.seconds:.1f} tokens/s · "
        f"AL {stats.mean_accepted_length:.2f} · α̂ {share(stats.alpha_hat)} · "
        f"acceptance rate {share(stats.acceptance_rate)} · {len(stats.rounds)} rounds"
    )
