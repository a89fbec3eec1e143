"""Lookup on a text that is known: which rounds it takes, worked out without any model.

Greedily the text is the target's own whatever is drafted (notebook 03), so one generation serves every setting: what
is kept of a proposal is what the text says anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from speclib.context import shared
from speclib.decode import Stats
from speclib.drafters import lookup_draft

LookupDraft = Callable[[list[int], int, int], list[int]]


class Found(NamedTuple):
    """Where the end of a text stood before: its last n tokens began at `start`."""

    n: int
    start: int


@dataclass(frozen=True)
class Looked:
    """One round, with the fields that `decode.Stats` asks of a `Round`; found: None on a miss.

    start: how many tokens the text had. drafts: what was proposed. tokens: committed.
    """

    start: int
    found: Found | None
    drafts: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def accepted(self) -> int:
        """Leading drafts that were kept."""
        return shared(list(self.drafts), list(self.tokens))

    @property
    def drafted(self) -> int:
        """As `Round.drafted`."""
        return len(self.drafts)

    @property
    def checked(self) -> int:
        """As `Round.checked`."""
        return min(self.accepted + 1, self.drafted)

    @property
    def last(self) -> str:
        """What the token behind the kept drafts is: fix, bonus, or plain where nothing was drafted."""
        return "plain" if not self.drafts else "fix" if self.accepted < len(self.drafts) else "bonus"


def locate(text: Sequence[int], max_ngram: int, leftmost: bool = False) -> Found | None:
    """Where the longest known end of a text stood before, as `lookup_draft` looks for it; None on a miss.

    leftmost: the first place instead of the most recent one. Only for comparison: speclib's drafters do not offer it.
    """
    text = list(text)
    for n in range(min(max_ngram, len(text) - 1), 0, -1):
        places = range(len(text) - n)
        for start in places if leftmost else reversed(places):
            if text[start : start + n] == text[-n:]:
                return Found(n, start)
    return None


def leftmost_draft(seq: list[int], K: int, max_ngram: int = 3) -> list[int]:
    """`lookup_draft` that takes the first match in the text: for comparison, as `locate`."""
    found = locate(seq, max_ngram, leftmost=True)
    return seq[found.start + found.n :][:K] if found else []


def rounds_of(
    prompt: Sequence[int], new: Sequence[int], K: int, max_ngram: int, draft: LookupDraft = lookup_draft
) -> list[Looked]:
    """The rounds in which greedy decoding with `draft` writes the tokens `new` behind the prompt.

    new: what the target says, greedily. draft: `drafters.lookup_draft`, or any function with its arguments. The rounds
    are those of `decode` with the budget len(new).
    """
    text, whole = list(prompt), [*prompt, *new]
    leftmost = draft is leftmost_draft
    rounds = []
    while len(text) < len(whole):
        k = min(K, len(whole) - len(text) - 1)
        drafts = list(draft(list(text), k, max_ngram)) if k else []
        found = locate(text, max_ngram, leftmost) if drafts else None
        kept = shared(drafts, whole[len(text) :])
        tokens = whole[len(text) : len(text) + kept + 1]
        rounds.append(Looked(len(text), found, tuple(drafts), tuple(tokens)))
        text += tokens
    return rounds


def tokens_per_round(rounds: Sequence[Looked]) -> float:
    """AL of rounds; NaN if there are none."""
    return Stats(list(rounds)).mean_accepted_length
