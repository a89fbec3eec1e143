"""The live round stepper: prompt, K, Play, steps and switches around `stepper.stepper_html`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import ipywidgets as widgets

from speclib.figures import style
from speclib.figures.page import PageBoard, moves
from speclib.figures.stepper import TokenText, stepper_html, steps
from speclib.watch import Trace

_LABEL = {"description_width": "60px"}


class Stepper(PageBoard):
    """Walk through a generation step by step; every other control generates anew.

    run: from (prompt, K, and one bool per switch, by its name) to a trace. token_text: from id to text. k, most_k:
    where K begins and ends. switches: name of the argument → label; on: those that begin switched on. step: the first
    that is shown.
    Each combination is generated once; the slider then moves within what was recorded.
    """

    height = 372

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
        walk = moves(self.step, self.guard)
        above = widgets.HBox([self.k, *self.switches.values()], layout={"align_items": "center"})
        super().__init__([self.prompt, above, walk])
        self._generate()
        self.step.value = step
        self._draw()
        self.follow(self._again, self.prompt, self.k, *self.switches.values())
        self.follow(self._draw, self.step)

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
