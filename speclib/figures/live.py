"""Figures that are dragged: one widget drawn anew in place, its controls, a picture for the web."""

from __future__ import annotations

import base64
import functools
import html
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import plotly.graph_objects as go
import traitlets
from IPython.display import DisplayHandle, display
from plotly.offline import get_plotlyjs
from torch import Tensor

from speclib.distributions import Rng, warp
from speclib.figures import style
from speclib.figures.distribution import distribution_bars, slice_of, unit_interval
from speclib.figures.style import Figure

_CONFIG = {"displayModeBar": False, "responsive": False}
PICTURES = "SPECLIB_PICTURES"  # set while outputs for git are made: each figure then carries a PNG


def picture(fig: Figure) -> bytes:
    """A PNG of a figure, made by a headless browser, for readers who see the notebook without a kernel."""
    return go.Figure(fig).to_image(format="png")


def show(fig: Figure, text: str) -> None:
    """Display a figure without controls. text: what stands for it where there are only words."""
    display({"application/vnd.plotly.v1+json": {**fig, "config": _CONFIG}, **_still(fig, text)}, raw=True)


class Sent(widgets.Widget):
    """A value in the page, without a view of its own."""

    value = traitlets.Any().tag(sync=True)


@functools.cache
def _plotly() -> Sent:
    return Sent(value=get_plotlyjs())


class Plot(anywidget.AnyWidget):
    """One figure in the page, drawn anew in place whenever `figure.value` is set; live.js is its other half.

    plotly's own FigureWidget sends and starts all of plotly.js for each figure, and checks and reports each value. A
    page that needs more than two seconds for that is deaf to the figure: anywidget passes no message to a widget that
    was late. So the 5 MB are sent once, and what changes is in a widget of another kind.
    """

    _esm = Path(__file__).with_suffix(".js")
    config = traitlets.Dict(_CONFIG).tag(sync=True)
    figure = anywidget.WidgetTrait().tag(sync=True)
    plotly = anywidget.WidgetTrait().tag(sync=True)

    def __init__(self, figure: Figure):
        super().__init__(figure=Sent(value=figure), plotly=_plotly())


class Board(widgets.VBox):
    """Controls, one live figure and a line for errors, displayed with a picture and a fixed text.

    draw: from nothing to the figure, read from the controls' values. controls: widgets whose `value` moves
    the figure. An exception inside a callback is shown on the board, since a notebook hides it otherwise, and
    raised again.
    """

    def __init__(self, controls: list[widgets.Widget], draw: Callable[[], Figure], text: str, rows: list[Any]):
        self.draw, self.text = draw, text
        self.error = widgets.HTML()
        self.plot = Plot(draw())
        for control in controls:
            control.observe(self.guard(lambda change: self.redraw()), names="value")
        css = widgets.HTML(style.INK_CSS, layout={"display": "none"})
        super().__init__([*rows, self.error, self.plot, css], layout={"width": f"{style.WIDTH + 10}px"})

    def redraw(self) -> None:
        """Build the figure anew from the controls and show it."""
        self.plot.figure.value = self.draw()

    @property
    def shown(self) -> Figure:
        """The figure as the page has it."""
        return self.plot.figure.value

    def guard(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """The callback, with what it raises shown in red above the figure until the next one that works."""

        def guarded(event: Any) -> None:
            try:
                callback(event)
            except Exception as error:
                sentence = html.escape(f"{type(error).__name__}: {error}")
                trace = html.escape("".join(traceback.format_exception(error)))
                self.error.value = (
                    f'<div role="alert" style="color:{style.RED}">⚠ {sentence}'
                    f"<details><summary>where</summary><pre>{trace}</pre></details></div>"
                )
                raise
            self.error.value = ""

        return guarded

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, **_still(self.shown, self.text)}, metadata


def settle(handle: DisplayHandle | None, board: Board) -> None:
    """Show a board that followed a measurement anew, where it stands, as what a page without a kernel gets to see."""
    if handle:
        handle.update(board)


def next_token(
    logits_after: Callable[[str], Tensor],
    token_text: Callable[[int], str],
    prompt: str,
    *,
    bars: int = 10,
    rng: Rng | None = None,
) -> Board:
    """F1 over F2: what comes after a prompt that the reader types, reshaped by sliders, and drawn from.

    logits_after: from a text to logits [vocab]. token_text: from id to text. rng: where the drawn numbers
    come from; None = the operating system. The number drawn stays while sliders move, so one sees it change
    slices.
    """
    rng = rng or Rng()
    text = widgets.Text(
        prompt,
        description="prompt",
        continuous_update=False,
        placeholder="type a text, then press Enter",
        style=_LABEL,
        layout={"width": "622px"},
    )
    temperature = _slider("temperature", 1.0, 0.0, 2.0, 0.05, "divides the logits; 0 is greedy")
    sizes = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000]
    top_k = widgets.SelectionSlider(
        options=[*((str(k), k) for k in sizes), ("off", 0)],
        value=0,
        description="top-k",
        tooltip="keep the k most likely tokens",
        style=_LABEL,
        layout=_HALF,
    )
    # The one control that lacks this class, and with it the margins of all others.
    top_k.add_class("jupyter-widgets")
    top_p = _slider("top-p", 1.0, 0.05, 1.0, 0.01, "keep the smallest set of tokens with this mass; 1 is off")
    min_p = _slider("min-p", 0.0, 0.0, 0.5, 0.01, "keep what has this share of the top probability; 0 is off")
    button = widgets.Button(
        description="Draw",
        icon="random",
        tooltip="draw a token: a random number picks a slice",
        layout={"width": "118px"},
    )
    state: dict[str, Any] = {"u": None}

    def read_prompt() -> None:
        if not text.value:
            raise ValueError("the prompt is empty: type at least one letter, then press Enter")
        logits = logits_after(text.value).float().cpu()
        state.update(logits=logits, order=logits.topk(min(bars, len(logits))).indices)

    def draw() -> Figure:
        logits, order, u = state["logits"], state["order"], state["u"]
        before = warp(logits, temperature.value)
        p = warp(logits, temperature.value, top_k.value or None, top_p.value, min_p.value)
        drawn = None if u is None else slice_of(p, u)[0]
        upper = distribution_bars(before, p, order, token_text, drawn)
        return style.below(upper, unit_interval(p, order, token_text, u))

    read_prompt()
    controls = [temperature, top_k, top_p, min_p]
    caption = f"Figure: the {bars} most likely next tokens as bars, and as slices of the unit interval."
    board = Board(
        controls,
        draw,
        caption,
        [widgets.HBox([text, button]), widgets.HBox([temperature, top_k]), widgets.HBox([top_p, min_p])],
    )

    def typed(change: Any) -> None:
        read_prompt()
        board.redraw()

    def pressed(_: Any) -> None:
        state["u"] = float(rng.uniform(1))
        board.redraw()

    text.observe(board.guard(typed), names="value")
    button.on_click(board.guard(pressed))
    return board


_LABEL = {"description_width": "92px"}
_HALF = {"width": "370px"}


def _slider(name: str, value: float, low: float, high: float, step: float, tooltip: str) -> widgets.FloatSlider:
    return widgets.FloatSlider(
        value,
        min=low,
        max=high,
        step=step,
        description=name,
        tooltip=tooltip,
        style=_LABEL,
        layout=_HALF,
        readout_format=".2f",
    )


def _still(fig: Figure, text: str) -> dict[str, Any]:
    bundle: dict[str, Any] = {"text/plain": text}
    if os.environ.get(PICTURES):
        bundle["image/png"] = base64.b64encode(picture(fig)).decode()
    return bundle
