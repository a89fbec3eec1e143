"""F8 while a server is measured: curves that grow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from IPython.display import display

from speclib.figures.live import Board, settle
from speclib.figures.serving import by_concurrency

EVERY = 0.5  # seconds between two drawings: each takes time from a server on the same machine


class Measured(Protocol):
    """A `bench.Run`: what was measured so far."""

    def summaries(self) -> Mapping[str, Mapping[int, Any]]: ...


def live_load(
    measure: Callable[[Callable[[Measured], None]], Measured], labels: Sequence[str], levels: Sequence[int]
) -> Measured:
    """Display latency and throughput by concurrency while `measure(on_request)` runs; returns what it returns.

    measure: such as `lambda on_request: bench.run(server, rows, prompts, load, on_request=on_request)`. labels: of its
    rows; levels: its concurrencies. Interrupting the kernel ends it early and keeps what is done.
    Taught in notebook 07_serve_and_bench, section 'Measure'.
    """
    state: dict[str, Any] = {"found": {label: {} for label in labels}, "drawn": -math.inf}
    text = "Figure: TTFT and TPOT, and below tokens/s of all users, against the users at once."
    board = Board([], lambda: by_concurrency(state["found"], levels), text, [])
    handle = display(board, display_id=True)

    def seen(run: Measured) -> None:
        if time.monotonic() - state["drawn"] >= EVERY:
            state.update(found=run.summaries(), drawn=time.monotonic())
            board.redraw()

    run = measure(seen)
    state["found"] = run.summaries()
    board.redraw()
    settle(handle, board)
    return run
