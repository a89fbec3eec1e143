"""Checkers and answers for the exercises of notebook 02_verify_cost."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

from speclib.checks.number import judge_number, number

_judge = functools.partial(judge_number, close=2e-3)

Intensity = Callable[[float, int, float], float]
Ceiling = Callable[[float, float, bool, float, float], float]
TimeVerify = Callable[..., float]


def intensity_answer(weights: float, n: int, bytes_per_weight: float) -> float:
    """FLOP per byte of a pass over n tokens: a multiplication and an addition per weight and token."""
    return 2 * weights * n / (weights * bytes_per_weight)


def ceiling_answer(weights: float, embedding: float, tied: bool, bytes_per_weight: float, bandwidth: float) -> float:
    """Tokens per second at most, when a step reads all weights but an embedding of its own (not tied)."""
    return bandwidth / ((weights if tied else weights - embedding) * bytes_per_weight)


def time_verify_answer(
    context: Any, prompt_ids: list[int], n: int, trials: int, clock: Callable[[], float], wait: Callable[[], None]
) -> float:
    """Median seconds of a pass over n tokens behind a cached prompt, the first pass not counted."""
    context.feed(prompt_ids)
    seconds = []
    for _ in range(trials + 1):
        wait()
        start = clock()
        context.feed([0] * n)
        wait()
        seconds.append(clock() - start)
        context.rollback(len(prompt_ids))
    return statistics.median(seconds[1:])


def intensity(fn: Intensity) -> None:
    """AssertionError, naming the case, unless fn(weights, n, bytes_per_weight) is FLOP per byte of a pass."""
    for weights, n, size in ((8e9, 1, 2), (8e9, 5, 2), (1e9, 5, 2), (8e9, 1, 0.5), (1e9, 64, 4)):
        case = f"With {weights / 1e9:g} billion weights of {size:g} bytes and {n} token{'s' * (n > 1)}"
        expected = 2 * n / size
        got = number(case, fn, weights, n, size)
        reasons = {
            expected / 2: "each weight costs two operations for each token, a multiplication and an addition",
            1 / expected: "FLOP per byte is asked for, and this is bytes per FLOP",
            2 / size: "each weight, once read, is used for every one of the tokens",
            2 * n * size: "divide by the bytes, since fewer bytes mean more FLOP for each of them",
            2 * n / (weights * size): "the FLOPs are those of all weights, not of one",
            2 * n * weights: "divide the FLOPs by the bytes that are read",
        }
        _judge(case, got, expected, reasons, "FLOPs, 2 per weight and token, divided by bytes, each weight read once")


def ceiling(fn: Ceiling) -> None:
    """AssertionError, naming the case, unless fn gives the most tokens per second of plain decoding."""
    for name, weights, embedding, tied, size, bandwidth in (
        ("Llama 3.1 8B in bf16 (not tied) at 273 GB/s", 8.030e9, 0.525e9, False, 2, 273e9),
        ("Llama 3.2 1B in bf16 (tied) at 273 GB/s", 1.236e9, 0.263e9, True, 2, 273e9),
        ("Llama 3.1 8B in 4 bit (not tied) at 273 GB/s", 8.030e9, 0.525e9, False, 0.5, 273e9),
        ("Llama 3.1 8B in bf16 (not tied) at 4,800 GB/s", 8.030e9, 0.525e9, False, 2, 4.8e12),
    ):
        case = f"For {name}"
        expected = ceiling_answer(weights, embedding, tied, size, bandwidth)
        got = number(case, fn, weights, embedding, tied, size, bandwidth)
        read_other = weights - embedding if tied else weights
        why_other = (
            "a tied embedding is also the output matrix, so all of it is read"
            if tied
            else "an embedding that is not tied is looked up, one row of it, and not read"
        )
        reasons = {
            bandwidth / (read_other * size): why_other,
            1 / expected: "these are seconds per token; tokens per second are asked for",
            expected * size: "bandwidth is in bytes, so the weights have to be bytes too",
            expected / 8: "bandwidth is in bytes per second already, not in bits",
            expected * 8: "bandwidth is in bytes per second already, not in bits",
            bandwidth / ((weights + embedding) * size): "the embedding is one of the weights already",
        }
        _judge(case, got, expected, reasons, "bytes per second divided by the bytes that one step reads")


class Simulated:
    """A context on a device that works behind one's back, and the clock of its little world: no real time passes.

    `feed` only notes the work down and returns; the device does it later, and `wait` lets time pass until it is done.
    The first pass of all is slow, and so are those whose number stands in `disturbed`.
    """

    STEP, PER_TOKEN, PER_COVERED, LAUNCH, FIRST = 0.020, 0.0005, 0.00001, 0.00001, 1.0

    def __init__(self, disturbed: dict[int, float]):
        self.tokens: list[int] = []
        self.vocab_size, self.max_length, self.size = 1000, 1 << 20, 0
        self.now = self.busy_until = 5.0
        self.disturbed = disturbed
        self.log: list[tuple[int, int]] = []  # covered before, fed

    def feed(self, ids: list[int], rows: int | None = None) -> None:
        self.now += self.LAUNCH
        seconds = self.undisturbed(len(ids), len(self.tokens))
        # The prompt is pass 0, the uncounted one is pass 1.
        seconds += {1: self.FIRST}.get(len(self.log), self.disturbed.get(len(self.log), 0.0))
        self.log.append((len(self.tokens), len(ids)))
        self.busy_until = max(self.now, self.busy_until) + seconds
        self.tokens += ids

    def rollback(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens), f"rollback({length}) with {len(self.tokens)} tokens covered"
        del self.tokens[length:]

    def clock(self) -> float:
        return self.now

    def wait(self) -> None:
        self.now = max(self.now, self.busy_until)

    def undisturbed(self, n: int, covered: int) -> float:
        return self.STEP + self.PER_TOKEN * n + self.PER_COVERED * covered


def time_verify(fn: TimeVerify) -> None:
    """AssertionError, naming the case, unless fn(context, prompt_ids, n, trials, clock, wait) measures as it should.

    All on a simulated device with a simulated clock, so that the verdict does not depend on this machine.
    """
    prompt = list(range(100))
    for n, trials, disturbed in ((8, 1, {}), (1, 3, {}), (4, 5, {3: 0.4, 5: 0.001, 6: 0.003}), (150, 4, {2: 2.0})):
        case = f"On a simulated device, with n = {n} and {trials} trial{'s' * (trials > 1)}"
        device = Simulated(disturbed)
        got = number(case, fn, device, list(prompt), n, trials, device.clock, device.wait)
        _judge_passes(case, device, n, trials, len(prompt))
        base = device.undisturbed(n, len(prompt))
        # The last ones count, however many were made before them that do not.
        numbers = range(len(device.log) - trials, len(device.log))
        passes = [base + disturbed.get(i, 0.0) for i in numbers]
        expected, every = statistics.median(passes), [base + device.FIRST, *passes]
        reasons = {
            0.0: "the clock was read while the device was still at work: call wait() before each reading",
            statistics.median(every): "the first pass is counted, in which things are set up: leave it out",
            statistics.mean(every): "the first pass is counted, and a mean is taken where the median is asked for",
            statistics.mean(passes): "a mean is taken: one disturbed pass moves it; take the median",
            1000 * expected: "seconds are asked for, not milliseconds",
            sum(passes): "the passes are added up; take their median",
            expected / n: "the time of the whole pass is asked for, not the time for each token",
            min(passes): "the quickest pass is taken, which is luck: take the median",
        }
        # The slack is room for the time that it takes to note work down.
        order = "wait, read the clock, feed, wait, read it again; median of the trials"
        _judge(case, got, expected, reasons, order, slack=5 * device.LAUNCH)


def _judge_passes(case: str, device: Simulated, n: int, trials: int, length: int) -> None:
    """What was fed, and on top of what, tells most mistakes apart before any time is looked at."""
    (_, first), *passes = device.log or [(0, 0)]
    if first != length or device.log[0][0]:
        raise AssertionError(f"{case}, the first thing to feed is the whole prompt, {length} tokens, for the cache.")
    if any(fed == length != n for _, fed in passes):
        raise AssertionError(f"{case}, the prompt was fed more than once: build the cache once, before the trials.")
    if n > 1 and len(passes) >= n and all(fed == 1 for _, fed in passes):
        raise AssertionError(f"{case}, tokens were fed one by one: feed all {n} in one pass, which is the point.")
    if wrong := next((fed for _, fed in passes if fed != n), None):
        raise AssertionError(f"{case}, a pass was over {wrong} tokens: feed {n}, whatever tokens they are.")
    if grown := next((covered for covered, _ in passes if covered != length), None):
        raise AssertionError(
            f"{case}, a pass began with {grown} tokens in the cache instead of {length}: cut it back after every pass."
        )
    if len(passes) == trials:
        raise AssertionError(
            f"{case}, there were {trials} passes in all, so the first pass is counted, in which things are set up: "
            "make one more before them that is not."
        )
    if len(passes) < trials:
        raise AssertionError(f"{case}, only {len(passes)} passes were made: one uncounted, then {trials} that count.")
    if len(device.tokens) != length:
        raise AssertionError(
            f"{case}, the cache covers {len(device.tokens)} tokens at the end: cut it back after the last pass too."
        )
