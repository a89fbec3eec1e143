"""`speclib bench`: a closed loop of streamed requests at each concurrency, told as TTFT, TPOT and tokens per second."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from speclib.bench_background import Background
from speclib.bench_client import Server, ask, closed_loop, told_by_metrics
from speclib.bench_load import PLAIN, Load, Prompt, Row, numbers, read_prompts, rows_of
from speclib.bench_speedup import paired, speedup, speedup_interval
from speclib.bench_trace import Summary, Trace, acceptance, counted, decoding, summary

# What belongs together for the reader, in one place; it is written in several files only to be read in one sitting.
__all__ = ["PLAIN", "Load", "Prompt", "Row", "Run", "Server", "gain", "level", "numbers", "read_prompts"]
__all__ += ["rows_of", "run"]

# Not one of the prompts: what the server keeps of it must not help later.
WARM_UP = "Say hello."


class NoAnswer(ValueError):
    """The server does not answer a first request, refuses it, or ignores a part of it."""


@dataclass
class Run:
    """What was measured so far: traces by row's label and concurrency. complete: to the end; why: if not, and known."""

    rows: list[Row]
    traces: dict[str, dict[int, list[Trace]]]
    counters: dict[int, dict[str, int]] = field(default_factory=dict)
    complete: bool = False
    why: str = ""

    def summaries(self) -> dict[str, dict[int, Summary]]:
        """By row's label and concurrency what `bench_trace.summary` says; levels without a request are left out."""
        return {label: {c: self._summary(c, t) for c, t in of.items() if t} for label, of in self.traces.items()}

    def _summary(self, concurrency: int, traces: list[Trace]) -> Summary:
        found = summary(traces)
        # The server's own counters know nothing of rows, so they are taken only where there is one.
        if found["acceptance"] is None and concurrency in self.counters and len(self.rows) == 1:
            found["acceptance"] = acceptance([self.counters[concurrency]], found["tokens"])
        return found


def level(server: Server, rows: Sequence[Row], prompts: Sequence[Prompt], load: Load, concurrency: int) -> Background:
    """Send load.n requests of every row at one concurrency; yields (row, trace) when one is over.

    The prompts are gone through in their order, kind after kind, and again when they are used up. Before that come
    requests that do not count, as many as there are users. At concurrency 1 the rows take turns, request by request,
    and who goes first alternates, so that whatever else the machine does hits all of them alike; above it they follow
    one after another, since requests under way together would share the server.
    NoAnswer, before anything counts: the server does not answer, refuses, or ignores the speculation asked for.
    Taught in notebook 07_serve_and_bench, section 'Many requests'.
    """
    work = list(itertools.islice(itertools.cycle(_mixed(prompts)), load.n))
    if concurrency == 1:
        blocks = [[(row, p) for i, p in enumerate(work) for row in (rows if i % 2 == 0 else rows[::-1])]]
    else:
        blocks = [[(row, p) for p in work] for row in rows]

    async def measure(hand: Callable[[Any], None]) -> None:
        async with server.client() as client:

            async def send(job: tuple[Row, Prompt]) -> Trace:
                row, prompt = job
                return await ask(client, server, _body(server, load, row, prompt.text), prompt.id, prompt.kind)

            async def warm_up(row: Row) -> Trace:
                short = dataclasses.replace(load, max_tokens=min(8, load.max_tokens))
                return await ask(client, server, _body(server, short, row, WARM_UP), "warm-up", "")

            for row in rows:
                _must_answer(server, row, await warm_up(row))
            await closed_loop(warm_up, [rows[0]] * (concurrency - 1), concurrency, lambda row, trace: None)
            for block in blocks:
                await closed_loop(send, block, concurrency, lambda job, trace: hand((job[0], trace)))

    return Background(measure)


def run(
    server: Server,
    rows: Sequence[Row],
    prompts: Sequence[Prompt],
    load: Load,
    *,
    count: Callable[[str], int] | None = None,
    on_request: Callable[[Run], None] | None = None,
    progress: Any = None,
) -> Run:
    """Measure all rows at each concurrency. An interrupt, or a server that went away, ends it; what is done is kept.

    count: tokens of a text, which makes TPOT exact and stands in where the server does not count. on_request: called
    in this thread after every request with the run so far. progress: wraps an iterator, as tqdm does (iterable, total,
    desc). ValueError: bad input; a server that does not answer.
    Taught in notebook 07_serve_and_bench, section 'Measure'.
    """
    if len({row.label for row in rows}) < len(rows) or not rows:
        raise ValueError("every row needs a label of its own: choose another --target")
    done = Run(list(rows), {row.label: {c: [] for c in load.concurrency} for row in rows})
    watched, requests = progress or (lambda requests, **_: requests), None
    try:
        for c in load.concurrency:
            before = told_by_metrics(server)
            requests = level(server, rows, prompts, load, c)
            for row, trace in watched(requests, total=load.n * len(rows), desc=f"concurrency {c}"):
                done.traces[row.label][c].append(trace)
                if on_request:
                    on_request(done)
            after = told_by_metrics(server)
            if before and after:
                done.counters[c] = {name: after[name] - before[name] for name in after}
        done.complete = True
    except KeyboardInterrupt:
        done.why = "interrupted"
    except NoAnswer as error:
        if not any(t for of in done.traces.values() for t in of.values()):
            raise
        done.why = str(error)
    finally:
        if requests:
            requests.close()
    if count:
        # Only now: beside a request under way it would take time from a server on this machine.
        for of in done.traces.values():
            of.update({c: [t if t.told else counted(t, count) for t in traces] for c, traces in of.items()})
    return done


def gain(run: Run, plain: str, fast: str, concurrency: int = 1) -> tuple[float, float, float] | None:
    """Speedup of one row over another of the same run, and the ends of its 95 % interval; None without common prompts.

    With a single prompt the interval is the speedup itself and tells nothing.
    Taught in notebook 07_serve_and_bench, section 'The speedup and its interval'.
    """
    costs = paired(*(((t.prompt, *decoding(t)) for t in run.traces[label][concurrency]) for label in (plain, fast)))
    return (speedup(*costs), *speedup_interval(*costs)) if costs[0] else None


def _mixed(prompts: Sequence[Prompt]) -> list[Prompt]:
    """One prompt of each kind in turn, so that the first few requests already stand for all kinds."""
    by_kind: dict[str, list[Prompt]] = {}
    for p in prompts:
        by_kind.setdefault(p.kind, []).append(p)
    return [p for turn in itertools.zip_longest(*by_kind.values()) for p in turn if p]


def _body(server: Server, load: Load, row: Row, text: str) -> dict[str, Any]:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": load.max_tokens,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # Not one of OpenAI's own fields, so it is sent only when it is asked for.
    return body | ({"ignore_eos": True} if load.ignore_eos else {}) | row.extra


def _must_answer(server: Server, row: Row, trace: Trace) -> None:
    if trace.error:
        raise NoAnswer(
            f"{server.base_url} did not answer a first request ({trace.error}: {trace.detail}): check the address, "
            f"the model {server.model!r} and the key, and that the server is running"
        )
    # Most servers ignore a field that they do not know, and the row would claim what never happened.
    if row.extra and trace.speculation is None:
        raise NoAnswer(
            f"{server.base_url} took no notice of the speculation that {row.label} asks for: leave --speculation out, "
            "and say with --served-with how that server runs"
        )


if __name__ == "__main__":
    from speclib.cli import main

    sys.argv.insert(1, "bench")
    main()
