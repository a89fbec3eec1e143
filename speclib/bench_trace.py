"""What one streamed answer was like on the client's clock, and the figures that follow from it: all pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = dict[str, Any]
SPECULATION = ("drafted", "checked", "accepted", "rounds")


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer: when it came, its text ("" for a chunk that only names the role), its tokens.

    at: seconds on the client's clock. tokens: as a tokenizer counts them; None = nobody counted.
    Taught in notebook 07_serve_and_bench, section 'The trace of one request'.
    """

    at: float
    text: str
    tokens: int | None = None


@dataclass(frozen=True)
class Trace:
    """One request: sent when, which chunks came, what the server said of it, and how it ended.

    prompt, kind: which prompt, and of what kind. usage: the server's own count, or None. ended: when the stream was
    over. error: None, or the kind of failure in a word or two; detail: what was said of it.
    Taught in notebook 07_serve_and_bench, section 'The trace of one request'.
    """

    prompt: str
    kind: str
    sent: float
    chunks: tuple[Chunk, ...] = ()
    usage: Mapping[str, Any] | None = None
    ended: float = math.nan
    error: str | None = None
    detail: str = ""

    @property
    def content(self) -> list[Chunk]:
        """The chunks that brought text."""
        return [c for c in self.chunks if c.text]

    @property
    def tokens(self) -> int | None:
        """Tokens of the answer: as usage says, else those of its chunks, else None."""
        told = (self.usage or {}).get("completion_tokens")
        if isinstance(told, int):
            return told
        return sum(c.tokens or 0 for c in self.content) if self.told else None

    @property
    def told(self) -> bool:
        """Whether the tokens of every chunk are known."""
        return bool(self.content) and all(c.tokens is not None for c in self.content)

    @property
    def tokens_from(self) -> str:
        """Who counted: usage, chunk by chunk (the server, or a tokenizer here), or nobody."""
        if isinstance((self.usage or {}).get("completion_tokens"), int):
            return "usage"
        return "chunks" if self.told else "nobody"

    @property
    def first_tokens(self) -> int:
        """Tokens of the first chunk with content: as tokenised, and one where there is no tokenizer."""
        return self.content[0].tokens or 1 if self.content else 0

    @property
    def speculation(self) -> dict[str, int] | None:
        """Drafts made, checked and kept, and rounds, where the server tells of them in its usage."""
        told = (self.usage or {}).get("speculation")
        if not isinstance(told, Mapping) or not all(isinstance(told.get(name), int) for name in SPECULATION):
            return None
        return {name: told[name] for name in SPECULATION}


def ttft(trace: Trace) -> float | None:
    """Time to first token: seconds from sending to the first chunk that is not empty; None if there is none.

    Taught in notebook 07_serve_and_bench, section 'Time to the first token'.
    """
    first = next((c for c in trace.chunks if c.text), None)
    return None if first is None else first.at - trace.sent


def tpot(trace: Trace, first_tokens: int | None = None) -> float | None:
    """Time per output token: (last content − first content) ÷ (tokens − tokens of the first chunk).

    first_tokens: None = as the trace has it. None where the tokens are not known, or all came at once.
    Taught in notebook 07_serve_and_bench, section 'Time per token'.
    """
    seconds, tokens = decoding(trace, first_tokens)
    return seconds / tokens if tokens else None


def decoding(trace: Trace, first_tokens: int | None = None) -> tuple[float, int]:
    """What TPOT divides: seconds between first and last content, and the tokens that came in them; 0, 0 if unknown.

    Taught in notebook 07_serve_and_bench, section 'Time per token'.
    """
    content, tokens = trace.content, trace.tokens
    first = trace.first_tokens if first_tokens is None else first_tokens
    if trace.error or len(content) < 2 or tokens is None or tokens <= first:
        return 0.0, 0
    return content[-1].at - content[0].at, tokens - first


def inter_token_times(trace: Trace) -> list[float]:
    """Seconds per token behind the first chunk, one entry a token: a chunk of n tokens gives n equal shares of its gap.

    Empty where the tokens of each chunk are not known; they are without a tokenizer if there are as many as chunks.
    Taught in notebook 07_serve_and_bench, section 'Time per token'.
    """
    content = trace.content
    if len(content) == trace.tokens:
        content = [dataclasses.replace(c, tokens=1) for c in content]
    if not content or any(c.tokens is None for c in content):
        return []
    times, since = [], content[0].at
    for chunk in content[1:]:
        # A chunk may complete a character and no token: its time belongs to the token that follows.
        if chunk.tokens:
            times += [(chunk.at - since) / chunk.tokens] * chunk.tokens
            since = chunk.at
    return times


