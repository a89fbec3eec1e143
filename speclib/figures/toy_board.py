"""F5 with its controls, and beside it the proof whose numbers move with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
import torch
from torch import Tensor

from speclib import accept
from speclib.figures import style, toy, toy_draws
from speclib.figures.page import PageBoard
from speclib.figures.proof import proof_html
from speclib.toy import WORDS, P, Q

MANY = 10_000
_DRAFTS = ("model", "one guess", "uniform", "my own")
_INTRO = "Press <b>Sample 1</b> and read what happens to one draft. Then press <b>Sample 10,000</b>."


class ToyBoard(PageBoard):
    """F5: q, p, the residual and the tally; buttons, drafts, the slider toward p, the bug.

    rule: what is run, with `accept_or_fix`'s arguments; the bug switch puts `sample_p_on_reject` in its place.
    The tally begins anew whenever q or the rule changes: what was drawn before says nothing about them.
    """

    height = 526
    text = "Figure: q and p of six words with what they share, the residual, and a tally of 10,000 draws beside p."

    def __init__(
        self,
        rule: toy_draws.Rule,
        residual: Callable[[Tensor, Tensor], Tensor],
        p: Tensor,
        q: Tensor,
        words: Sequence[str],
        rng: toy_draws.Listening,
    ):
        self.rule, self.residual, self.p, self.words, self.rng = rule, residual, p, words, rng
        self.counts, self.last = torch.zeros(2, len(p), dtype=torch.int64), None
        self._model, self._law = q, None
        self.drafts = widgets.ToggleButtons(
            options=_DRAFTS,
            tooltips=["the course's q", "always THE, as lookup would", "each word equally often", "set q yourself"],
            style={"button_width": "92px"},
        )
        self.toward = widgets.FloatSlider(
            0.0,
            min=0,
            max=1,
            step=0.01,
            description="toward p",
            tooltip="q moves in a straight line: 0 is the draft chosen, 1 is p itself",
            readout_format=".2f",
            style={"description_width": "64px"},
            layout={"width": "300px"},
        )
        self.bug = widgets.Checkbox(
            False,
            description="bug: on reject, sample p",
            tooltip="a rejection draws from all of p instead of the residual",
            indent=False,
            layout={"width": "210px", "margin": "6px 0 0 10px"},
        )
        self.own = [_own(word, value) for word, value in zip(words, q.tolist(), strict=True)]
        equalizer = widgets.GridBox(
            [*self.own],
            layout={"grid_template_columns": "repeat(3, 248px)", "display": "none"},
        )
        self.trace = widgets.HTML(_INTRO, layout={"margin": "4px 0 0 12px", "min_height": "28px"})
        self.trace.add_class("speclib-trace")
        buttons = [
            _button("Sample 1", "hand-pointer-o", "one draft: drafted, judged, kept or replaced"),
            _button(f"Sample {MANY:,}", "bar-chart", f"{MANY:,} more drafts, counted"),
            _button("Reset", "refresh", "empty the tally"),
        ]
        rows = [
            widgets.HBox([*buttons, self.bug], layout={"align_items": "center"}),
            widgets.HBox([_name("draft"), self.drafts, self.toward], layout={"align_items": "center"}),
            equalizer,
            self.trace,
        ]
        super().__init__(rows)
        self.follow(self._anew, self.drafts, self.toward, self.bug, *self.own)
        self.drafts.observe(lambda change: _show(equalizer, change["new"] == "my own"), names="value")
        for button, pressed in zip(buttons, (self._one, self._many, self._anew), strict=True):
            button.on_click(self.guard(lambda _, pressed=pressed: pressed()))
        self._draw()

    def still(self) -> str:
        # Without a kernel nobody can press a button: the picture shows what comes of it.
        rng = toy_draws.Listening(7)
        counts = toy_draws.many_draws(self.law, MANY, rng)
        tries = (toy_draws.one_draw(self._rule, self.p, self.q, rng) for _ in range(50))
        rejected = next((draw for draw in tries if not draw.kept), None)
        return self._html(counts, rejected)

    @property
    def q(self) -> Tensor:
        """The draft's distribution as the controls say."""
        q = {"model": self._model, "one guess": torch.zeros_like(self.p), "uniform": torch.ones_like(self.p)}.get(
            self.drafts.value, torch.tensor([s.value for s in self.own], dtype=self.p.dtype)
        )
        if self.drafts.value == "one guess":
            q = q.clone()
            q[0] = 1
        if float(q.sum()) <= 0:
            raise ValueError("your q is 0 everywhere: raise at least one word")
        t = self.toward.value
        return (1 - t) * q / q.sum() + t * self.p

    @property
    def law(self) -> Tensor:
        """What the rule in use does with drafts from q, exactly: see `toy_draws.law`."""
        if self._law is None:
            self._law = toy_draws.law(self._rule, self.p, self.q)
        return self._law

    @property
    def _rule(self) -> toy_draws.Rule:
        return toy_draws.sample_p_on_reject if self.bug.value else self.rule

    def _html(self, counts: Tensor, last: toy_draws.Draw | None) -> str:
        return toy.toy_html(self.words, self.p, self.q, counts, self.bug.value, last, self.residual)

    def _draw(self) -> None:
        self.page.value = self._html(self.counts, self.last)

    def _anew(self) -> None:
        self.counts, self.last, self._law = torch.zeros_like(self.counts), None, None
        self.trace.value = _INTRO
        self._draw()

    def _one(self) -> None:
        self.last = toy_draws.one_draw(self._rule, self.p, self.q, self.rng)
        self.counts = self.counts.clone()
        self.counts[int(self.last.kept), self.last.token] += 1
        self.trace.value = toy_draws.in_words(self.last, self.words, self.p, self.q, self.bug.value)
        self._draw()

    def _many(self) -> None:
        self.last, drawn = None, toy_draws.many_draws(self.law, MANY, self.rng)
        self.counts = self.counts + drawn
        self.trace.value = (
            f"{MANY:,} more: {int(drawn[1].sum()):,} drafts kept, {int(drawn[0].sum()):,} rejected and replaced."
        )
        self._draw()


