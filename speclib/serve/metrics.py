"""What the server counted, as Prometheus reads it: vLLM's names and meanings, with the prefix `speclib:`.

The prefix is our own because a dashboard must not take one server for the other. One meaning is narrower here: drafts
behind the end of a text do not count. A chunk of the stream is a round, so there is no time between tokens to report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from speclib.decode import Round
    from speclib.serve.engine import Job

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


class Metrics:
    """The counters of one server; several servers in a process do not share them."""

    def __init__(self, model: str):
        self.registry = CollectorRegistry()

        def make(kind: type, name: str, says: str, labels: tuple[str, ...] = (), **more: object):
            metric = kind(f"speclib:{name}", says, ("model_name", *labels), registry=self.registry, **more)
            return metric if labels else metric.labels(model)

        self._model = model
        self._running = make(Gauge, "num_requests_running", "Requests that are being generated: 0 or 1.")
        self._waiting = make(Gauge, "num_requests_waiting", "Requests that wait for the model.")
        self._prompt = make(Counter, "prompt_tokens", "Tokens of prompts.")
        self._generated = make(Counter, "generation_tokens", "Tokens committed.")
        self._finished = make(Counter, "request_success", "Requests by how they ended.", ("finished_reason",))
        self._drafts = make(Counter, "spec_decode_num_drafts", "Rounds that drafted.")
        self._drafted = make(Counter, "spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = make(Counter, "spec_decode_num_accepted_tokens", "Drafts kept.")
        self._checked = make(Counter, "spec_decode_num_checked_tokens", "Drafts judged (vLLM has no such).")
        self._at = make(Counter, "spec_decode_num_accepted_tokens_per_pos", "Drafts kept at a position.", ("position",))
        self._queue = make(Histogram, "request_queue_time_seconds", "Time in the queue.", buckets=SECONDS)
        self._first = make(Histogram, "time_to_first_token_seconds", "Arrival to first round.", buckets=SECONDS)
        self._whole = make(Histogram, "e2e_request_latency_seconds", "Arrival to last round.", buckets=SECONDS)
        self._job: Job | None = None

    def watch(self, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        """Where the two gauges read from."""
        self._waiting.set_function(waiting)
        self._running.set_function(running)

    def started(self, job: Job) -> None:
        """The worker takes a job."""
        self._job = job
        self._queue.observe(time.monotonic() - job.asked)
        self._prompt.inc(sum(len(p) for p in job.work.prompts))

    def round(self, job: Job, r: Round) -> None:
        """A round is over."""
        if self._job is job:
            self._first.observe(time.monotonic() - job.asked)
            self._job = None
        self._generated.inc(len(r.tokens))
        if r.drafted:
            self._drafts.inc()
            self._drafted.inc(r.drafted)
            self._accepted.inc(r.accepted)
            self._checked.inc(r.checked)
        for position in range(r.accepted):
            self._at.labels(self._model, str(position)).inc()
        if r.finish_reason:
            self.finished("length" if r.finish_reason == "length" else "stop")

    def finished(self, reason: str) -> None:
        """A text ended (stop, length), or a request did before its texts (abort, error)."""
        self._finished.labels(self._model, reason).inc()

    def ended(self, job: Job) -> None:
        """All texts of a job are written."""
        self._whole.observe(time.monotonic() - job.asked)

    def text(self) -> bytes:
        """The answer of /metrics."""
        return generate_latest(self.registry)
