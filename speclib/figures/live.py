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

from speclib.figures import style
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


def _still(fig: Figure, text: str) -> dict[str, Any]:
    bundle: dict[str, Any] = {"text/plain": text}
    if os.environ.get(PICTURES):
        bundle["image/png"] = base64.b64encode(picture(fig)).decode()
    return bundle