def tokens_per_second(trace: Trace) -> float | None:
    """Tokens of one answer ÷ seconds from sending to its last content: what its reader sees, waiting included.

    Taught in notebook 07_serve_and_bench, section 'Tokens per second'.
    """
    if trace.error or not trace.tokens or not trace.content:
        return None
    return trace.tokens / (trace.content[-1].at - trace.sent)


def busy_seconds(traces: Iterable[Trace]) -> float:
    """Seconds in which at least one of the requests was under way.

    Taught in notebook 07_serve_and_bench, section 'Tokens per second'.
    """
    total, until = 0.0, -math.inf
    for start, end in sorted((t.sent, t.ended) for t in traces):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, interpolated between the two neighbours. ValueError: no values.

    Taught in notebook 07_serve_and_bench, section 'Many requests'.
    """
    if not values:
        raise ValueError("there is no percentile of no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def summary(traces: Sequence[Trace]) -> Summary:
    """Requests of one row at one concurrency in figures; those that failed are counted by kind and in nothing else.

    Times in seconds, each as mean, p50, p95 and p99, or None where nothing is known. tokens_per_second: in all, over
    the time in which any request was under way, and for each request. α̂, acceptance rate and AL where the server tells.
    Taught in notebook 07_serve_and_bench, section 'Many requests'.
    """
    good = [t for t in traces if not t.error]
    counted = [t for t in good if t.tokens is not None]
    seconds, tokens = busy_seconds(traces), sum(t.tokens for t in counted)
    parts = [decoding(t) for t in good]
    in_chunks, decoded = sum(s for s, _ in parts), sum(n for _, n in parts)
    return {
        "requests": len(traces),
        "errors": dict(Counter(t.error for t in traces if t.error)),
        "seconds": seconds,
        "tokens": tokens,
        "tokens_from": dict(Counter(t.tokens_from for t in good)),
        "first_chunk": dict(Counter("counted" if t.content[0].tokens else "taken for one token" for t in good)),
        "tokens_per_second": tokens / seconds if tokens else None,
        "tokens_per_second_each": _spread(tokens_per_second(t) for t in good),
        "ttft": _spread(ttft(t) for t in good),
        "tpot": _spread(tpot(t) for t in good),
        "inter_token": _spread(x for t in good for x in inter_token_times(t)),
        "seconds_per_token": in_chunks / decoded if decoded else None,
        "acceptance": acceptance([t.speculation for t in good if t.speculation], tokens),
    }


def by_kind(traces: Sequence[Trace]) -> dict[str, Summary]:
    """`summary` for each kind of prompt, kinds as they first come.

    Taught in notebook 07_serve_and_bench, section 'Many requests'.
    """
    return {k: summary([t for t in traces if t.kind == k]) for k in dict.fromkeys(t.kind for t in traces)}


def acceptance(told: Sequence[Mapping[str, int]], tokens: int) -> Summary | None:
    """Drafted, checked, accepted and rounds of several requests, added up, and α̂, acceptance rate and AL from them.

    A server that does not say how many drafts were checked leaves α̂ None. None when nothing was told.
    """
    if not told:
        return None
    total = {name: sum(t[name] for t in told) if all(name in t for t in told) else None for name in SPECULATION}
    drafted, checked, accepted, rounds = (total[name] for name in SPECULATION)
    return {
        **total,
        "alpha_hat": accepted / checked if checked else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "accepted_length": tokens / rounds if rounds else None,
    }


def counted(trace: Trace, count: Callable[[str], int]) -> Trace:
    """The trace with the tokens of each chunk: what it adds to the count of the whole text up to it.

    count: tokens of a text. A chunk on its own would be tokenised otherwise than inside its text.
    Taught in notebook 07_serve_and_bench, section 'Time per token'.
    """
    text, so_far, chunks = "", 0, []
    for chunk in trace.chunks:
        text += chunk.text
        now = max(so_far, count(text)) if chunk.text else so_far
        chunks.append(dataclasses.replace(chunk, tokens=now - so_far))
        so_far = now
    return dataclasses.replace(trace, chunks=tuple(chunks))


def _spread(values: Iterable[float | None]) -> Summary | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    return {"mean": sum(known) / len(known)} | {f"p{round(100 * q)}": percentile(known, q) for q in (0.5, 0.95, 0.99)}
