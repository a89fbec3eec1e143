"""How much of a round is not spent inside the models' forwards: what the loop itself costs.

Run it alone on the machine: `python tools/loop_share.py`. It copies a text with lookup, K = 4, on the default
target, greedy and sampled, and writes results/loop-share.json.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch

from speclib import pairs
from speclib.context import Context
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
    inside, started = 0.0, 0.0

    def before(*_: object) -> None:
        nonlocal started
        started = time.perf_counter()

    def after(*_: object) -> None:
        nonlocal inside
        inside += time.perf_counter() - started

    context = Context(pair.target)
    prompt = pair.chat_ids(TEXT) + pair.tokenizer.encode(TEXT[33:90])
    rounds = decode(context, LookupDrafter(), prompt, sampling=sampling, stop=Stop(TOKENS), rng=Rng(seed))
    first = next(rounds)  # it holds the prefill's share of nothing, and the first call's one-off costs
    hooks = pair.target.register_forward_pre_hook(before), pair.target.register_forward_hook(after)
    try:
        rest = list(rounds)
    finally:
        for hook in hooks:
            hook.remove()
    seconds = sum(r.seconds_draft + r.seconds_verify for r in rest)
    assert first.tokens and len(rest) > 3
    return 1 - inside / seconds, seconds / len(rest)


def main() -> None:
    """Measure, print, and keep the record."""
    pair = pairs.load("smol")
    record = {"torch": torch.__version__, "dtype": str(pair.dtype), "threads": torch.get_num_threads(), "k": 4}
    for name, sampling in SETTINGS.items():
        runs = [share(pair, sampling, seed) for seed in range(RUNS + 1)][1:]
        shares = [s for s, _ in runs]
        record[name] = {
            "share outside the forward": statistics.median(shares),
            "lowest and highest": [min(shares), max(shares)],
            "milliseconds per round": 1e3 * statistics.median(seconds for _, seconds in runs),
            "runs": RUNS,
        }
        print(f"{name}: {100 * record[name]['share outside the forward']:.1f} % of a round is the loop's own")
    path = Path(__file__).parent.parent / "results" / "loop-share.json"
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    main()
