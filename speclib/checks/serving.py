"""Checkers and answers for the exercises of notebook 07_serve_and_bench: figures from traces, by a scripted clock."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from speclib import bench_trace
from speclib.bench_speedup import Cost, speedup
from speclib.bench_trace import Chunk, Trace, percentile
from speclib.checks.number import CLOSE, judge_number, number
from speclib.exercises import answer

_judge = functools.partial(judge_number, unit=" s")

Ttft = Callable[[Trace], float]
Tpot = Callable[[Trace, int], float]
Draw = Callable[[int], Sequence[int]]
SpeedupInterval = Callable[[Sequence[Cost], Sequence[Cost], Draw, int], tuple[float, float]]

ttft_answer = bench_trace.ttft
tpot_answer = bench_trace.tpot


def speedup_interval_answer(
    plain: Sequence[Cost], fast: Sequence[Cost], draw: Draw, times: int = 1000
) -> tuple[float, float]:
    """The middle 95 % of the speedup over prompts drawn anew; draw(n) gives n indices below n, with replacement."""
    found = []
    for _ in range(times):
        drawn = draw(len(plain))
        found.append(speedup([plain[i] for i in drawn], [fast[i] for i in drawn]))
    return percentile(found, 0.025), percentile(found, 0.975)


def trace_of(sent: float, chunks: Sequence[tuple[float, str]], prompt_tokens: int, tokens: int) -> Trace:
    """A trace of one request. chunks: seconds after it was sent, and text."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
    made = tuple(Chunk(sent + at, text) for at, text in chunks)
    return Trace("a prompt", "chat", sent, made, usage, made[-1].at + 0.05)


# Name → trace and the tokens of its first chunk with text. Gaps, lengths and tokens all differ, so that two ways to
# count never agree by accident.
TRACES = {
    "three tokens a chunk": (
        trace_of(7.0, [(0.1, ""), (0.4, "One, two"), (0.75, ", three,"), (1.05, " four, five"), (1.2, "")], 58, 9),
        3,
    ),
    "chunks of unequal size and no chunk for the role": (
        trace_of(
            0.0, [(0.3, "Rounds"), (0.55, " keep as many as"), (0.6, " agree"), (1.1, ", then one more.")], 17, 12
        ),
        2,
    ),
    "two empty chunks first": (
        trace_of(42.0, [(0.05, ""), (0.06, ""), (0.9, "a b"), (1.3, " c d e"), (1.4, " f"), (1.9, "")], 24, 7),
        2,
    ),
    "one token a chunk behind a chunk for the role": (
        trace_of(100.0, [(0.21, ""), (0.5, "It"), (0.6, " is"), (0.72, " so"), (0.8, "."), (0.97, "")], 31, 4),
        1,
    ),
}


def ttft(fn: Ttft) -> None:
    """AssertionError, naming the case, unless fn(trace) is the seconds from sending to the first text."""
    for name, (trace, _) in TRACES.items():
        case, texts = f"With {name}", trace.content
        got = number(case, fn, trace)
        first, every = texts[0].at, trace.chunks
        reasons = {
            every[0].at - trace.sent: "the first chunk only names the role: wait for the first one that has a text",
            first: "that is a time on the clock: subtract the time at which the request was sent",
            every[0].at: "that is the clock's time of a chunk without text",
            trace.sent - first: "it is later minus earlier",
            first - every[0].at: "the time counts from sending, not from the first chunk",
            texts[1].at - first: "that is the time between the first two texts",
            texts[1].at - trace.sent: "the first chunk with a text counts, not the second",
            texts[-1].at - trace.sent: "the first text counts, not the last",
            trace.ended - trace.sent: "that is the whole request: stop at the first text",
            1000 * (first - trace.sent): "seconds are asked for, not milliseconds",
        }
        _judge(case, got, first - trace.sent, reasons, "first chunk with a text, minus the time of sending")


