"""How many times faster, from two sets of requests over the same prompts, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from speclib.rows import bootstrap

# What one prompt took: seconds between first and last content, and the tokens that came in them.
Cost = tuple[float, float]


def speedup(plain: Sequence[Cost], fast: Sequence[Cost]) -> float:
    """Plain ÷ speculative seconds per token, each pooled over all prompts.

    Long answers weigh more, as they do in what a user waits for; a mean of the prompts' own ratios would not know.
    ValueError: not the same number of prompts, or none.
    Taught in notebook 07_serve_and_bench, section 'The speedup and its interval'.
    """
    return float(_ratios(_both(plain, fast)[None])[0])


def speedup_interval(plain: Sequence[Cost], fast: Sequence[Cost]) -> tuple[float, float]:
    """The middle 95 % of the speedup when the prompts are drawn anew, with replacement.

    plain[i], fast[i]: of the same prompt. A prompt that is drawn brings both its costs: some prompts are slow either
    way, and that must not look like a difference. ValueError: as `speedup`.
    Taught in notebook 07_serve_and_bench, section 'The speedup and its interval'.
    """
    return bootstrap(_both(plain, fast), _ratios)


def paired(
    plain: Iterable[tuple[str, float, float]], fast: Iterable[tuple[str, float, float]]
) -> tuple[list[Cost], list[Cost]]:
    """(prompt, seconds, tokens) of requests → costs by prompt, those that both have, in one order.

    Requests that repeat a prompt are added up; those without a token behind their first chunk tell nothing.
    """
    sums: list[dict[str, Cost]] = []
    for requests in (plain, fast):
        by_prompt: dict[str, Cost] = {}
        for prompt, seconds, tokens in requests:
            if tokens > 0:
                before = by_prompt.get(prompt, (0.0, 0))
                by_prompt[prompt] = before[0] + seconds, before[1] + tokens
        sums.append(by_prompt)
    both = [prompt for prompt in sums[0] if prompt in sums[1]]
    return [sums[0][p] for p in both], [sums[1][p] for p in both]


def _both(plain: Sequence[Cost], fast: Sequence[Cost]) -> NDArray[np.float64]:
    """[n, 4]: seconds and tokens, plain and fast."""
    if len(plain) != len(fast) or not plain:
        raise ValueError(f"{len(plain)} and {len(fast)} prompts: give the same prompts, at least one, for both")
    return np.hstack([np.asarray(plain, dtype=float), np.asarray(fast, dtype=float)])


def _ratios(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """[times, n, 4] → [times]."""
    seconds, tokens, fast_seconds, fast_tokens = drawn.sum(axis=1).T
    return seconds / tokens / (fast_seconds / fast_tokens)
