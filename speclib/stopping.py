"""When to stop: an EOS id, a stop string, or the length. A block is trimmed once, at the earliest of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Stop:
    """What ends a generation; it holds no state, so one may serve many.

    max_new: most tokens to commit. eos: an id, several, or None; the id itself is committed and ends the
    text (give None to write on past it). strings: each ends the text where it begins. tokenizer: needed for
    strings; with it, every round also carries its text.
    ValueError: max_new < 0, an empty string, strings without a tokenizer.
    """

    max_new: int = 128
    eos: int | Iterable[int] | None = None
    strings: str | Iterable[str] = ()
    tokenizer: PreTrainedTokenizerBase | None = None

    def __post_init__(self) -> None:
        eos = () if self.eos is None else (self.eos,) if isinstance(self.eos, int) else self.eos
        strings = (self.strings,) if isinstance(self.strings, str) else self.strings
        object.__setattr__(self, "eos", frozenset(eos))
        object.__setattr__(self, "strings", tuple(strings))
        if self.max_new < 0:
            raise ValueError(f"max_new must be at least 0, not {self.max_new}")
        if "" in self.strings:
            raise ValueError("a stop string is empty: it would end every text before it begins")
        if self.strings and self.tokenizer is None:
            raise ValueError("stop strings are looked for in the text: give Stop the tokenizer, too")


class Trimmer:
    """One generation's way to its end: trims each block and turns what is left into text.

    `text` is what may be shown: it ends before a stop string, and what could yet become one, or is half a
    character, is held back. The ids end with the token that completed the string.
    """

    def __init__(self, stop: Stop):
        self._stop = stop
        self._committed = 0
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held = ""

    def trim(self, block: list[int]) -> tuple[list[int], str, FinishReason | None]:
        """The part of a block that is committed, the text that it releases, and why it ended, if it did."""
        shown = ""
        for n, token in enumerate(block, start=1):
            self._committed += 1
            cut = self._read(token)
            reason: FinishReason | None = (
                "eos" if token in self._stop.eos
                else "stop" if cut is not None
                else "length" if self._committed >= self._stop.max_new
                else None
            )  # fmt: skip
            if reason:
                return block[:n], shown + self._held[:cut], reason
            shown += self._release()
        return block, shown, None

    def _read(self, token: int) -> int | None:
        """Take a token's text in; where a stop string begins in what is held, if one is complete."""
        if self._stop.tokenizer is None:
            return None
        self._held += self._stream.step(self._stop.tokenizer.backend_tokenizer, token) or ""
        found = [at for s in self._stop.strings if (at := self._held.find(s)) >= 0]
        return min(found, default=None)

    def _release(self) -> str:
        """Give out what is held, but for an ending that could be the beginning of a stop string."""
        keep = max((n for s in self._stop.strings for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out