def tpot(fn: Tpot) -> None:
    """AssertionError, naming the case, unless fn(trace, first_tokens) is TPOT as the course defines it."""
    for name, (trace, first_tokens) in TRACES.items():
        case, texts = f"With {name}", trace.content
        got = number(case, fn, trace, first_tokens)
        tokens, n = trace.tokens, len(texts)
        span, rest = texts[-1].at - texts[0].at, trace.tokens - first_tokens
        letters = sum(len(c.text) for c in texts)
        words = len("".join(c.text for c in texts).split())
        gaps = [b.at - a.at for a, b in itertools.pairwise(texts)]
        chunk = "a chunk is not a token: how many tokens there were stands in the usage"
        wait = "time to the first token is in it: start at the first text"
        first = "the tokens of the first chunk were there when the clock started: subtract them"
        role = "start at the first text, not at the chunk for the role"
        silent = "the last chunks bring no text: stop at the last one that does"
        prompt = "the prompt's tokens were not generated: take completion_tokens"
        reasons = {
            span / (n - 1): chunk, span / n: chunk, statistics.median(gaps): chunk,
            (texts[-1].at - trace.sent) / tokens: wait, (texts[-1].at - trace.sent) / rest: wait,
            (trace.ended - trace.sent) / tokens: wait, (texts[-1].at - trace.sent) / n: f"{wait}; and {chunk}",
            (texts[-1].at - trace.chunks[0].at) / rest: role, (texts[-1].at - trace.chunks[0].at) / tokens: role,
            span / tokens: first, span / (tokens - 1): f"{first}, all {first_tokens} of them",
            (trace.chunks[-1].at - texts[0].at) / rest: silent, (trace.ended - texts[0].at) / rest: silent,
            span / letters: "characters are not tokens", span / words: "words are not tokens",
            span / (letters - len(texts[0].text)): "characters are not tokens",
            span / (trace.usage["total_tokens"] - first_tokens): prompt, span / trace.usage["total_tokens"]: prompt,
            span / trace.usage["prompt_tokens"]: prompt, span / (trace.usage["prompt_tokens"] - first_tokens): prompt,
            rest / span: "that is tokens per second; seconds per token are asked for",
            1000 * span / rest: "seconds are asked for, not milliseconds",
            span: "divide by the tokens that came in that time",
        }  # fmt: skip
        _judge(case, got, span / rest, reasons, "(last text − first text) ÷ (tokens − tokens of the first chunk)")


# Seconds and tokens of each prompt: plain, then speculative.
RACES = {
    "every prompt exactly twice as fast, some of them slow either way": (
        [(1.0, 20), (6.0, 30), (0.5, 25), (9.0, 18), (2.0, 40)],
        [(0.5, 20), (3.0, 30), (0.25, 25), (4.5, 18), (1.0, 40)],
    ),
    "long answers that gain little and short ones that gain much": (
        [(12.0, 240), (11.0, 210), (0.9, 18), (1.2, 22), (10.0, 200), (0.6, 12)],
        [(10.5, 240), (9.0, 205), (0.3, 18), (0.35, 22), (9.1, 210), (0.15, 11)],
    ),
    "one prompt": ([(3.0, 60)], [(2.0, 50)]),
}


class Drawn:
    """draw(n) for an exercise: notes what it handed out."""

    def __init__(self, n: int):
        self.n, self.rng = n, random.Random(7)
        self.handed: list[list[int]] = []

    def __call__(self, n: int) -> list[int]:
        if n != self.n:
            raise ValueError(f"draw was asked for {n!r} prompts: draw as many as there are, {self.n}")
        self.handed.append([self.rng.randrange(n) for _ in range(n)])
        return list(self.handed[-1])


