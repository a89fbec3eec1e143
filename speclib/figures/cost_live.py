"""F3 with its widgets: a curve that grows while it is measured, and a roofline that is dragged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from speclib.cost import SIZES, Machine, Model, Timer, Timing, verify_times
from speclib.figures.cost import roofline_figure, verify_figure
from speclib.figures.live import Board, settle
from speclib.figures.style import Figure


def live_curve(
    models: Mapping[str, Model],
    prompt_ids: list[int],
    *,
    roofs: Mapping[str, Sequence[float]] | None = None,
    sizes: Sequence[int] = SIZES,
    trials: int = 5,
    timer: Timer | None = None,
    least: int = 3,
) -> dict[str, dict[int, Timing]]:
    """Display the figure of a verify curve, then measure, and let each point appear as its median becomes known.

    models: contexts or models for series of `figures.cost.LOOK`; others as `cost.verify_times` and `verify_figure`.
    least: passes before a point is drawn; hollow until all `trials` are there. Interrupting the kernel ends it
    early: with at least one pass of every kind what was measured is kept, and otherwise the interruption goes on.
    Returns the Timings by series and number of tokens.
    Taught in notebook 02_verify_cost, section 'Measure'.
    """
    found: dict[str, dict[int, Timing]] = {name: {} for name in models}
    least = min(least, trials)

    def draw() -> Figure:
        ready = {name: {n: t for n, t in of.items() if len(t.seconds) >= least} for name, of in found.items()}
        return verify_figure(ready, roofs or {}, trials, sizes)

    board = Board([], draw, "Figure: milliseconds of a pass against its number of tokens, as measured.", [])
    handle = display(board, display_id=True)
    try:
        for (name, n), timing in verify_times(models, prompt_ids, sizes, trials, timer):
            found[name][n] = timing
            if len(timing.seconds) >= least:
                board.redraw()
    except KeyboardInterrupt:
        if any(len(of) < len(sizes) for of in found.values()):
            raise
        least = 1
        board.redraw()
        print("Interrupted: the figure shows the passes that were made. Run the cell again to start over.")
    settle(handle, board)
    return found


def roofline_board(
    shapes: Mapping[str, Mapping[str, tuple[float, float, float]]],
    machines: Sequence[Machine],
    measured: Mapping[str, Mapping[str, Mapping[int, float]]],
    measured_bits: int = 16,
) -> Board:
    """F3 to drag: the roofline of a pair of models on a machine, by bandwidth, peak, bits per weight and sequences.

    shapes: by the name of a pair its "target" and, if any, "draft", as `roofline_figure` takes them; the first is
    shown at first. machines: presets, which set bandwidth, peak and bits; the last is this machine. measured: for some
    pairs the measured seconds by tokens, drawn for this machine, one sequence and weights of measured_bits.
    Taught in notebook 02_verify_cost, section 'Drag it: the roofline'.
    """

    def bits_of(machine: Machine) -> int:
        return measured_bits if machine is machines[-1] else 16

    pair = _choice("models", list(shapes))
    preset = _choice("machine", [m.name for m in machines])
    speeds, peaks = [m.bandwidth / 1e9 for m in machines], [m.peak / 1e12 for m in machines]
    bandwidth = _slider("GB/s", _scale(2, 10_000, speeds), speeds[0], "bandwidth: what the memory delivers")
    peak = _slider("TFLOP/s", _scale(0.01, 3000, peaks), peaks[0], "peak: what the multipliers can do")
    widths = [("fp32", 32), ("bf16", 16), ("8 bit", 8), ("4 bit", 4)]
    bits = _slider("weights", widths, bits_of(machines[0]), "bits per weight: fewer bytes to read, the same arithmetic")
    users = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    batch = _slider("sequences", users, 1, "batch: sequences that share one reading of the weights")

    def draw() -> Figure:
        as_measured = preset.value == machines[-1].name and bits.value == measured_bits and batch.value == 1
        points = measured.get(pair.value) if as_measured else None
        return roofline_figure(
            shapes[pair.value], bandwidth.value * 1e9, peak.value * 1e12, bits.value, batch.value, points
        )

    board = Board(
        [pair, preset, bandwidth, peak, bits, batch],
        draw,
        "Figure: the roofline, milliseconds of a pass against its number of tokens, with the ridge.",
        [widgets.HBox(row) for row in ((pair, preset), (bandwidth, peak), (bits, batch))],
    )

    def chosen(_: Any) -> None:
        machine = next(m for m in machines if m.name == preset.value)
        bandwidth.value, peak.value = machine.bandwidth / 1e9, machine.peak / 1e12
        bits.value = bits_of(machine)

    preset.observe(board.guard(chosen), names="value")
    return board


_LABEL = {"description_width": "92px"}
_HALF = {"width": "370px"}


def _choice(name: str, options: list[str]) -> widgets.Dropdown:
    return widgets.Dropdown(options=options, description=name, style=_LABEL, layout=_HALF)


def _scale(low: float, high: float, exact: Sequence[float]) -> list[tuple[str, float]]:
    """Options of a slider, equally spaced on a logarithmic scale, with the presets' own values among them."""
    steps = round(24 * math.log10(high / low))
    values = {float(f"{low * (high / low) ** (i / steps):.2g}") for i in range(steps + 1)}
    return [(f"{x:,.3g}" if x < 1000 else f"{x:,.0f}", x) for x in sorted(values | set(exact))]


def _slider(name: str, options: list[Any], value: Any, tooltip: str) -> widgets.SelectionSlider:
    slider = widgets.SelectionSlider(
        options=options, value=value, description=name, tooltip=tooltip, style=_LABEL, layout=_HALF
    )
    # The one control that lacks this class, and with it the margins of all others.
    slider.add_class("jupyter-widgets")
    return slider
