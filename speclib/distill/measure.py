"""Plain against speculative decoding with the new draft, taken in turns on the same prompts."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
from pathlib import Path
from typing import Any

import torch

from speclib.context import as_context
from speclib.decode import GREEDY, Stats, decode
from speclib.distributions import Rng, Sampling
from speclib.drafters import Drafter
from speclib.stopping import Stop

DRAWN = Sampling(temperature=0.7)


def host(dtype: torch.dtype) -> dict[str, Any]:
    """What a measurement was made on, without names or paths: CPU or GPU, cores, threads, torch, dtype, load."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        facts = dict(line.split(":", 1) for line in cpuinfo.read_text().split("\n\n")[0].splitlines() if ":" in line)
        facts = {key.strip(): value.strip() for key, value in facts.items()}
        name = f"{facts.get('model name', name)} (family {facts.get('cpu family')}, model {facts.get('model')})"
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "load_before": load(),
    }


def load() -> float | None:
    """How many processes wanted to run in the last minute, where the system tells."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def prompts_of(file: Path) -> list[dict[str, str]]:
    """A file of prompts, one JSON object a line: id, kind, prompt."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def race(
    pair: Any,
    prompts: list[dict[str, str]],
    drafters: dict[str, Drafter],
    new: int = 128,
    ks: tuple[int, ...] = (1, 2, 3, 4, 5),
    sampling: Sampling = GREEDY,
) -> dict[str, Any]:
    """Speculation by each drafter at each K against plain decoding, prompt by prompt in turns; prefill is left out.

    Returns plain tokens per second, milliseconds of a target step, and rows: drafter, K, and what `_row` finds.
    """
    target = as_context(pair.target)
    stop = Stop(new, eos=pair.eos_ids)
    ways = {("", 0): None} | {(name, k): drafter for name, drafter in drafters.items() for k in ks}
    runs: dict[tuple[str, int], list[Stats]] = {way: [] for way in ways}
    for i, prompt in enumerate([prompts[0], *prompts]):
        for (name, k), drafter in ways.items():
            target.rollback(0)
            ids = pair.chat_ids(prompt["prompt"])
            stats = Stats(list(decode(target, drafter, ids, k=k, sampling=sampling, stop=stop, rng=Rng(0))))
            if i:  # the first passes are slower, and not counted
                runs[name, k].append(stats)
    plain = runs.pop(("", 0))
    steps = [r.seconds_verify for s in plain for r in s.rounds]
    kinds = [prompt["kind"] for prompt in prompts]
    return {
        "temperature": sampling.temperature,
        "plain tokens/s": round(sum(len(s.tokens) for s in plain) / sum(s.seconds for s in plain), 2),
        "target step, ms": round(1000 * statistics.median(steps), 2),
        "rows": [{"drafter": name, "K": k} | _row(k, stats, plain, steps, kinds) for (name, k), stats in runs.items()],
    }


def _row(k: int, runs: list[Stats], plain: list[Stats], steps: list[float], kinds: list[str]) -> dict[str, Any]:
    """α̂ (over all, and by kind), AL, acceptance at each position, c, v, tokens per second, and the speedup: the median
    over prompts of plain ÷ speculative seconds per token, with a 95 % bootstrap interval. `calm` is c and v from the
    quickest tenth of the steps instead of the median: what a machine with nothing else to do comes near."""
    rounds = [r for s in runs for r in s.rounds]
    full = [r for r in rounds if r.drafted == k] or rounds
    pooled = Stats(rounds)
    ratios = [p.seconds / len(p.tokens) * len(s.tokens) / s.seconds for p, s in zip(plain, runs, strict=True)]

    def cost(quantile: float) -> tuple[float, float]:
        drafting, verifying, step = (
            sorted(seconds)[int(quantile * len(seconds))]
            for seconds in ([r.seconds_draft / k for r in full], [r.seconds_verify for r in full], steps)
        )
        return round(drafting / step, 4), round(verifying / step, 4)

    of_kind = {
        name: [r for s, kind in zip(runs, kinds, strict=True) if kind == name for r in s.rounds] for name in kinds
    }
    return {
        "alpha_hat": round(pooled.alpha_hat, 4),
        "alpha_hat by kind": {name: round(Stats(of).alpha_hat, 3) for name, of in of_kind.items()},
        "AL": round(pooled.mean_accepted_length, 3),
        "accepted at": [round(sum(r.accepted > i for r in full) / len(full), 3) for i in range(k)],
        "c": cost(0.5)[0],
        "v": cost(0.5)[1],
        "calm": cost(0.1),
        "tokens/s": round(len(pooled.tokens) / pooled.seconds, 2),
        "speedup": round(statistics.median(ratios), 3),
        "interval": [round(x, 3) for x in bootstrap(ratios)],
    }


def bootstrap(values: list[float], times: int = 2_000) -> tuple[float, float]:
    """A 95 % interval for the median of values, by drawing them anew `times` times."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(times))
    return medians[int(0.025 * times)], medians[int(0.975 * times)]
