"""Two drafters in a row: the first is asked, and where it has nothing to say, the second."""

from __future__ import annotations

from speclib.context import LanguageModel
from speclib.distributions import Rng, Sampling
from speclib.drafters.protocol import Drafter, Proposal


class FallbackDrafter:
    """Lookup first, the model on a miss; or any other two drafters.

    Exact when both are, and when the first knows that it has nothing before it draws anything: a miss of lookup is
    settled by the text alone. While the first answers, the second's cache falls behind the text; what is missing
    is fed to it, in one pass, the next time that it is asked.
    Taught in notebook 06_lookup, section 'Lookup first, the model on a miss'.
    """

    def __init__(self, first: Drafter, second: Drafter):
        self.first, self.second = first, second

    def begin(self, text: list[int], target: LanguageModel) -> None:
        self.first.begin(text, target)
        self.second.begin(text, target)

    def propose(self, text: list[int], k: int, sampling: Sampling, rng: Rng) -> Proposal:
        proposal = self.first.propose(text, k, sampling, rng)
        return proposal if proposal.tokens else self.second.propose(text, k, sampling, rng)

    def rollback(self, length: int) -> None:
        self.first.rollback(length)
        self.second.rollback(length)
