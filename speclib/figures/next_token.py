"""F1 over F2 with their controls: what comes after a prompt, reshaped by sliders, and drawn from."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets
from torch import Tensor

from speclib.distributions import Rng, warp
from speclib.figures.distribution import distribution_html, interval_html, slice_of
from speclib.figures.page import LABEL, PageBoard, selection, slider

_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


class NextToken(PageBoard):
    """F1 over F2: what comes after a prompt that the reader types, reshaped by sliders, and drawn from.

    logits_after: from a text to logits [vocab]. token_text: from id to text. rng: where the drawn numbers come from;
    None = the operating system. The number drawn stays while sliders move, so one sees it change slices.
    Taught in notebook 01_distributions, section 'Drag it: the next token'.
    """

    height = 462
    text = "Figure: the 10 most likely next tokens as bars, and as slices of the unit interval."

    def __init__(
        self,
        logits_after: Callable[[str], Tensor],
        token_text: Callable[[int], str],
        prompt: str,
        *,
        rng: Rng | None = None,
    ):
        self.logits_after, self.token_text, self.rng, self.u = logits_after, token_text, rng or Rng(), None
        self.prompt = widgets.Text(
            prompt,
            description="prompt",
            continuous_update=False,
            placeholder="type a text, then press Enter",
            style=LABEL,
            layout={"width": "622px"},
        )
        self.temperature = slider("temperature", 1.0, 0.0, 2.0, 0.05, "divides the logits; 0 is greedy")
        sizes = [*((str(k), k) for k in _SIZES), ("off", 0)]
        self.top_k = selection("top-k", 0, sizes, "keep the k most likely tokens")
        self.top_p = slider("top-p", 1.0, 0.05, 1.0, 0.01, "keep the smallest set of tokens with this mass; 1 is off")
        self.min_p = slider("min-p", 0.0, 0.0, 0.5, 0.01, "keep what has this share of the top probability; 0 is off")
        button = widgets.Button(
            description="Draw",
            icon="random",
            tooltip="draw a token: a random number picks a slice",
            layout={"width": "118px"},
        )
        sliders = (self.temperature, self.top_k), (self.top_p, self.min_p)
        super().__init__([widgets.HBox([self.prompt, button]), *(widgets.HBox(row) for row in sliders)])
        self._read()
        self.follow(self._draw, *sliders[0], *sliders[1])
        self.follow(self._read, self.prompt)
        button.on_click(self.guard(lambda _: self._throw()))

    def _read(self) -> None:
        if not self.prompt.value:
            raise ValueError("the prompt is empty: type at least one letter, then press Enter")
        self.logits = self.logits_after(self.prompt.value).float().cpu()
        self.order = self.logits.topk(min(10, len(self.logits))).indices
        self._draw()

    def _throw(self) -> None:
        self.u = float(self.rng.uniform(1))
        self._draw()

    def _draw(self) -> None:
        before = warp(self.logits, self.temperature.value)
        cut = self.top_k.value or None, self.top_p.value, self.min_p.value
        p = warp(self.logits, self.temperature.value, *cut)
        drawn = None if self.u is None else slice_of(p, self.u)[0]
        bars = distribution_html(before, p, self.order, self.token_text, drawn)
        self.page.value = bars + interval_html(p, self.order, self.token_text, self.u)
