"""Where the time of one step goes: products with the weights, attention, and all that lies around them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from speclib.context import as_context
from speclib.cost import Model, time_verify, timer_for
from speclib.timing import Timer, at_least_one

PRODUCTS = {"mm", "addmm", "linear", "matmul", "mv", "_linear_pointwise"}
ATTENTION = {"bmm", "baddbmm", "_softmax"}
NAMES = ("weights", "attention", "everything else")


class OpClock(TorchDispatchMode):
    """While it is entered, the seconds of torch's operations are added up in `seconds`, by part.

    begin: what it takes to start any operation, however small; it is left out, as it is no part's own.
    Taught in notebook 02_verify_cost, section 'Where a draft step goes'.
    """

    def __init__(self, timer: Timer, begin: float):
        super().__init__()
        self._timer, self._begin = timer, begin
        self.seconds: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = func.__name__.split(".")[0], []
        spent = self._timer(lambda: result.append(func(*args, **(kwargs or {}))))
        spent = max(0.0, spent - self._begin)
        if name in PRODUCTS:
            self.seconds["weights"] += spent
        elif name in ATTENTION or "attention" in name:
            self.seconds["attention"] += spent
        return result[0]


def step_parts(model: Model, prompt_ids: list[int], trials: int = 5, timer: Timer | None = None) -> dict[str, float]:
    """Seconds of a one-token step by part; together they are the median of the whole step, timed by itself.

    weights: products of the token's vectors with the weight matrices, which is where those are read. attention: the
    look at the KV cache. everything else: norms, rotations, copies, and for every operation the time that Python and
    the libraries take to start it. A pass that is replayed (`graphs.Graphs`) is timed so, and clocked unrecorded.
    model, prompt_ids, trials, timer: as `cost.time_verify`.
    Taught in notebook 02_verify_cost, section 'Where a draft step goes'.
    """
    at_least_one(trials=trials)
    context = as_context(model)
    timer = timer or timer_for(context)
    number = torch.zeros(1, device=getattr(getattr(context, "model", None), "device", None))
    begin = statistics.median(timer(lambda: number.add_(1)) for _ in range(20))
    whole, found = [], []
    # In turn, since what disturbs the machine is to disturb both.
    for _ in range(trials):
        whole.append(time_verify(context, prompt_ids, 1, 1, timer=timer))
        with OpClock(timer, begin) as clock:
            context.feed(prompt_ids[:1])
        context.rollback(len(prompt_ids))
        found.append(clock.seconds)
    parts = {name: statistics.median(seconds[name] for seconds in found) for name in NAMES[:2]}
    return parts | {NAMES[2]: max(0.0, statistics.median(whole) - sum(parts.values()))}
