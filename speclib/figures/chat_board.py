"""One question to a server, answered twice: plain beside speculative, streamed, with the kept drafts marked."""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import ipywidgets as widgets

from speclib import bench
from speclib.bench_background import Background
from speclib.figures import style
from speclib.figures.page import PageBoard

WAYS = ("plain", "speculative")
_LABEL = {"description_width": "60px"}
_CSS = f"""<style>
.sl-chat {{ display: flex; gap: 16px; font: 14px/1.55 {style.FONT}; color: {style.PAGE_INK}; }}
.sl-chat > div {{ flex: 1 1 0; min-width: 0; }}
.sl-chat .text {{ white-space: pre-wrap; overflow-wrap: anywhere; min-height: 96px; margin: 4px 0 8px;
  padding: 8px 10px; border: 1px solid {style.GRID}; border-radius: 4px; }}
.sl-chat b {{ font-weight: 600; }}
"""
_CSS += "".join(
    f".sl-chat .{role} {{ background: {look.fill}; border-bottom: 3px {look.border} {look.colour}; }}\n"
    for role, look in style.ROLES.items()
)
_CSS += "</style>"
_KEY = (
    '<div class="sl-chat" style="font-size: 13px; margin-bottom: 6px"><span><span class="kept">kept drafts</span> · '
    '<span class="fix">a fix or the bonus</span> · the rest are steps without drafts</span></div>'
)


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream as they come: one behind each `data:`; the last says [DONE] in place of one.

    Lines end at line feeds alone: other characters that end a line may be part of an answer.
    Taught in notebook 07_serve_and_bench, section 'On the wire'.
    """
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data and data != b"[DONE]":  # an empty line ends an event
                yield json.loads(data)


@dataclass
class Said:
    """One of the two answers so far. rounds: of each the tokens as text, how many drafted, how many kept."""

    title: str
    rounds: list[tuple[list[str], int, int]] = field(default_factory=list)
    first: float | None = None  # seconds from sending to the first text
    last: float = 0.0
    usage: dict[str, Any] | None = None
    error: str = ""
    left: bool = False


class ChatBoard(PageBoard):
    """Ask a server of speclib something twice, in turn: without speculation and with it.

    server: its address and model. prompt: what is asked when the board is made. tokens: at most so many. Ask starts
    over and Stop leaves: the connection is closed, and the server ends the request at its next round.
    Taught in notebook 07_serve_and_bench, section 'Side by side'.
    """

    height = 290
    text = "Figure: one question, answered plainly and speculatively, kept drafts underlined."

    def __init__(self, server: bench.Server, prompt: str, *, drafter: str = "model", k: int = 4, tokens: int = 32):
        self.server, self.task = server, None
        self.prompt = widgets.Text(
            prompt, description="prompt", placeholder="ask something, then press Ask", style=_LABEL,
            continuous_update=False, layout={"width": f"{style.WIDTH - 4}px"},
        )  # fmt: skip
        self.drafter = widgets.Dropdown(
            options=["model", "lookup", "lookup+model"], value=drafter, description="drafter", style=_LABEL,
            tooltip="who guesses", layout={"width": "200px"},
        )  # fmt: skip
        self.k = self._slider("K", k, 1, 8, "drafts per round", "240px")
        self.tokens = self._slider("tokens", tokens, 8, 128, "length of each answer at most", "300px")
        ask = widgets.Button(description="Ask", icon="play", tooltip="ask both ways", layout={"width": "96px"})
        stop = widgets.Button(description="Stop", icon="stop", tooltip="leave", layout={"width": "96px"})
        ask.on_click(self.guard(self._pressed))
        stop.on_click(self.guard(lambda _: self._cancel()))
        row = widgets.HBox([self.drafter, self.k, self.tokens], layout={"align_items": "center"})
        super().__init__([self.prompt, row, widgets.HBox([ask, stop])])
        self._begin()
        for change in Background(self._converse):
            self._apply(change)

    @staticmethod
    def _slider(name: str, value: int, low: int, high: int, tooltip: str, width: str) -> widgets.IntSlider:
        slider = widgets.IntSlider(value, min=low, max=high, description=name, style=_LABEL, layout={"width": width})
        slider.tooltip = tooltip
        return slider

    def _begin(self) -> None:
        if not self.prompt.value.strip():
            raise ValueError("the prompt is empty: type at least one word, then press Ask")
        titles = ("plain", f"speculative: {self.drafter.value}, K = {self.k.value}")
        self.said = dict(zip(WAYS, map(Said, titles), strict=True))
        self._draw()

    def _pressed(self, _: Any) -> None:
        self._cancel()
        self._begin()
        # On the kernel's own loop, so that Stop is heard in between.
        self.task = asyncio.get_running_loop().create_task(self._converse(self.guard(self._apply)))

    def _cancel(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            for said in self.said.values():
                said.left = said.usage is None
            self._draw()

    async def _converse(self, hand: Callable[[Any], None]) -> None:
        """Ask both ways, one after the other, and hand on (way, seconds since sending, event or error)."""
        ways = {"plain": {"drafter": "none"}, "speculative": {"drafter": self.drafter.value, "k": self.k.value}}
        async with self.server.client() as client:
            for way, asked in ways.items():
                body = self._body(asked)
                sent = time.perf_counter()
                try:
                    async with client.stream("POST", f"{self.server.url}/chat/completions", json=body) as response:
                        if response.status_code != 200:
                            told = json.loads(await response.aread())
                            hand((way, 0.0, told))
                            continue
                        async for event in events(response):
                            hand((way, time.perf_counter() - sent, event))
                except (httpx.HTTPError, ValueError) as error:
                    sentence = f"no answer from {self.server.base_url} ({type(error).__name__}): is the server running?"
                    hand((way, 0.0, {"error": {"message": sentence}}))

    def _body(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self.server.model,
            "messages": [{"role": "user", "content": self.prompt.value}],
            "max_tokens": self.tokens.value,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": asked | {"show": True},
        }

    def _apply(self, change: tuple[str, float, dict[str, Any]]) -> None:
        way, at, event = change
        said = self.said[way]
        if "error" in event:
            said.error = event["error"]["message"]
        for choice in event.get("choices") or ():
            told = choice["speculation"]
            said.rounds.append((told["tokens"], told["drafted"], told["accepted"]))
            if choice["delta"].get("content"):
                said.first, said.last = said.first or at, at
        said.usage = event.get("usage") or said.usage
        self._draw()

    def _draw(self) -> None:
        columns = "".join(f"<div>{_column(self.said[way])}</div>" for way in WAYS)
        self.page.value = f'{_CSS}{_KEY}<div class="sl-chat sl-answers">{columns}</div>{self._verdict()}'

    def _verdict(self) -> str:
        if not all(said.usage for said in self.said.values()):
            return ""
        one, other = ([t for tokens, *_ in said.rounds for t in tokens] for said in self.said.values())
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if at is None and len(one) == len(other):
            word = "✓ the same text, token for token"
        else:
            at = min(len(one), len(other)) if at is None else at
            word = f"the texts part at token {at + 1}: a near-tie that rounding decides (notebook 03)"
        return f'<div class="sl-chat sl-verdict">{word}</div>'


def _column(said: Said) -> str:
    """One answer as HTML: what it is, its text, and its figures."""
    text = ""
    for tokens, drafted, accepted in said.rounds:
        for i, token in enumerate(tokens):
            look = "kept" if i < accepted else "bonus" if accepted == drafted else "fix"
            shown = html.escape(token)
            text += f'<span class="{look}">{shown}</span>' if drafted else shown
    if said.error:
        foot = f'<span role="alert" style="color:{style.RED}">⚠ {html.escape(said.error)}</span>'
    elif said.usage is None:
        foot = "left early" if said.left else "waiting …" if said.first is None else "writing …"
    else:
        foot = _figures(said)
    return f"<b>{html.escape(said.title)}</b><div class='text'>{text}</div><div class='foot'>{foot}</div>"


def _figures(said: Said) -> str:
    tokens, rounds = said.usage["completion_tokens"], len(said.rounds)
    found = f"{tokens} tokens in {rounds} passes"
    if said.first is not None:
        found += f"<br>first text after {said.first:.2f} s"
        behind = tokens - len(said.rounds[0][0])
        if behind > 0 and said.last > said.first:
            found += f", then {behind / (said.last - said.first):.1f} tokens/s"
    return found