def speedup_interval(fn: SpeedupInterval, times: int = 400) -> None:
    """AssertionError, naming the case, unless fn(plain, fast, draw, times) is the middle 95 % over what was drawn."""
    for name, (plain, fast) in RACES.items():
        case, n = f"With {name}", len(plain)
        draw = Drawn(n)
        got = _two(case, answer(case, fn, list(plain), list(fast), draw, times))
        if len(draw.handed) != times:
            raise AssertionError(f"{case}, {_why_not_so_often(len(draw.handed), times)}.")
        whole = list(range(n))
        found = [_speedup(plain, fast, d, d) for d in draw.handed]
        if _is_middle(got, found):
            continue
        expected = _ends(found)
        mean, sd = statistics.mean(found), statistics.pstdev(found)
        reasons = (
            (expected[::-1], "the lower end comes first"),
            (_ends([1 / x for x in found]), "it is plain ÷ speculative, above 1 where speculation is faster"),
            (_ends([_speedup(plain, fast, d, whole) for d in draw.handed]), _PAIRS),
            (_ends([_speedup(plain, fast, whole, d) for d in draw.handed]), _PAIRS),
            (_ends([_mean_of_ratios(plain, fast, d) for d in draw.handed]), _POOL),
            (
                _ends([_seconds_only(plain, fast, d) for d in draw.handed]),
                "the answers differ in length: seconds per token",
            ),
            ((_speedup(plain, fast, whole, whole),) * 2, "that is the speedup itself, twice: use what was drawn"),
            ((min(found), max(found)), "leave out 2.5 % of the draws at each end"),
            (_ends(found, 0.05), "the middle 95 % leaves out 2.5 % at each end, not 5 %"),
            (_ends(found, 0.25), "that is the middle half; the middle 95 % is asked for"),
            ((mean - sd, mean + sd), "that is one standard deviation; sort the draws and take the middle 95 %"),
            ((mean - 1.96 * sd, mean + 1.96 * sd), "sort the draws and take the middle 95 %; nothing has to be normal"),
        )
        rest = "from 2.5 % to 97.5 % of the speedups, pooled seconds per token of what each draw brings"
        why = next((text for ends, text in reasons if all(map(_near, got, ends))), rest)
        shown = [f"{low:.3f} to {high:.3f}" for low, high in (expected, got)]
        raise AssertionError(f"{case}, it is {shown[0]}, but yours is {shown[1]}: {why}.")


_PAIRS = "a prompt that is drawn brings both its times, plain and speculative: one draw serves both"
_POOL = "add up seconds and tokens over the drawn prompts first, then divide: a mean of ratios lets short answers rule"


def _why_not_so_often(drawn: int, times: int) -> str:
    if drawn == 2 * times:
        return f"draw was called {drawn} times for {times} repetitions: {_PAIRS}"
    if drawn == 0:
        return f"draw was never called: draw the prompts anew {times} times"
    return f"draw was called {drawn} times; {times} repetitions are asked for, one draw each"


def _speedup(plain: Sequence[Cost], fast: Sequence[Cost], a: Sequence[int], b: Sequence[int]) -> float:
    return speedup([plain[i] for i in a], [fast[i] for i in b])


def _mean_of_ratios(plain: Sequence[Cost], fast: Sequence[Cost], drawn: Sequence[int]) -> float:
    return statistics.mean(_speedup(plain, fast, [i], [i]) for i in drawn)


def _seconds_only(plain: Sequence[Cost], fast: Sequence[Cost], drawn: Sequence[int]) -> float:
    return sum(plain[i][0] for i in drawn) / sum(fast[i][0] for i in drawn)


def _ends(values: Sequence[float], outside: float = 0.025) -> tuple[float, float]:
    return percentile(values, outside), percentile(values, 1 - outside)


def _is_middle(got: tuple[float, float], values: Sequence[float]) -> bool:
    """Whether both ends lie where some way of counting percentiles puts them: within one value of the exact place."""
    ordered = sorted(values)
    for end, share in zip(got, (0.025, 0.975), strict=True):
        place = share * (len(ordered) - 1)
        low, high = ordered[max(0, math.floor(place) - 1)], ordered[min(len(ordered) - 1, math.ceil(place) + 1)]
        if not low - 1e-9 <= end <= high + 1e-9:
            return False
    return True


def _two(case: str, got: Any) -> tuple[float, float]:
    try:
        low, high = (float(x) for x in got)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{case}, your function should return two numbers, (low, high), not {got!r}.") from error
    return low, high


def _near(got: float, value: float) -> bool:
    return math.isclose(got, value, rel_tol=CLOSE)
