"""The one thread that generates. Requests wait for it in a bounded queue; each is a loop of its own over one `decode`.

What makes an answer depend on its own request alone: a fresh context, drafter and random generator for every text.
A context that was kept would save the prefill of what two prompts share, but split it otherwise than a lone request
does, and in bf16 that rounds differently.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from speclib import chat
from speclib.context import as_context
from speclib.decode import Round, decode
from speclib.distributions import Rng, Sampling
from speclib.pairs import Pair
from speclib.serve.errors import ApiError
from speclib.serve.metrics import Metrics
from speclib.stopping import Stop

log = logging.getLogger("speclib.serve")


def stopping() -> ApiError:
    """What is said to whoever asks while the server ends. (A new one each time: a raised one keeps its frames.)"""
    return ApiError(503, "the server is being stopped: ask again when it is back", headers={"retry-after": "5"})


class Noting:
    """A language model that notes what its last feed returned, so that logprobs need nothing from the loop.

    They are the target's own, before temperature, cuts and penalties: those that plain decoding would report.
    """

    def __init__(self, model: Any):
        self._model, self.rows = model, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def feed(self, ids: list[int], rows: int | None = None) -> torch.Tensor:
        # A copy: the caller may change its rows in place.
        out = self._model.feed(ids, rows)
        self.rows = out.clone()
        return out


class Chance(NamedTuple):
    """A committed token, its log-probability, and the likeliest tokens with theirs."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Work:
    """What a request asks of the loop.

    prompts: ids, one list a text to write. sampling, stop, drafter, k: as for `decode` and `chat.make_drafter`.
    seed: of the first text; the i-th has seed + i, modulo 2^63. top: alternatives per token, None for no logprobs.
    """

    prompts: list[list[int]]
    sampling: Sampling
    stop: Stop
    drafter: str
    k: int
    seed: int | None = None
    top: int | None = None


class Piece(NamedTuple):
    """One round of the text with that index."""

    index: int
    round: Round
    chances: list[Chance]


@dataclass(eq=False)
class Job:
    """Work under way. put: takes a `Piece` for each round, then None, or the `ApiError` that ended it."""

    work: Work
    put: Callable[[Piece | ApiError | None], None]
    asked: float = field(default_factory=time.monotonic)
    ended: ApiError | None = None  # set from outside: the worker stops at the end of the round

    def end(self, why: ApiError) -> None:
        self.ended = self.ended or why


class Engine:
    """A pair, one worker thread, and the jobs that wait for it, first come, first served.

    pair: its weights are loaded here. limit: how many jobs may wait. metrics: is told what happens.
    """

    def __init__(self, pair: Pair, limit: int, metrics: Metrics):
        self.pair, self.limit, self.metrics = pair, limit, metrics
        context = as_context(pair.target)
        self.max_length, self.vocab_size = context.max_length, context.vocab_size
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._mean_seconds = 1.0
        metrics.watch(lambda: len(self._waiting), lambda: int(self._running is not None))
        self._thread = threading.Thread(target=self._work, name="speclib-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether there is someone to do the work."""
        return self._thread.is_alive() and not self._closed

    def submit(self, job: Job) -> None:
        """Put a job in line. ApiError 429: the line is full; 503: the server is being stopped."""
        with self._changed:
            if self._closed:
                raise stopping()
            # An idle worker takes the first at once: that one does not wait.
            if len(self._waiting) >= self.limit + (self._running is None):
                # The next place is free when the running request ends.
                seconds = min(60, max(1, math.ceil(self._mean_seconds)))
                headers = {"retry-after": str(seconds)}
                word = f"{self.limit} requests are waiting, and no more may: try again in {seconds} s"
                raise ApiError(429, word, code="queue_full", headers=headers)
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job, why: ApiError) -> None:
        """End a job: at once if it waits, else at the end of its round. Nothing happens to one that is over."""
        with self._changed:
            job.end(why)
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics.finished("abort")
                job.put(why)

    def close(self, grace: float = 0.0) -> None:
        """Take no more jobs, send the waiting ones away, and stop the running one after `grace` seconds."""
        with self._changed:
            self._closed = True
            running, waiting = self._running, list(self._waiting)
            self._changed.notify()
        for job in waiting:
            self.cancel(job, stopping())
        if running:
            timer = threading.Timer(grace, running.end, [stopping()])
            timer.daemon = True
            timer.start()

    def join(self) -> None:
        """Wait for the worker's end; call `close` before."""
        self._thread.join()

    def _work(self) -> None:
        _leave_a_core(self.pair.device)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                job = self._running = self._waiting.popleft()
            started = time.monotonic()
            try:
                self._generate(job)
                end: ApiError | None = job.ended
            except Exception:
                log.exception("a request failed")
                end = ApiError(500, "the server failed at this request; its log says why")
            with self._changed:
                self._running = None
            if end:
                self.metrics.finished("abort" if job.ended else "error")
            else:
                self.metrics.ended(job)
                self._mean_seconds += 0.2 * (time.monotonic() - started - self._mean_seconds)
            job.put(end)
            del job  # what it holds is gone before the next one comes

    def _generate(self, job: Job) -> None:
        """Run the loop for each text of a job, and hand on its rounds."""
        work, pair = job.work, self.pair
        self.metrics.started(job)
        for index, prompt in enumerate(work.prompts):
            target = as_context(pair.target)
            if work.top is not None:
                target = Noting(target)
            rng = Rng(None if work.seed is None else (work.seed + index) % 2**63, device=pair.device)
            drafter = chat.make_drafter(work.drafter, pair)
            rounds = decode(target, drafter, prompt, k=work.k, sampling=work.sampling, stop=work.stop, rng=rng)
            while not job.ended and (r := next(rounds, None)):
                self.metrics.round(job, r)
                job.put(Piece(index, r, [] if work.top is None else chances(target.rows, r.tokens, work.top)))


def _leave_a_core(device: torch.device) -> None:
    """On a CPU this thread computes with all cores but one, which is for the connections; `OMP_NUM_THREADS` overrules.

    A pass ends when its slowest thread does: one that shares its core with a client makes all the others wait.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu" and threads > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads - 1)
        # PyTorch takes that for all threads to come, too: a thread of its own puts it back for them.
        back = threading.Thread(target=torch.set_num_threads, args=[threads])
        back.start()
        back.join()


def chances(rows: torch.Tensor, tokens: list[int], top: int) -> list[Chance]:
    """Log-probabilities of a round's tokens. rows: logits [at least len(tokens), vocab], row i before tokens[i]."""
    logprobs = rows[: len(tokens)].log_softmax(-1)
    best = logprobs.topk(min(top, logprobs.shape[-1]))
    out = []
    for i, token in enumerate(tokens):
        likeliest = zip(best.indices[i].tolist(), best.values[i].tolist(), strict=True)
        out.append(Chance(token, float(logprobs[i, token]), list(likeliest)))
    return out
