"""F8 with its widgets: curves that grow while a server is measured, and a batch whose users are dragged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ipywidgets as widgets
from IPython.display import display

from speclib.cost import Machine
from speclib.figures.live import Board, settle
from speclib.figures.serving import USERS, batching, by_concurrency
from speclib.figures.style import Figure

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


def batching_board(
    shapes: Mapping[str, Mapping[str, tuple[float, float, float]]],
    machines: Sequence[Machine],
    alpha: float = 0.7,
    bits: float = 16,
) -> Board:
    """The speedup in a batch to drag: users, α, K and c, for pairs of models and machines.

    shapes: by the name of a pair its "target" and, if any, "draft", each with the number of weights that a step reads,
    bytes of one text's KV cache and FLOPs per token, as in `figures.cost.roofline_figure`. c starts at the first pair's
    own, from bytes. bits: per weight.
    Taught in notebook 07_serve_and_bench, section 'Why it fades with many users'.
    """
    first = next(iter(shapes.values()))
    c_bytes = first["draft"][0] / first["target"][0] if "draft" in first else 0.0
    pair = widgets.Dropdown(options=list(shapes), description="models", style=_LABEL, layout=_HALF)
    machine = widgets.Dropdown(options=[m.name for m in machines], description="machine", style=_LABEL, layout=_HALF)
    users = widgets.SelectionSlider(
        options=USERS, value=1, description="users", tooltip="texts that share a pass", style=_LABEL, layout=_HALF
    )
    # The one control that lacks this class, and with it the margins of all others.
    users.add_class("jupyter-widgets")
    k = widgets.IntSlider(
        4, min=1, max=8, description="K", tooltip="drafts per round, for the dashed line", style=_LABEL, layout=_HALF
    )
    a = _share("α", alpha, 0.0, 1.0, "probability that a draft is kept")
    c = _share("c", round(c_bytes, 2), 0.0, 0.5, "a draft step in target steps; 0 is lookup")

    def draw() -> Figure:
        weights, cache, flops = shapes[pair.value]["target"]
        on = next(m for m in machines if m.name == machine.value)
        size = weights * bits / 8
        return batching(users.value, a.value, k.value, c.value, size, cache, flops, on.bandwidth, on.peak)

    return Board(
        [pair, machine, users, k, a, c],
        draw,
        "Figure: speedup against the users that share a batch, and the best K at each.",
        [widgets.HBox(row) for row in ((pair, machine), (users, k), (a, c))],
    )


_LABEL = {"description_width": "92px"}
_HALF = {"width": "370px"}


def _share(name: str, value: float, low: float, high: float, tooltip: str) -> widgets.FloatSlider:
    return widgets.FloatSlider(
        value, min=low, max=high, step=0.01, description=name, tooltip=tooltip, style=_LABEL, layout=_HALF,
        readout_format=".2f",
    )  # fmt: skip
