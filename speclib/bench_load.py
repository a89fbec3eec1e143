"""What the bench is asked for: prompts, rows to compare, and how hard to push."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speclib.rows import PLAIN  # the label of the baseline
from speclib.sweep import prompts_of


@dataclass(frozen=True)
class Prompt:
    """One user turn, its name, and what kind of text it asks for."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True)
class Row:
    """What is to be compared: a label, who guesses and with which K, and what that adds to each request.

    drafter: None where it is not known; "none" is plain decoding.
    """

    label: str
    drafter: str | None = None
    k: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """What is asked of the server: requests at each concurrency, tokens each, and how they are chosen."""

    concurrency: tuple[int, ...] = (1, 4, 16)
    n: int = 20
    max_tokens: int = 128
    ignore_eos: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise ValueError(f"concurrency must be numbers of at least 1, such as 1,4,16, not {self.concurrency}")
        if len(set(self.concurrency)) < len(self.concurrency):
            raise ValueError(f"concurrency names a number twice: {self.concurrency}")
        for name in ("n", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")


def read_prompts(path: Path | str) -> list[Prompt]:
    """The prompts of a file, as `sweep.prompts_of` reads it. ValueError: as there."""
    return [Prompt(one["id"], one["kind"], one["prompt"]) for one in prompts_of(path)]


def rows_of(
    label: str, speculation: str | None = None, served_with: str | None = None, against_plain: bool = False
) -> list[Row]:
    """The rows that the command line describes: one, and with against_plain the same server without speculation.

    speculation: asked for in each request; served_with: how the server runs, only noted; both are none or NAME:K.
    ValueError: another form, both, or nothing to set against plain.
    """
    if speculation and served_with:
        raise ValueError("give --speculation, which each request asks for, or --served-with, not both")
    if label == PLAIN and (speculation or served_with) != "none":
        raise ValueError("the target 'plain' is row 0: give --speculation none or --served-with none with it")
    if against_plain and speculation in (None, "none"):
        raise ValueError("--against-plain needs --speculation NAME:K: only a request that can choose goes both ways")
    rows = [_row(label, speculation or served_with, speculation is not None)]
    return rows + ([_row(PLAIN, "none", True)] if against_plain else [])


def numbers(text: str) -> tuple[int, ...]:
    """1,4,16 as numbers. ValueError: anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"concurrency must be numbers such as 1,4,16, not {text!r}") from error


def _row(label: str, text: str | None, asked: bool) -> Row:
    if text is None:
        return Row(label)
    name, _, k = text.partition(":")
    if text == "none":
        number, extra = None, {"drafter": "none"}
    elif name and k.isascii() and k.isdecimal() and int(k) > 0:
        number, extra = int(k), {"drafter": name, "k": int(k)}
    else:
        raise ValueError(f"{text!r} is neither none nor NAME:K, such as model:4 or lookup:8")
    # Shown, so that the tokens of every chunk are known.
    return Row(label, name, number, {"speculation": extra | {"show": True}} if asked else {})
