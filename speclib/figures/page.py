"""What boards share: the buttons that walk along a slider, and a page of HTML with a picture for readers without it."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from speclib.figures import live, style

Guard = Callable[[Callable[[Any], None]], Callable[[Any], None]]

# Of a control that stands beside another.
LABEL, HALF = {"description_width": "92px"}, {"width": "370px"}


class PageBoard(widgets.VBox):
    """Controls, a line for errors, and a page of HTML, drawn anew by setting `page.value`.

    text: what stands where nothing can be drawn. height: of the picture for readers without a kernel, in pixels. What
    extends it sets both, and calls this before it draws.
    """

    text: str
    height: int
    guard = live.Board.guard

    def __init__(self, rows: list[widgets.Widget]):
        self.error, self.page = widgets.HTML(), widgets.HTML()
        super().__init__([*rows, self.error, self.page], layout={"width": f"{style.WIDTH + 10}px"})

    def follow(self, answer: Callable[[], None], *controls: widgets.Widget) -> None:
        """Call this whenever one of these controls moves; what it raises is shown on the board."""
        for control in controls:
            control.observe(self.guard(lambda _: answer()), names="value")

    def still(self) -> str:
        """What the picture shows to those who have no kernel."""
        return self.page.value

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = {**data, "text/plain": self.text}
        if os.environ.get(live.PICTURES):
            data["image/png"] = base64.b64encode(picture(self.still(), style.WIDTH + 10, self.height)).decode()
        return data, metadata


def show(html: str, height: int, text: str) -> None:
    """Display a page without controls. height: of its picture, in pixels. text: what stands for it among words."""
    board = PageBoard([])
    board.height, board.text, board.page.value = height, text, html
    display(board)


def slider(name: str, value: float, low: float, high: float, step: float, tooltip: str) -> widgets.FloatSlider:
    """A slider of half a row."""
    look = {"style": LABEL, "layout": HALF, "readout_format": ".2f"}
    return widgets.FloatSlider(value, min=low, max=high, step=step, description=name, tooltip=tooltip, **look)


def selection(name: str, value: int, options: Sequence[Any], tooltip: str) -> widgets.SelectionSlider:
    """A slider of half a row over given values, each alone or as (label, value)."""
    look = {"style": LABEL, "layout": HALF}
    made = widgets.SelectionSlider(options=options, value=value, description=name, tooltip=tooltip, **look)
    # The one control that lacks this class, and with it the margins of all others.
    made.add_class("jupyter-widgets")
    return made


def moves(step: widgets.IntSlider, guard: Guard) -> widgets.HBox:
    """A slider in a row with what moves it: back, next, and Play, which begins anew at the end.

    guard: wraps a callback, as `live.Board.guard` does. Call it before the slider's range is changed: in the page, what
    the clock has when it is linked is what the slider gets.
    """
    # The clock ticks in the page. Its own buttons have no names, so one that has takes their place.
    clock = widgets.Play(interval=1400, layout={"display": "none"})
    play = widgets.ToggleButton(
        description="Play", icon="play", tooltip="play the steps, one after another", layout={"width": "84px"}
    )
    widgets.jslink((clock, "value"), (step, "value"))
    widgets.jslink((clock, "max"), (step, "max"))
    widgets.jslink((clock, "playing"), (play, "value"))

    def button(name: str, icon: str, move: int) -> widgets.Button:
        made = widgets.Button(description=name, icon=icon, tooltip=f"{name} step", layout={"width": "84px"})

        def pressed(_: Any) -> None:
            step.value = max(0, min(step.value + move, step.max))

        made.on_click(guard(pressed))
        return made

    def playing(change: Any) -> None:
        play.description, play.icon = ("Pause", "pause") if change["new"] else ("Play", "play")
        if change["new"] and step.value == step.max:
            step.value = 0

    play.observe(guard(playing), names="value")
    buttons = [button("back", "step-backward", -1), button("next", "step-forward", +1)]
    return widgets.HBox([step, *buttons, play, clock], layout={"align_items": "center"})


def picture(html: str, width: int, height: int) -> bytes:
    """A PNG of a piece of HTML, taken by the browser that is on this machine. RuntimeError: there is none."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if browser is None:
        raise RuntimeError("no Chromium or Chrome on the PATH to take pictures with: install one")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    flags += ["--default-background-color=00000000", f"--window-size={width},{height}"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page, image = Path(folder) / "page.html", Path(folder) / "page.png"
        page.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin: 4px">{html}', encoding="utf-8")
        command = [browser, *flags, f"--user-data-dir={folder}/profile", f"--screenshot={image}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return image.read_bytes()
