"""Prompt lookup: what followed these words the last time? No second model, and a draft costs next to nothing."""

from __future__ import annotations

from speclib.context import LanguageModel
from speclib.distributions import Rng, Sampling
from speclib.drafters.protocol import Proposal


def lookup_draft(seq: list[int], K: int, max_ngram: int = 3) -> list[int]:
    """Up to K tokens that followed the most recent earlier occurrence of the text's last few tokens.

    seq: token ids. The last max_ngram tokens are looked for first, then fewer, down to one. The suffix itself
    is no occurrence; one that overlaps it is. A continuation shorter than K is taken as it is. [] on a miss.
    ValueError: K < 0, max_ngram < 1.
    Source: Saxena 2023, prompt lookup decoding. Taught in notebook 06_lookup, section 'Look it up'.
    """
    _check(K, max_ngram)
    for n in range(min(max_ngram, len(seq) - 1), 0, -1):
        for start in range(len(seq) - n - 1, -1, -1):
            if seq[start : start + n] == seq[-n:]:
                return seq[start + n : start + n + K]
    return []


class LookupDrafter:
    """`lookup_draft` for text that grows: the same answers in time that does not depend on its length.

    It remembers where each run of up to max_ngram tokens last ended. The run that ends the text is filed
    only when a token follows it, so it never finds itself.
    Its drafts are certain, so q is one-hot and a draft d is kept with probability p(d).
    Source: Saxena 2023, prompt lookup decoding. Taught in notebook 06_lookup, section 'Look it up'.
    """

    def __init__(self, max_ngram: int = 3):
        _check(0, max_ngram)
        self.max_ngram = max_ngram
        self._filed = 0
        self._last_end: dict[tuple[int, ...], int] = {}

    def begin(self, text: list[int], target: LanguageModel) -> None:
        self._filed = 0
        self._last_end.clear()

    def propose(self, text: list[int], k: int, sampling: Sampling, rng: Rng) -> Proposal:
        for end in range(self._filed + 1, len(text)):
            for n in range(1, min(self.max_ngram, end) + 1):
                self._last_end[tuple(text[end - n : end])] = end
        self._filed = max(self._filed, len(text) - 1)
        for n in range(min(self.max_ngram, len(text) - 1), 0, -1):
            end = self._last_end.get(tuple(text[-n:]))
            if end is not None:
                return Proposal(text[end : end + k])
        return Proposal([])

    def rollback(self, length: int) -> None:
        """Nothing to do: only committed text is ever filed."""


def _check(K: int, max_ngram: int) -> None:
    if K < 0:
        raise ValueError(f"K must be at least 0, not {K}")
    if max_ngram < 1:
        raise ValueError(f"max_ngram must be at least 1, not {max_ngram}")
