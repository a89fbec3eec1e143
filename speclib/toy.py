"""Table models: exact p and q for every text, no weights, so that a proof needs no tolerance but rounding."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# The course's six words. Rejections of A and SAT, which the draft proposes too often, refill THE, CAT and DOG.
WORDS = ("THE", "A", "CAT", "DOG", "SAT", "RAN")
P = torch.tensor([0.40, 0.25, 0.15, 0.10, 0.06, 0.04], dtype=torch.float64)
Q = torch.tensor([0.20, 0.45, 0.10, 0.05, 0.16, 0.04], dtype=torch.float64)


class TableLM:
    """A language model that is a table: from every text to the logits of what comes next.

    It has a Context's `tokens`, `feed` and `rollback`, in fp64. The logits depend on every token that the
    cache holds, in order, so that a ghost left in it, or a token fed twice, changes what comes out.

    vocab: number of tokens. seed: which table. sharpness: 0 makes every text's distribution uniform, large
    values nearly one-hot. zeros: share of tokens that are impossible after each text (one always remains).
    """

    max_length = 1 << 30
    size = 0

    def __init__(self, vocab: int, seed: int = 0, *, sharpness: float = 1.0, zeros: float = 0.0):
        if vocab < 1:
            raise ValueError(f"vocab must be at least 1, not {vocab}")
        self.vocab_size = vocab
        self.tokens: list[int] = []
        self._seed, self._sharpness, self._zeros = seed, sharpness, zeros
        self._table: dict[tuple[int, ...], Tensor] = {}

    def logits_after(self, text: tuple[int, ...]) -> Tensor:
        """The table's row for a text: [vocab] fp64, −inf where a token is impossible."""
        if text not in self._table:
            rng = np.random.default_rng([self._seed, len(text), *text])
            row = torch.from_numpy(rng.normal(size=self.vocab_size) * self._sharpness)
            impossible = torch.from_numpy(rng.random(self.vocab_size) < self._zeros)
            impossible[row.argmax()] = False
            self._table[text] = row.masked_fill(impossible, float("-inf"))
        return self._table[text]

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        """As `Context.feed`: the next-token logits after each fed token, fp64, [len(ids), vocab]."""
        if not ids:
            raise ValueError("nothing to feed: ids is empty")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise ValueError(f"token ids must be in 0 … {self.vocab_size - 1}, not {sorted(set(ids))}")
        if rows is not None and not 1 <= rows <= len(ids):
            raise ValueError(f"rows must be in 1 … {len(ids)}, the number of ids fed, not {rows}")
        start = len(self.tokens)
        self.tokens += ids
        wanted = range(start + len(ids) - (rows or len(ids)) + 1, start + len(ids) + 1)
        return torch.stack([self.logits_after(tuple(self.tokens[:end])) for end in wanted])

    def rollback(self, length: int) -> None:
        """As `Context.rollback`: forget all but the first `length` covered tokens."""
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot roll back to {length} tokens: the cache covers {len(self.tokens)}")
        del self.tokens[length:]


class FixedLM(TableLM):
    """A table model with the same distribution after every text, such as the course's P or Q."""

    def __init__(self, p: Tensor):
        super().__init__(len(p))
        self._row = p.double().log()

    def logits_after(self, text: tuple[int, ...]) -> Tensor:
        return self._row
