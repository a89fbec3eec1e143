"""A table of what usually follows a few words: no network, a q that is known exactly, and drafts that cost nothing."""

from __future__ import annotations

import bisect
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from speclib.context import LanguageModel
from speclib.distributions import NEG_INF, Rng, Sampling
from speclib.drafters.protocol import Proposal

ORDER = 3  # longest context, in tokens
NEXT = 4  # continuations kept per context
SPAN = 1 << 20  # above every token id: three of them fit into an int64


class NgramDrafter:
    """Drafts from a table of n-grams with back-off: the longest known ending of the text says what comes next.

    table: as `count` makes it. vocab: width of q. Whether a position is drafted depends on the tokens before it alone
    (an ending that the table does not know ends the block), so the output stays exact.
    Source: Katz 1987 (back-off; here without discounts: q need not be a good model, only a known one).
    """

    def __init__(self, table: dict[str, Tensor], vocab: int):
        # A list: bisection in Python takes a microsecond, a call into torch ten.
        self._keys: list[int] = table["keys"].tolist()
        self._ids, self._logits = table["ids"].long(), table["p"].float().log()
        self.vocab = vocab

    @classmethod
    def load(cls, folder: Path, vocab: int) -> NgramDrafter:
        """The table that `speclib distill` wrote beside a draft. ValueError: the folder has none."""
        file = folder / "ngram.safetensors"
        if not file.is_file():
            raise ValueError(f"there is no table of n-grams in {folder}: `speclib distill` writes one")
        return cls(load_file(file), vocab)

    def begin(self, text: list[int], target: LanguageModel) -> None:
        self.vocab = target.vocab_size

    def propose(self, text: list[int], k: int, sampling: Sampling, rng: Rng) -> Proposal:
        tokens: list[int] = []
        rows: list[Tensor] = []
        ending = text[-ORDER:]
        while len(tokens) < k and (at := self._find(ending)) is not None:
            logits = torch.full((self.vocab,), NEG_INF)
            real = self._logits[at] > NEG_INF  # a short row is filled up with zeros
            logits[self._ids[at, real]] = self._logits[at, real]
            logits = sampling.penalise(logits[None], text, tokens)[0]
            if sampling.temperature == 0:
                tokens.append(int(logits.argmax()))
            elif not torch.isfinite(logits).any():
                break  # everything that the table knows here is banned
            else:
                rows.append(sampling.warp(logits))
                tokens.append(rng.draw(rows[-1]))
            ending = (ending + tokens[-1:])[-ORDER:]
        return Proposal(tokens, torch.stack(rows) if rows else None)

    def rollback(self, length: int) -> None:
        """Nothing to do: the table does not change."""

    def _find(self, ending: list[int]) -> int | None:
        """Where the longest known end of these tokens stands in the table."""
        for n in range(len(ending), 0, -1):
            key = pack(ending[-n:])
            at = bisect.bisect_left(self._keys, key)
            if at < len(self._keys) and self._keys[at] == key:
                return at
        return None


def pack(ids: list[int]) -> int:
    """Up to three token ids as one whole number; texts of different length never share one."""
    key = 0
    for i in ids:
        key = key * SPAN + i + 1
    return key


def count(shards: list[dict[str, Tensor]], contexts: int = 300_000) -> dict[str, Tensor]:
    """Count what follows in the answers of a corpus: each place adds the target's own probabilities, not one token.

    shards: as `distill.train.read` gives them. contexts: how many to keep, the most frequent (32 bytes each). Returns
    keys [contexts], ascending, packed endings of 1 … 3 tokens; ids and p [contexts, 4], the likeliest next tokens.
    """
    keys, ids, p = [], [], []
    for s in shards:
        tokens = s["tokens"].long() + 1
        said = (s["mode"][:, ORDER:] >= 2).flatten()  # an answer's token comes next
        key = torch.zeros_like(tokens[:, ORDER - 1 : -1])
        for n in range(1, ORDER + 1):
            key = key + tokens[:, ORDER - n : -n] * SPAN ** (n - 1)
            keys.append(key.flatten()[said])
            ids.append(s["ids"][:, ORDER - 1 : -1, :8].flatten(0, 1)[said])
            p.append(s["p"][:, ORDER - 1 : -1, :8].flatten(0, 1)[said].float())
    known, which = torch.unique(torch.cat(keys), return_inverse=True)
    pairs, at = torch.unique((which[:, None] * SPAN + torch.cat(ids)).flatten(), return_inverse=True)
    mass = torch.zeros(len(pairs), dtype=torch.float64).index_add_(0, at, torch.cat(p).flatten().double())
    # By context, then by falling mass; the first few of each are its row.
    context = pairs // SPAN
    order = torch.argsort(mass, descending=True, stable=True)
    order = order[torch.argsort(context[order], stable=True)]
    start = torch.searchsorted(context[order], torch.arange(len(known)))
    rank = torch.arange(len(order)) - start[context[order]]
    rows = torch.zeros(len(known), NEXT, dtype=torch.float64)
    table = torch.zeros(len(known), NEXT, dtype=torch.int32)
    top = order[rank < NEXT]
    rows[context[top], rank[rank < NEXT]] = mass[top]
    table[context[top], rank[rank < NEXT]] = (pairs[top] % SPAN).int()
    keep = torch.bincount(which).topk(min(contexts, len(known))).indices.sort().values
    share = rows[keep] / rows[keep].sum(-1, keepdim=True)
    return {"keys": known[keep], "ids": table[keep], "p": share.half()}


def save(table: dict[str, Tensor], folder: Path) -> None:
    """Write a table to where `NgramDrafter.load` looks for it."""
    save_file(table, folder / "ngram.safetensors")
