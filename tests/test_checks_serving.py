"""The checkers of notebook 07 accept right answers, and say what is wrong with every other."""

from __future__ import annotations

import itertools
import random
import statistics

import numpy as np
import pytest
from answers import held_to

from speclib import bench_speedup
from speclib.checks import serving as checks


@pytest.fixture(autouse=True)
def exercises_as_found(monkeypatch):
    monkeypatch.delenv("SPECLIB_SOLUTIONS", raising=False)


def texts(trace):
    return [c for c in trace.chunks if c.text]


def loop(trace):
    for chunk in trace.chunks:
        if chunk.text != "":
            return chunk.at - trace.sent


RIGHT_TTFT = [checks.ttft_answer, loop, lambda t: np.float64(texts(t)[0].at - t.sent)]
WRONG_TTFT = {
    "the role's chunk": (lambda t: t.chunks[0].at - t.sent, "three tokens a chunk.*names the role"),
    "the clock": (lambda t: texts(t)[0].at, "time on the clock"),
    "the clock at the role": (lambda t: t.chunks[0].at, "clock's time"),
    "the wrong way round": (lambda t: t.sent - texts(t)[0].at, "later minus earlier"),
    "from the role on": (lambda t: texts(t)[0].at - t.chunks[0].at, "from sending"),
    "the second text": (lambda t: texts(t)[1].at - t.sent, "not the second"),
    "always the second chunk": (lambda t: t.chunks[1].at - t.sent, "no chunk for the role"),
    "the last": (lambda t: texts(t)[-1].at - t.sent, "not the last"),
    "the whole request": (lambda t: t.ended - t.sent, "whole request"),
    "milliseconds": (lambda t: 1000 * loop(t), "not milliseconds"),
    "a gap": (lambda t: texts(t)[1].at - texts(t)[0].at, "between the first two"),
    "a chunk": (lambda t: texts(t)[0], "one number"),
    "no return": (lambda t: None, "return"),
    "a crash": (lambda t: t.chunks[99].at, "raised IndexError"),
}


def span(trace):
    return texts(trace)[-1].at - texts(trace)[0].at


def made(trace):
    return trace.usage["completion_tokens"]


def text(trace):
    return "".join(c.text for c in texts(trace))


RIGHT_TPOT = [checks.tpot_answer, lambda t, first: span(t) / (made(t) - first)]
WRONG_TPOT = {
    "a chunk as a token": (lambda t, first: span(t) / (len(texts(t)) - 1), "three tokens a chunk.*not a token"),
    "chunks": (lambda t, first: span(t) / len(texts(t)), "a chunk is not a token"),
    "the median gap": (
        lambda t, first: statistics.median(b.at - a.at for a, b in itertools.pairwise(texts(t))),
        "a chunk is not a token",
    ),
    "every chunk": (lambda t, first: span(t) / (len(t.chunks) - 1), "it is"),
    "with TTFT": (lambda t, first: (texts(t)[-1].at - t.sent) / made(t), "first token is in it"),
    "with TTFT, without the first chunk's tokens": (
        lambda t, first: (texts(t)[-1].at - t.sent) / (made(t) - first),
        "first token is in it",
    ),
    "the whole request": (lambda t, first: (t.ended - t.sent) / made(t), "first token is in it"),
    "from the role on": (
        lambda t, first: (texts(t)[-1].at - t.chunks[0].at) / (made(t) - first),
        "not at the chunk for the role",
    ),
    "all tokens": (lambda t, first: span(t) / made(t), "subtract them"),
    "all tokens but one": (lambda t, first: span(t) / (made(t) - 1), "three tokens a chunk.*all 3 of them"),
    "to the last chunk": (lambda t, first: (t.chunks[-1].at - texts(t)[0].at) / (made(t) - first), "bring no text"),
    "to the end": (lambda t, first: (t.ended - texts(t)[0].at) / (made(t) - first), "bring no text"),
    "characters": (lambda t, first: span(t) / len(text(t)), "characters are not"),
    "characters behind the first chunk": (
        lambda t, first: span(t) / (len(text(t)) - len(texts(t)[0].text)),
        "characters are not",
    ),
    "words": (lambda t, first: span(t) / len(text(t).split()), "words are not"),
    "prompt and answer": (lambda t, first: span(t) / (t.usage["total_tokens"] - first), "were not generated"),
    "the prompt": (lambda t, first: span(t) / t.usage["prompt_tokens"], "were not generated"),
    "tokens per second": (lambda t, first: (made(t) - first) / span(t), "tokens per second"),
    "milliseconds": (lambda t, first: 1000 * span(t) / (made(t) - first), "not milliseconds"),
    "no division": (lambda t, first: span(t), "divide by"),
    "no return": (lambda t, first: None, "return"),
    "a list": (lambda t, first: [span(t)], "one number"),
    "a crash": (lambda t, first: span(t) / 0, "raised ZeroDivisionError"),
}


def cost(which, drawn):
    return sum(which[i][0] for i in drawn) / sum(which[i][1] for i in drawn)


