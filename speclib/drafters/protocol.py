"""What the loop asks of whoever guesses, and what it is handed."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from speclib.context import LanguageModel
from speclib.distributions import Rng, Sampling


class Proposal(NamedTuple):
    """What a drafter hands over.

    tokens: up to k ids. q: [len(tokens), vocab of the target], row i being the distribution that tokens[i]
    was drawn from; None when each token was certain, which is a one-hot q.
    """

    tokens: list[int]
    q: Tensor | None = None


class Drafter(Protocol):
    """What `decode` asks of whoever guesses.

    Whether a position is drafted must be settled before its token is drawn: a drafter that withholds a
    token because of what it is makes the output follow another distribution.
    """

    def begin(self, text: list[int], target: LanguageModel) -> None:
        """A generation starts: text is the prompt, target whom to guess for (its vocabulary is q's width)."""

    def propose(self, text: list[int], k: int, sampling: Sampling, rng: Rng) -> Proposal:
        """Guess at most k tokens that follow text; fewer, or none, are welcome."""

    def rollback(self, length: int) -> None:
        """The round is over: of text and proposal only the first `length` tokens are true."""
