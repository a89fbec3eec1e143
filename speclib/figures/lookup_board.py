"""F7 with its controls: any prompt, the n-gram, K, which match counts, and the steps of the generation."""

from __future__ import annotations

import functools
from collections.abc import Callable

import ipywidgets as widgets

from speclib.drafters import lookup_draft
from speclib.figures import style
from speclib.figures.lookup_rounds import Looked, LookupDraft, leftmost_draft, rounds_of
from speclib.figures.lookup_step import PHASES, lookup_step, steps
from speclib.figures.page import PageBoard, moves

RECENT, LEFTMOST = "most recent", "leftmost"
_LABEL = {"description_width": "60px"}


class LookupBoard(PageBoard):
    """Step through a generation by lookup; the other controls show other rounds for the same text.

    write: from a prompt to its ids and those of the target's greedy answer, which every setting shares: it runs once
    for each prompt. token_text: from id to text. draft: what proposes, `lookup_draft` or a function like it; where the
    leftmost match is to count, `leftmost_draft` stands in for it.
    When a setting changes, the figure stays at the same place of the text.
    """

    height = 540
    text = "Figure: a text with its end and the place where that stood before, and what lookup proposed from there."

    def __init__(
        self,
        write: Callable[[str], tuple[list[int], list[int]]],
        token_text: Callable[[int], str],
        prompt: str,
        *,
        draft: LookupDraft = lookup_draft,
        k: int = 6,
        max_ngram: int = 3,
        step: int = 0,
    ):
        self.write, self.token_text, self.lookup = write, functools.cache(token_text), draft
        self._texts: dict[str, tuple[list[int], list[int]]] = {}
        self._rounds: dict[tuple[str, int, int, bool], list[Looked]] = {}
        self.prompt = widgets.Textarea(
            prompt,
            description="prompt",
            continuous_update=False,
            placeholder="a text with something to copy from; click elsewhere when you are done",
            style=_LABEL,
            rows=3,
            layout={"width": f"{style.WIDTH - 4}px"},
        )
        self.n = _slider("n-gram", max_ngram, 1, 5, "the longest end of the text that is looked for")
        self.k = _slider("K", k, 1, 9, "most tokens that are proposed in a round")
        self.match = widgets.ToggleButtons(
            options=[RECENT, LEFTMOST],
            tooltips=["the last place where the end stood before", "the first place, for comparison"],
            style={"button_width": "106px"},
        )
        self.step = widgets.IntSlider(0, description="step", style=_LABEL, layout={"width": "470px"})
        self.step.tooltip = "two steps for each round: look up, check"
        walk = moves(self.step, self.guard)
        which = widgets.Label("match", layout={"width": "46px", "margin": "2px 0 2px 12px"})
        settings = widgets.HBox([self.n, self.k, which, self.match], layout={"align_items": "center"})
        super().__init__([self.prompt, settings, walk])
        self._look()
        self.step.value = step
        self._draw()
        self.follow(self._again, self.prompt, self.n, self.k, self.match)
        self.follow(self._draw, self.step)

    def _draw(self) -> None:
        text = [*self._texts[self._shown][0], *self._texts[self._shown][1]]
        self.page.value = lookup_step(text, self.rounds, self.step.value, self.token_text, self.n.value)

    def _again(self) -> None:
        self._look()
        self._draw()

    def _look(self) -> None:
        """Find the rounds for the controls as they stand, and the step that shows the same place of the text."""
        prompt = self.prompt.value
        if not prompt.strip():
            raise ValueError("the prompt is empty: type at least one word")
        same = prompt in self._texts and prompt == self._shown
        if prompt not in self._texts:
            ids, new = self.write(prompt)
            if not new:
                raise ValueError("the target wrote nothing: ask for at least one token")
            self._texts[prompt] = (ids, new)
        leftmost = self.match.value == LEFTMOST
        key = (prompt, self.k.value, self.n.value, leftmost)
        if key not in self._rounds:
            draft = leftmost_draft if leftmost else self.lookup
            self._rounds[key] = rounds_of(*self._texts[prompt], self.k.value, self.n.value, draft)
        number, phase = divmod(self.step.value, len(PHASES))
        place = self.rounds[number].start if same else 0
        self._shown, self.rounds = prompt, self._rounds[key]
        now = max((i for i, r in enumerate(self.rounds) if r.start <= place), default=0)
        last = steps(self.rounds) - 1
        # The larger bound first, so that no value is cut on the way.
        self.step.max = max(last, self.step.max)
        self.step.value = len(PHASES) * now + (phase if same else 0)
        self.step.max = last

    _shown = ""


def _slider(name: str, value: int, low: int, high: int, tooltip: str) -> widgets.IntSlider:
    slider = widgets.IntSlider(value, min=low, max=high, description=name, style=_LABEL, layout={"width": "228px"})
    slider.tooltip = tooltip
    return slider
