"""F6 with its controls: α, c, what a wider pass costs, how many K; and the reader's own points, once there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from speclib import speedup as formulas
from speclib.figures.calculator import MOST_C, MOST_K, Formula, Point, calculator_html
from speclib.figures.page import PageBoard

_STYLE = {"description_width": "110px"}
_HALF = {"width": "375px"}


class Calculator(PageBoard):
    """F6: sliders for α, c, the price of a wider pass and the largest K, and the reader's own points on the curve.

    formula: whose speedup the curve shows, called with α, K, c and v(K). alpha, c: where the sliders stand at first; a
    c beyond the slider's end is drawn at its end. points: measured. v: v[K] for K = 0 …, as measured, if it was.
    Taught in notebook 05_sweep, section 'Drag it: the calculator'.
    """

    height = 396
    text = "Figure: speedup against K with the best K marked, and beside it the best K for every α and c."

    def __init__(
        self,
        formula: Formula = formulas.speedup,
        alpha: float = 0.7,
        c: float = 0.1,
        points: Sequence[Point] = (),
        v: Sequence[float] | None = None,
    ):
        self.formula, self.points, self._v = formula, tuple(points), list(v or [])
        self.alpha = _slider("α", alpha, 1.0, 0.01, "how likely one draft is kept")
        self.c = _slider(
            "c", min(c, MOST_C), MOST_C, 0.005, "seconds of one draft step ÷ seconds of one plain step", ".3f"
        )
        self.slope = _slider("v per draft", 0.0, 0.3, 0.01, "what each draft adds to the target's pass; 0: flat")
        self.most = widgets.IntSlider(
            16,
            min=2,
            max=MOST_K,
            description="K up to",
            tooltip="the largest K that is looked at",
            style=_STYLE,
            layout=_HALF,
        )
        self.measured = widgets.Checkbox(
            v is not None,
            description="v as measured (none is, yet)" if v is None else f"v as measured, up to K = {len(v) - 1}",
            tooltip="the curve v(K) of your sweep instead of a straight line",
            indent=False,
            disabled=v is None,
            layout={"width": "300px", "margin": "2px 0 0 12px"},
        )
        self._wanted = self.most.value
        # As measured, v has no slope, and ends where the sweep did: what then moves nothing is locked.
        self.measured.observe(lambda _: self._lock(), "value")
        self._lock()
        super().__init__([widgets.HBox([self.alpha, self.c]), widgets.HBox([self.slope, self.most]), self.measured])
        self.follow(self._draw, self.alpha, self.c, self.slope, self.most, self.measured)
        self._draw()

    @property
    def v(self) -> list[float]:
        """v[K] for K = 0 … the largest that is drawn, as the controls say."""
        if self.measured.value:
            return self._v[: self.most.value + 1]
        return [1 + self.slope.value * k for k in range(self.most.value + 1)]

    def _lock(self) -> None:
        measured = self.slope.disabled = self.measured.value
        if measured:
            self._wanted = self.most.value
            self.most.max = max(self.most.min, len(self._v) - 1)
        else:
            cut = self.most.value == self.most.max
            self.most.max = MOST_K
            self.most.value = self._wanted if cut else self.most.value

    def _draw(self) -> None:
        points = [p for p in self.points if len(self.v) > p.K]
        self.page.value = calculator_html(self.alpha.value, self.c.value, self.v, points, self.formula)


def _slider(
    name: str, value: float, most: float, step: float, tooltip: str, digits: str = ".2f"
) -> widgets.FloatSlider:
    look: dict[str, Any] = {"style": _STYLE, "layout": _HALF, "readout_format": digits}
    return widgets.FloatSlider(value, min=0, max=most, step=step, description=name, tooltip=tooltip, **look)
