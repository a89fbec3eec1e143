"""What runs come to: a row of figures for each drafter and K, measured beside predicted."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from speclib.cost import verify_ratio
from speclib.decode import Round, Stats

PLAIN = "plain"
PEER = "transformers"  # what the names of another library's ways begin with
NAN = float("nan")


@dataclass(frozen=True)
class Run:
    """One generation: the prompt's id and kind, who drafted, K (0 for plain decoding), and its rounds.

    drafter: "plain", a name that `race` was given, or a peer's ("transformers model"). A peer's rounds have tokens
    and seconds; what it drafted and how long that took is not known, so `drafted` is what it kept, and its `Row` has
    no figure that would need more.
    """

    prompt: str
    kind: str
    drafter: str
    K: int
    stats: Stats


@dataclass(frozen=True)
class Row:
    """What the runs of one drafter at one K come to (docs/words.md); NaN stands for what is not known.

    kind: of the prompts, "" for all. prompts: how many. accepted_at: acceptance at positions 1 … K. c: median seconds
    of the drafter in full rounds (those with K drafts) ÷ K ÷ the median plain step. v: v(K), median seconds of the
    target in full rounds ÷ the median plain step. speedup: plain ÷ speculative seconds per committed token, all
    prompts pooled; interval: 95 %, prompts drawn anew; ratios: each prompt's own, by its id.

    predicted: committed tokens ÷ Σ over rounds of (k_r·c + v(k_r)), where k_r is the number of drafts that the round
    really had and v(0) = 1. c and v are medians, and that is what makes it a prediction: with means, the sum would be
    the measured time itself, written differently. What can part the two is what medians leave out: passes that
    something disturbed, a draft's first feed of two tokens, texts that grow.
    Taught in notebook 05_sweep, section 'Predicted and measured'.
    """

    drafter: str
    K: int
    kind: str
    prompts: int
    tokens_per_second: float
    alpha_hat: float
    acceptance_rate: float
    mean_accepted_length: float
    accepted_at: list[float]
    c: float
    v: float
    predicted: float
    speedup: float
    interval: tuple[float, float]
    ratios: dict[str, float]


def table(runs: Iterable[Run], kind: str = "") -> list[Row]:
    """One `Row` for each drafter and K, over all prompts or those of one kind.

    Plain comes first, then drafters as they first come, K ascending. A run counts where its prompt's plain run is
    there, too, and where it has a round that counts (a peer's first does not).
    Taught in notebook 05_sweep, section 'Predicted and measured'.
    """
    runs = [run for run in runs if not kind or run.kind == kind]
    plain = [run for run in runs if run.drafter == PLAIN]
    measured = {run.prompt for run in plain}
    of: dict[str, dict[int, list[Run]]] = {PLAIN: {}}
    for run in runs:
        if run.prompt in measured and run.stats.rounds:
            of.setdefault(run.drafter, {}).setdefault(run.K, []).append(run)
    return [row for name, ks in of.items() for row in _rows(name, dict(sorted(ks.items())), plain, kind)]


def by_kind(runs: Iterable[Run]) -> dict[str, list[Row]]:
    """`table` for each kind of prompt, kinds as they first come."""
    runs = list(runs)
    return {kind: table(runs, kind) for kind in dict.fromkeys(run.kind for run in runs)}


def verify_seconds(runs: Iterable[Run]) -> dict[int, float]:
    """Median seconds of the target's pass by its number of tokens, over all rounds of runs; see `cost.verify_ratio`.

    A plain round is a pass over one token, a round with k drafts one over k + 1. Peers' rounds say nothing about it.
    Taught in notebook 05_sweep, section 'Predicted and measured'.
    """
    seconds: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for r in run.stats.rounds:
            seconds[r.drafted + 1].append(r.seconds_verify)
    return {n: statistics.median(seconds[n]) for n in sorted(seconds)}


def medians(drawn: NDArray[Any]) -> NDArray[Any]:
    """[times, n] → [times]."""
    return np.median(drawn, axis=1)


def bootstrap(
    values: ArrayLike, of: Callable[[NDArray[Any]], NDArray[Any]] = medians, times: int = 2_000
) -> tuple[float, float]:
    """A 95 % interval for a figure of the values, by drawing as many of them anew, `times` times.

    values: [n] or [n, m]. of: [times, n] or [times, n, m] → [times] figures. The draws have a seed, so the same values
    have the same interval. Source: Efron 1979. Taught in notebook 05_sweep, section 'How sure is it?'.
    """
    values = np.asarray(values, dtype=float)
    drawn = values[np.random.default_rng(0).integers(0, len(values), (times, len(values)))]
    low, high = np.quantile(of(drawn), [0.025, 0.975])
    return float(low), float(high)


def facts(row: Row) -> dict[str, Any]:
    """A row as a record holds it: by name, rounded to what a measurement is worth, None for what is not known."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return None if value != value else float(f"{value:.5g}")
        if isinstance(value, list | tuple):
            return [plain(x) for x in value]
        return {key: plain(x) for key, x in value.items()} if isinstance(value, dict) else value

    return plain(dataclasses.asdict(row))


def _rows(name: str, ks: dict[int, list[Run]], plain: list[Run], kind: str) -> list[Row]:
    step = statistics.median(r.seconds_verify for run in plain for r in run.stats.rounds) if plain else NAN
    # A pass over so many tokens takes the same time at whatever K: those of all K count. A round without drafts is a
    # plain step.
    passes = verify_seconds(run for runs in ks.values() for run in runs) | {1: step}
    return [_row(name, k, runs, plain, kind, passes) for k, runs in ks.items()]


def _row(name: str, k: int, runs: list[Run], plain: list[Run], kind: str, passes: dict[int, float]) -> Row:
    rounds = [r for run in runs for r in run.stats.rounds]
    pooled = Stats(rounds)
    # For each prompt: seconds and tokens, plain and this way.
    prompts = list(dict.fromkeys(run.prompt for run in runs))
    sums = np.array([[*_sums(plain, prompt), *_sums(runs, prompt)] for prompt in prompts])
    measured: dict[str, Any] = {
        "drafter": name,
        "K": k,
        "kind": kind,
        "prompts": len(prompts),
        "tokens_per_second": len(pooled.tokens) / pooled.seconds,
        "mean_accepted_length": pooled.mean_accepted_length,
        "speedup": float(_speedup(sums[None])[0]),
        "interval": bootstrap(sums, _speedup),
        "ratios": dict(zip(prompts, _speedup(sums[:, None]).tolist(), strict=True)),
    }
    if name.startswith(PEER):
        unknown = dict.fromkeys(("alpha_hat", "acceptance_rate", "c", "v", "predicted"), NAN)
        return Row(**measured, **unknown, accepted_at=[])
    full = [r for r in rounds if r.drafted == k] if k else []
    # A lookup may never find K tokens; then rounds with fewer say what a draft costs.
    steps = [r.seconds_draft / r.drafted for r in full or rounds if r.drafted]
    c = statistics.median(steps) / passes[1] if steps else NAN
    spent = sum(r.drafted * c + verify_ratio(passes, r.drafted) if r.drafted else 1.0 for r in rounds)
    return Row(
        **measured,
        alpha_hat=pooled.alpha_hat,
        acceptance_rate=pooled.acceptance_rate,
        accepted_at=[_accepted_at(rounds, i) for i in range(1, k + 1)],
        c=c,
        v=1.0 if k == 0 else passes[k + 1] / passes[1] if full else NAN,
        predicted=len(pooled.tokens) / spent,
    )


def _accepted_at(rounds: list[Round], i: int) -> float:
    drafted = [r for r in rounds if r.drafted >= i]
    return sum(r.accepted >= i for r in drafted) / len(drafted) if drafted else NAN


def _sums(runs: list[Run], prompt: str) -> tuple[float, int]:
    of = [run.stats for run in runs if run.prompt == prompt]
    return sum(s.seconds for s in of), sum(len(s.tokens) for s in of)


def _speedup(drawn: NDArray[Any]) -> NDArray[Any]:
    """[times, n, 4] seconds and tokens, plain and speculative → [times]: seconds per token, one over the other."""
    plain_seconds, plain_tokens, seconds, tokens = np.moveaxis(drawn.sum(axis=1), -1, 0)
    return (plain_seconds / plain_tokens) / (seconds / tokens)
