"""The checkers of notebook 02 accept right answers, and say what is wrong with every other."""

from __future__ import annotations

import statistics

import pytest

from speclib.checks import cost as checks
from speclib.exercises import Todo


def timed(device, prompt, n, trials, clock, wait, *, sync=True, cut=True, skip=1, of=statistics.median, once=True):
    device.feed(prompt)
    seconds = []
    for _ in range(trials + skip):
        if not once:
            device.rollback(0)
            device.feed(prompt)
        wait()
        start = clock()
        device.feed([0] * n)
        if sync:
            wait()
        seconds.append(clock() - start)
        if cut:
            device.rollback(len(prompt))
    return of(seconds[skip:])


def variant(**how):
    return lambda *args: timed(*args, **how)


def one_by_one(device, prompt, n, trials, clock, wait):
    device.feed(prompt)
    seconds = []
    for _ in range(trials + 1):
        start = clock()
        for _ in range(n):
            device.feed([0])
        wait()
        seconds.append(clock() - start)
        device.rollback(len(prompt))
    return statistics.median(seconds[1:])


def not_at_the_end(device, prompt, n, trials, clock, wait):
    found = timed(device, prompt, n, trials, clock, wait)
    device.feed([0] * n)
    return found


def cut_before(device, prompt, n, trials, clock, wait):
    device.feed(prompt)
    seconds = []
    for _ in range(trials + 1):
        device.rollback(len(prompt))
        wait()
        start = clock()
        device.feed([0] * n)
        wait()
        seconds.append(clock() - start)
    return statistics.median(seconds[1:])


def raises_todo(*_):
    raise Todo


RIGHT = [
    (checks.intensity, checks.intensity_answer), (checks.intensity, lambda w, n, b: 2 * n / b),
    (checks.ceiling, checks.ceiling_answer), (checks.ceiling, lambda w, e, t, b, s: s / ((w - e * (not t)) * b)),
    (checks.time_verify, checks.time_verify_answer), (checks.time_verify, variant()),
    (checks.time_verify, variant(skip=3)),
]  # fmt: skip
WRONG = {
    "intensity, one operation": (checks.intensity, lambda w, n, b: n / b, "two operations"),
    "intensity, upside down": (checks.intensity, lambda w, n, b: b / (2 * n), "bytes per FLOP"),
    "intensity, n forgotten": (checks.intensity, lambda w, n, b: 2 / b, "every one of the tokens"),
    "intensity, n reads": (checks.intensity, lambda w, n, b: 2 * w * n / (w * n * b), "every one of the tokens"),
    "intensity, times bytes": (checks.intensity, lambda w, n, b: 2 * n * b, "divide by the bytes"),
    "intensity, FLOPs only": (checks.intensity, lambda w, n, b: 2 * n * w, "divide the FLOPs"),
    "intensity, of one weight": (checks.intensity, lambda w, n, b: 2 * n / (w * b), "of all weights"),
    "intensity, whole numbers": (checks.intensity, lambda w, n, b: 2 * n // (b + 1), "2 per weight and token"),
    "intensity, nothing": (checks.intensity, lambda w, n, b: None, "return"),
    "intensity, a crash": (checks.intensity, lambda w, n: 1, "raised TypeError"),
    "ceiling, all weights": (checks.ceiling, lambda w, e, t, b, s: s / (w * b), "looked up"),
    "ceiling, never the embedding": (checks.ceiling, lambda w, e, t, b, s: s / ((w - e) * b), "tied embedding is also"),
    "ceiling, the wrong way": (checks.ceiling, lambda w, e, t, b, s: s / ((w - e * t) * b), "looked up"),
    "ceiling, seconds": (checks.ceiling, lambda w, e, t, b, s: (w - e * (not t)) * b / s, "seconds per token"),
    "ceiling, weights as bytes": (checks.ceiling, lambda w, e, t, b, s: s / (w - e * (not t)), "to be bytes"),
    "ceiling, bits": (checks.ceiling, lambda w, e, t, b, s: s / ((w - e * (not t)) * b * 8), "not in bits"),
    "ceiling, embedding twice": (checks.ceiling, lambda w, e, t, b, s: s / ((w + e) * b), "one of the weights"),
    "ceiling, a word": (checks.ceiling, lambda w, e, t, b, s: "fast", "one number"),
    "time, no wait": (checks.time_verify, variant(sync=False), "still at work"),
    "time, no cut": (checks.time_verify, variant(cut=False), "cut it back"),
    "time, cut before instead": (checks.time_verify, cut_before, "after the last pass too"),
    "time, mean": (checks.time_verify, variant(of=statistics.mean), "a mean is taken"),
    "time, first counted": (checks.time_verify, variant(skip=0), "the first pass is counted"),
    "time, first counted in all": (
        checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, n, t + 1, c, w, skip=0), "the first pass is counted",
    ),
    "time, quickest": (checks.time_verify, variant(of=min), "the quickest"),
    "time, sum": (checks.time_verify, variant(of=sum), "added up"),
    "time, milliseconds": (checks.time_verify, variant(of=lambda s: 1000 * statistics.median(s)), "not milliseconds"),
    "time, per token": (
        checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, n, t, c, w) / n, "not the time for each token",
    ),
    "time, prompt every time": (checks.time_verify, variant(once=False), "more than once"),
    "time, one by one": (checks.time_verify, one_by_one, "one by one"),
    "time, n ignored": (checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, 3, t, c, w), "a pass was over 3"),
    "time, no prompt": (checks.time_verify, lambda d, p, n, t, c, w: timed(d, [0], n, t, c, w), "the whole prompt"),
    "time, left behind": (checks.time_verify, not_at_the_end, "cut it back|passes"),
    "time, too few": (
        checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, n, 1, c, w), "only 2 passes|there were|passes",
    ),
    "time, nothing measured": (checks.time_verify, lambda *_: 0.02, "first thing to feed"),
}  # fmt: skip


@pytest.mark.parametrize("check, fn", RIGHT)
def test_right_answers_pass(check, fn):
    check(fn)


@pytest.mark.parametrize("check, fn, fragment", WRONG.values(), ids=WRONG)
def test_wrong_answers_are_told_what_is_wrong(check, fn, fragment):
    with pytest.raises(AssertionError, match=f"(?s){fragment}") as caught:
        check(fn)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("check", [checks.intensity, checks.ceiling, checks.time_verify])
def test_a_stub_reaches_attempt_as_not_done(check):
    with pytest.raises(Todo):
        check(raises_todo)
