"""How much of a round is not spent inside the models' forwards: what the loop itself costs.

Run it alone on the machine: `python tools/loop_share.py`. It copies a text with lookup, K = 4, on the default
target, greedy and sampled, and writes results/loop-share.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from speclib import pairs, records
from speclib.context import as_context
from speclib.decode import GREEDY, decode
from speclib.distributions import Rng, Sampling
from speclib.drafters import LookupDrafter
from speclib.stopping import Stop

TEXT = (
    "Repeat this text word for word: The lighthouse keeper wrote down every ship that passed, its flag, its "
    "heading and the hour, and at the end of each month he sent the list to the harbour master in the town."
)
SETTINGS = {"greedy": GREEDY, "temperature 0.7, top-p 0.9": Sampling(temperature=0.7, top_p=0.9)}
RUNS, TOKENS = 7, 96


def share(pair: pairs.Pair, sampling: Sampling, seed: int) -> tuple[float, float]:
    """One generation: the share of its rounds outside the forward, and seconds per round."""
    inside = 0.0

    def timed(work: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: object, **more: object) -> Tensor:
            nonlocal inside
            started = time.perf_counter()
            out = work(*arguments, **more)
            inside += time.perf_counter() - started
            return out

        return call

    context = as_context(pair.target)
    prompt = pair.chat_ids(TEXT) + pair.tokenizer.encode(TEXT[33:90])
    rounds = decode(context, LookupDrafter(), prompt, sampling=sampling, stop=Stop(TOKENS), rng=Rng(seed))
    first = next(rounds)  # it holds the prefill's share of nothing, and the first call's one-off costs
    # Whatever makes the pass, compiled or not, up to logits in the model's own precision.
    holder, name = (context, "_pass") if pair.compile else (pair.target, "forward")
    own = getattr(holder, name)
    setattr(holder, name, timed(own))
    try:
        rest = list(rounds)
    finally:
        setattr(holder, name, own)
    seconds = sum(r.seconds_draft + r.seconds_verify for r in rest)
    assert first.tokens and len(rest) > 3
    return 1 - inside / seconds, seconds / len(rest)


def main() -> None:
    """Measure, print, and keep the record."""
    pair, compiled = pairs.load("smol"), pairs.load("smol", compile=True)
    record = {"torch": torch.__version__, "dtype": str(pair.dtype), "threads": torch.get_num_threads(), "k": 4}
    for name, sampling in SETTINGS.items():
        for of, what in ((pair, name), (compiled, f"{name}, compiled")):
            runs = [share(of, sampling, seed) for seed in range(RUNS + 1)][1:]
            shares = [s for s, _ in runs]
            record[what] = {
                "share outside the forward": statistics.median(shares),
                "lowest and highest": [min(shares), max(shares)],
                "milliseconds per round": 1e3 * statistics.median(seconds for _, seconds in runs),
                "runs": RUNS,
            }
            print(f"{what}: {100 * record[what]['share outside the forward']:.1f} % of a round is the loop's own")
    path = Path(__file__).parent.parent / "results" / "loop-share.json"
    path.parent.mkdir(exist_ok=True)
    records.put(path, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