class Proof(widgets.VBox):
    """The four lines of the proof for one word y, with the numbers of a toy board: they share their controls."""

    def __init__(self, board: ToyBoard):
        self.board = board
        self.y = widgets.ToggleButtons(
            options=[(word, i) for i, word in enumerate(board.words)],
            value=1,
            tooltips=[f"how does {word} come out?" for word in board.words],
            style={"button_width": "80px"},
        )
        self.lines = widgets.HTML()
        board.follow(self._write, self.y, board.drafts, board.toward, board.bug, *board.own)
        self._write()
        choice = widgets.HBox([_name("y"), self.y], layout={"align_items": "center"})
        rows = [choice, widgets.HBox([board.toward, board.bug], layout={"align_items": "center"}), self.lines]
        super().__init__(rows, layout={"width": f"{style.WIDTH + 10}px"})

    def _write(self) -> None:
        board = self.board
        self.lines.value = proof_html(board.words, board.p, board.q, self.y.value, board.bug.value)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        # The lines themselves, for a page without a kernel.
        text = "The four lines of the proof, with the numbers of the figure."
        return {**data, "text/plain": text, "text/html": self.lines.value}, metadata


def toy_board(
    rule: toy_draws.Rule = accept.accept_or_fix,
    residual: Callable[[Tensor, Tensor], Tensor] = accept.residual,
    *,
    seed: int | None = None,
) -> ToyBoard:
    """F5 on the course's six words. rule: whose tokens are counted. seed: None = the operating system's."""
    return ToyBoard(rule, residual, P, Q, WORDS, toy_draws.Listening(seed))


def _own(word: str, value: float) -> widgets.FloatSlider:
    look = {"readout_format": ".2f", "style": {"description_width": "44px"}, "layout": {"width": "240px"}}
    hint = f"how often your draft says {word}, compared with the others: drag, or click the number and type"
    return widgets.FloatSlider(value, min=0, max=1, step=0.01, description=word, tooltip=hint, **look)


def _name(text: str) -> widgets.Label:
    # Of its own, since buttons in a row would have theirs above them.
    return widgets.Label(text, layout={"width": "46px", "margin": "2px 0 2px 12px"})


def _button(name: str, icon: str, tooltip: str) -> widgets.Button:
    return widgets.Button(description=name, icon=icon, tooltip=tooltip, layout={"width": "148px"})


def _show(box: widgets.GridBox, shown: bool) -> None:
    box.layout.display = "grid" if shown else "none"