def interval(of=None, ends=(2.5, 97.5), draws=1):
    """speedup_interval with its parts exchanged. of: plain, fast, drawn → a speedup."""
    of = of or (lambda plain, fast, drawn: cost(plain, drawn) / cost(fast, drawn))

    def fn(plain, fast, draw, times):
        found = []
        for _ in range(times):
            for _ in range(draws):
                drawn = draw(len(plain))
            found.append(of(plain, fast, drawn))
        return tuple(np.percentile(found, ends))

    return fn


def unpaired(plain, fast, draw, times):
    found = [cost(plain, draw(len(plain))) / cost(fast, draw(len(fast))) for _ in range(times)]
    return tuple(np.percentile(found, [2.5, 97.5]))


def luck_of_its_own(plain, fast, draw, times):
    drawn = [random.choices(range(len(plain)), k=len(plain)) for _ in range(times)]
    return tuple(np.percentile([cost(plain, d) / cost(fast, d) for d in drawn], [2.5, 97.5]))


def by_rank(plain, fast, draw, times):
    drawn = [draw(len(plain)) for _ in range(times)]
    ordered = sorted(cost(plain, d) / cost(fast, d) for d in drawn)
    return [ordered[int(0.025 * times)], ordered[int(0.975 * times) - 1]]


def spread(width):
    def fn(plain, fast, draw, times):
        drawn = [draw(len(plain)) for _ in range(times)]
        found = [cost(plain, d) / cost(fast, d) for d in drawn]
        mean, sd = statistics.mean(found), statistics.pstdev(found)
        return mean - width * sd, mean + width * sd

    return fn


def everyone(which):
    return range(len(which))


RIGHT_INTERVAL = [checks.speedup_interval_answer, interval(), by_rank]
WRONG_INTERVAL = {
    "unpaired": (unpaired, "twice as fast.*800 times for 400.*one draw serves both"),
    "only plain is drawn": (interval(lambda p, f, d: cost(p, d) / cost(f, everyone(f))), "one draw serves both"),
    "only speculative is drawn": (interval(lambda p, f, d: cost(p, everyone(p)) / cost(f, d)), "one draw serves both"),
    "not drawn": (lambda p, f, draw, times: (cost(p, everyone(p)) / cost(f, everyone(f)),) * 2, "never called"),
    "drawn and not used": (interval(lambda p, f, d: cost(p, everyone(p)) / cost(f, everyone(f))), "twice: use what"),
    "mean of ratios": (
        interval(lambda p, f, d: statistics.mean(cost(p, [i]) / cost(f, [i]) for i in d)),
        "long answers.*mean of ratios",
    ),
    "median of ratios": (interval(lambda p, f, d: statistics.median(cost(p, [i]) / cost(f, [i]) for i in d)), "long"),
    "the other way round": (interval(lambda p, f, d: cost(f, d) / cost(p, d)), "plain ÷ speculative"),
    "seconds of unequal answers": (
        interval(lambda p, f, d: sum(p[i][0] for i in d) / sum(f[i][0] for i in d)),
        "seconds per token",
    ),
    "upper end first": (interval(ends=(97.5, 2.5)), "lower end comes first"),
    "90 %": (interval(ends=(5, 95)), "not 5 %"),
    "quartiles": (interval(ends=(25, 75)), "middle half"),
    "all": (interval(ends=(0, 100)), "at each end"),
    "one standard deviation": (spread(1), "one standard deviation"),
    "as if normal": (spread(1.96), "nothing has to be normal"),
    "once": (lambda p, f, draw, times: checks.speedup_interval_answer(p, f, draw, 1), "was called 1 times"),
    "a fixed number": (lambda p, f, draw, times: checks.speedup_interval_answer(p, f, draw, 1000), "1000 times; 400"),
    "too few prompts": (lambda p, f, draw, times: draw(len(p) - 1), "as many as there are"),
    "luck of its own": (luck_of_its_own, "never called"),
    "one number": (lambda p, f, draw, times: cost(p, draw(len(p))), "two numbers"),
    "no return": (lambda p, f, draw, times: None, "return"),
    "a crash": (lambda p, f, draw, times: p[99], "raised IndexError"),
}

EXERCISES = {
    "ttft": (checks.ttft, RIGHT_TTFT, WRONG_TTFT),
    "tpot": (checks.tpot, RIGHT_TPOT, WRONG_TPOT),
    "speedup_interval": (checks.speedup_interval, RIGHT_INTERVAL, WRONG_INTERVAL),
}


(
    test_right_answers_pass,
    test_a_wrong_answer_is_rejected_with_a_sentence,
    test_an_exercise_that_is_not_done_is_handed_over,
) = held_to(EXERCISES)


@pytest.mark.parametrize("name", checks.RACES)
def test_the_answer_and_the_librarys_own_agree(name):
    plain, fast = checks.RACES[name]
    rng = random.Random(1)
    by_hand = checks.speedup_interval_answer(plain, fast, lambda n: rng.choices(range(n), k=n), 4000)
    assert by_hand == pytest.approx(bench_speedup.speedup_interval(plain, fast), rel=0.03)
