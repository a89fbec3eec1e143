"""Is the output distributed as the target's? By enumerating every outcome of the code that runs; by chi-square.

The loop asks its rng two questions, and nothing else in it is random. `sequence_distribution` runs the loop
again and again with an rng that gives every possible answer in turn and keeps the product of the answers'
probabilities, so what comes out is the distribution of the real code: no samples and no tolerance but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from speclib.context import LanguageModel, shared
from speclib.distributions import Sampling

Distribution = dict[tuple[int, ...], float]
LEVEL = 1e-4  # below this p-value a difference counts as found


class EveryWay:
    """An rng that answers as its path says; where the path ends, by the first possible answer.

    `advance` moves on to the next path, until every one has been walked. Answers of probability 0 are not.
    """

    def __init__(self) -> None:
        self._path: list[int] = []
        self._options: list[list[tuple[int, float]]] = []

    @property
    def probability(self) -> float:
        """Of everything answered since the last `advance`."""
        chosen = [options[i][1] for options, i in zip(self._options, self._path, strict=True)]
        return float(np.prod(chosen))

    def advance(self) -> bool:
        """Turn to the next path; False when there is none."""
        while self._path and self._path[-1] == len(self._options[len(self._path) - 1]) - 1:
            self._path.pop()
        if self._path:
            self._path[-1] += 1
        self._options = []
        return bool(self._path)

    def kept(self, probabilities: Tensor) -> int:
        keep = [min(1.0, a) for a in probabilities.tolist()]
        ahead = np.cumprod([1.0, *keep])  # ahead[j]: that the first j drafts are all kept
        reject = [1 - a for a in keep] + [1.0]
        return self._answer([(j, ahead[j] * reject[j]) for j in range(len(reject))])

    def draw(self, weights: Tensor) -> int:
        shares = weights.double() / weights.double().sum()
        return self._answer(list(enumerate(shares.tolist())))

    def drawn(self, weights: Tensor) -> Tensor:
        return torch.tensor([self.draw(weights)])

    def _answer(self, outcomes: list[tuple[int, float]]) -> int:
        self._options.append([(value, p) for value, p in outcomes if p > 0])
        if len(self._options) > len(self._path):
            self._path.append(0)
        depth = len(self._options) - 1
        return self._options[depth][self._path[depth]][0]


def sequence_distribution(run: Callable[[EveryWay], Sequence[int]], max_paths: int = 50_000) -> Distribution:
    """The exact distribution of what `run(rng)` returns, by running it once for each way its rng can answer.

    run: runs the real loop with the rng it is given and returns the tokens; it must be random in nothing
    else and start from the same state each time. Returns token tuples → probabilities (they sum to 1).
    RuntimeError: more than max_paths ways, so that a forgotten limit does not run for a day.
    Taught in notebook 04_sampling_proof, section 'Every outcome'.
    """
    rng, out = EveryWay(), {}
    for _ in range(max_paths):
        tokens = tuple(run(rng))
        out[tokens] = out.get(tokens, 0.0) + rng.probability
        if not rng.advance():
            return out
    raise RuntimeError(f"more than {max_paths} ways: take a smaller vocabulary, K or length, or raise max_paths")


def target_distribution(
    model: LanguageModel, prompt: list[int], sampling: Sampling, max_new: int, eos: frozenset[int] = frozenset()
) -> Distribution:
    """What plain sampling from the model gives: each text's product of p, with no loop and no cache to go wrong.

    Every prefix is fed from the start, into an empty model. Returns token tuples → probabilities.
    Taught in notebook 04_sampling_proof, section 'Every outcome'.
    """
    sampling = Sampling(**{**sampling.__dict__, "prompt_length": len(prompt)})
    out: Distribution = {}
    open_texts: Distribution = {(): 1.0}
    while open_texts:
        new, probability = open_texts.popitem()
        if len(new) == max_new or (new and new[-1] in eos):
            out[new] = probability
            continue
        text = [*prompt, *new]
        model.rollback(0)
        p = sampling.warp(sampling.penalise(model.feed(text, rows=1), text, []))[0]
        open_texts.update({(*new, t): probability * pt for t, pt in enumerate(p.tolist()) if pt > 0})
    model.rollback(0)
    return out


def largest_difference(a: Distribution, b: Distribution) -> float:
    """The largest difference between the probabilities that two distributions give to one text."""
    return max(abs(a.get(t, 0.0) - b.get(t, 0.0)) for t in a.keys() | b.keys())


class ChiSquare(NamedTuple):
    """statistic; degrees of freedom; p_value; threshold: what 1 run in 20 of a right program exceeds."""

    statistic: float
    degrees: int
    p_value: float
    threshold: float


def chi_square(counts: Sequence[int], p: Sequence[float]) -> ChiSquare:
    """Pearson's test that counts were drawn from p; cells in which fewer than 5 are expected are pooled.

    counts, p: one entry per cell, p summing to 1. A count where p is 0 settles it: p_value 0.
    ValueError: lengths that differ, no counts, p that does not sum to 1, fewer than two cells left.
    Source: Pearson 1900; Cochran 1954 (the pooling). Taught in notebook 04_sampling_proof, section 'Chi-square'.
    """
    observed, expected = np.asarray(counts, dtype=float), np.asarray(p, dtype=float)
    if observed.shape != expected.shape or observed.ndim != 1:
        raise ValueError(f"counts and p need one entry per cell, not {observed.shape} and {expected.shape}")
    if observed.sum() == 0:
        raise ValueError("there are no counts: draw something first")
    if abs(expected.sum() - 1) > 1e-4:
        raise ValueError(f"p must sum to 1, not {expected.sum():.6f}: is the mass of the rest a cell of its own?")
    impossible = observed[expected <= 0].sum() > 0
    expected = expected / expected.sum() * observed.sum()
    order = np.argsort(expected, kind="stable")
    observed, expected = observed[order], expected[order]
    # Pool from the smallest up, until the pool and every cell behind it expect at least 5.
    small = int(np.searchsorted(expected, 5.0))
    while 0 < small < len(expected) and expected[:small].sum() < 5:
        small += 1
    if small:
        observed = np.r_[observed[:small].sum(), observed[small:]]
        expected = np.r_[expected[:small].sum(), expected[small:]]
    degrees = len(expected) - 1
    if degrees < 1:
        raise ValueError("fewer than two cells expect 5 or more: draw more")
    statistic = float("inf") if impossible else float(((observed - expected) ** 2 / expected).sum())
    return ChiSquare(statistic, degrees, float(stats.chi2.sf(statistic, degrees)), float(stats.chi2.isf(0.05, degrees)))


def draws_needed(wrong: Sequence[float], p: Sequence[float], power: float = 0.99) -> float:
    """How many draws from `wrong` the chi-square test against p needs to notice, at p-value 1e-4.

    wrong, p: one entry per cell. Returns the number of draws at which the test notices with probability
    `power`: inf if the two are equal; if wrong gives mass to cells that p excludes, where one of them has come up.
    The formula is for small effects and a test that pools no cells: where it gives less than a few hundred, take twice
    as many and at least 300.
    Source: Cohen 1988, chapter 7 (non-central chi-square). Taught in notebook 04_sampling_proof, section 'Chi-square'.
    """
    w, e = np.asarray(wrong, dtype=float), np.asarray(p, dtype=float)
    if (excluded := float(w[e <= 0].sum())) > 1e-12:
        return math.log(1 - power) / math.log1p(-excluded) if excluded < 1 else 1.0
    w, e = w[e > 0], e[e > 0]
    effect = float(((w - e) ** 2 / e).sum())
    if effect < 1e-20:
        return float("inf")
    degrees = len(e) - 1
    critical = stats.chi2.isf(LEVEL, degrees)
    low, high = 0.0, 1.0
    while stats.ncx2.sf(critical, degrees, high) < power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if stats.ncx2.sf(critical, degrees, middle) < power else (low, middle)
    return high / effect


class MemoLM:
    """A model whose logits are remembered by the text they follow: real p, at a table's speed.

    Thousands of runs of the loop visit few different texts when top-k is small. Each text is computed once,
    alone, so p does not depend on how the loop came there. With prompt and ids it speaks a small vocabulary of its
    own: token t means ids[t], and the first token of a text stands for the whole prompt. Where the sampling
    settings leave no other ids (`reachable_ids`) that changes nothing, and saves working on 49,152 entries.
    Taught in notebook 04_sampling_proof, section 'Chi-square'.
    """

    def __init__(self, model: LanguageModel, prompt: list[int] | None = None, ids: list[int] | None = None):
        self._model, self._prompt, self._ids = model, prompt, ids
        self._memo: dict[tuple[int, ...], Tensor] = {}
        self.tokens: list[int] = []
        self.vocab_size = len(ids) if ids else model.vocab_size
        self.max_length, self.size = model.max_length, model.size

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        """As `Context.feed`."""
        ends = range(len(self.tokens) + len(ids) - (rows or len(ids)) + 1, len(self.tokens) + len(ids) + 1)
        self.tokens = self.tokens + ids
        return torch.stack([self._after(tuple(self.tokens[:end])) for end in ends])

    def rollback(self, length: int) -> None:
        """As `Context.rollback`."""
        self.tokens = self.tokens[:length]

    def _after(self, text: tuple[int, ...]) -> Tensor:
        if text not in self._memo:
            real = [*self._prompt, *(self._ids[t] for t in text[1:])] if self._ids else list(text)
            common = min(shared(self._model.tokens, real), len(real) - 1)
            self._model.rollback(common)
            row = self._model.feed(real[common:], rows=1)[0]
            self._memo[text] = row[self._ids] if self._ids else row
        return self._memo[text]


def reachable_ids(models: Sequence[LanguageModel], prompt: list[int], sampling: Sampling, length: int) -> list[int]:
    """Every id that one of the models can give within `length` tokens of the prompt, sorted.

    sampling: without penalties, and with a cut (top-k) that leaves few. Visits every text that can come about.
    """
    found: set[int] = set()
    texts: list[list[int]] = [[]]
    for _ in range(length):
        longer = []
        for text in texts:
            here: set[int] = set()
            for model in models:
                real = prompt + text
                model.rollback(min(shared(model.tokens, real), len(real) - 1))
                p = sampling.warp(model.feed(real[len(model.tokens) :], rows=1))[0]
                here |= set(p.nonzero().flatten().tolist())
            found |= here
            longer += [[*text, t] for t in sorted(here)]
        texts = longer
    return sorted(found)
