"""The live round stepper: prompt, K, Play, steps and switches around `stepper.stepper_html`."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from speclib.figures import live, style
from speclib.figures.stepper import TokenText, stepper_html, steps
from speclib.watch import Trace

HEIGHT = 372  # of the picture for readers without a kernel
_LABEL = {"description_width": "60px"}


class Stepper(widgets.VBox):
    """Walk through a generation step by step; every other control generates anew.

    run: from (prompt, K, and one bool per switch, by its name) to a trace. token_text: from id to text. k, most_k:
    where K begins and ends. switches: name of the argument → label; on: those that begin switched on. step: the first
    that is shown.
    Each combination is generated once; the slider then moves within what was recorded.
    """

    guard = live.Board.guard

    def __init__(
        self,
        run: Callable[..., Trace],
        token_text: TokenText,
        prompt: str,
        *,
        k: int = 4,
        most_k: int = 8,
        switches: Mapping[str, str] | None = None,
        on: Collection[str] = (),
        step: int = 0,
        text: str = "Figure: one round, with its tokens and both caches.",
    ):
        self.run, self.token_text, self.text = run, token_text, text
        self._seen: dict[tuple[Any, ...], Trace] = {}
        self.prompt = widgets.Text(
            prompt,
            description="prompt",
            continuous_update=False,
            placeholder="ask something, then press Enter",
            style=_LABEL,
            layout={"width": f"{style.WIDTH - 4}px"},
        )
        self.k = widgets.IntSlider(
            k, min=1, max=most_k, description="K", continuous_update=False, style=_LABEL, layout={"width": "300px"}
        )
        self.k.tooltip = "drafts asked for in each round; generates anew"
        self.switches = {
            name: widgets.Checkbox(
                name in on,
                description=label,
                indent=False,
                layout={"width": "auto", "margin": "2px 0 2px 18px"},
                tooltip=label,
            )
            for name, label in (switches or {}).items()
        }
        self.step = widgets.IntSlider(0, description="step", style=_LABEL, layout={"width": "470px"})
        self.step.tooltip = "three steps for each round: draft, verify, cut back"
        # The clock ticks in the page. Its own buttons have no names, so one that has takes their place.
        clock = widgets.Play(interval=1400, layout={"display": "none"})
        self.play = widgets.ToggleButton(
            description="Play", icon="play", tooltip="play the steps, one after another", layout={"width": "84px"}
        )
        widgets.jslink((clock, "value"), (self.step, "value"))
        widgets.jslink((clock, "max"), (self.step, "max"))
        widgets.jslink((clock, "playing"), (self.play, "value"))
        back = self._button("back", "step-backward", -1)
        on = self._button("next", "step-forward", +1)
        self.error, self.page = widgets.HTML(), widgets.HTML()
        self._generate()
        self.step.value = step
        self._draw()
        for control in (self.prompt, self.k, *self.switches.values()):
            control.observe(self.guard(lambda change: self._again()), names="value")
        self.step.observe(self.guard(lambda change: self._draw()), names="value")
        self.play.observe(self.guard(lambda change: self._playing(change["new"])), names="value")
        above = widgets.HBox([self.k, *self.switches.values()], layout={"align_items": "center"})
        moves = widgets.HBox([self.step, back, on, self.play, clock], layout={"align_items": "center"})
        super().__init__([self.prompt, above, moves, self.error, self.page], layout={"width": f"{style.WIDTH + 10}px"})

    def _button(self, name: str, icon: str, move: int) -> widgets.Button:
        button = widgets.Button(description=name, icon=icon, tooltip=f"{name} step", layout={"width": "84px"})

        def pressed(_: Any) -> None:
            self.step.value = max(0, min(self.step.value + move, self.step.max))

        button.on_click(self.guard(pressed))
        return button

    def _playing(self, on: bool) -> None:
        self.play.description, self.play.icon = ("Pause", "pause") if on else ("Play", "play")
        if on and self.step.value == self.step.max:
            self.step.value = 0

    def _generate(self) -> None:
        if not self.prompt.value.strip():
            raise ValueError("the prompt is empty: type at least one word, then press Enter")
        on = {name: box.value for name, box in self.switches.items()}
        key = (self.prompt.value, self.k.value, *on.values())
        if key not in self._seen:
            self._seen[key] = self.run(self.prompt.value, self.k.value, **on)
        self.trace = self._seen[key]
        last = max(0, steps(self.trace) - 1)
        if self.step.value > last:
            self.step.value = last
        self.step.max = last

    def _again(self) -> None:
        shown, self.page.value = self.page.value, '<div class="sl-step" style="min-height: 380px">generating …</div>'
        try:
            self._generate()
        except BaseException:
            self.page.value = shown
            raise
        self._draw()

    def _draw(self) -> None:
        self.page.value = stepper_html(self.trace, self.step.value, self.token_text)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = {**data, "text/plain": self.text}
        if os.environ.get(live.PICTURES):
            data["image/png"] = base64.b64encode(picture(self.page.value, style.WIDTH + 10, HEIGHT)).decode()
        return data, metadata


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
