"""What a step costs on this machine: passes over n tokens, for one sequence or several, v(K) and c."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from speclib.context import Context, LanguageModel, as_context, shared
from speclib.roofline import (
    H200,
    SPARK,
    Machine,
    cache_bytes,
    ceiling_tokens_per_second,
    flops_per_token,
    free_memory,
    model_bytes,
    ridge_point,
    roofline,
    step_bytes,
)
from speclib.timing import MIB, EventTimer, Timer, Timing, WallTimer, at_least_one, bandwidth, interleave, peak_flops
from speclib.weights import PairError

# What belongs together for the reader, in one place; it is written in three files only to be read in one sitting.
__all__ = ["H200", "MIB", "SIZES", "SPARK", "EventTimer", "Machine", "Timing", "WallTimer", "bandwidth", "batch_grid"]
__all__ += ["cache_bytes", "ceiling_tokens_per_second", "draft_cost_ratio", "flops_per_token", "interleave"]
__all__ += ["model_bytes", "peak_flops", "ridge_point", "roofline", "round_times", "step_bytes", "step_cost"]
__all__ += ["time_verify", "timer_for", "verify_ratio", "verify_times"]

SIZES = (1, 2, 4, 8, 16, 32, 64)
Model = LanguageModel | PreTrainedModel


def timer_for(model: Model) -> Timer:
    """A wall timer that waits for the device on which a model is.

    Taught in notebook 02_verify_cost, section 'Time one pass'.
    """
    device = getattr(getattr(model, "model", model), "device", None)
    return WallTimer(torch.device(device or "cpu"))


def time_verify(
    model: Model,
    prompt_ids: list[int],
    n: int,
    trials: int = 10,
    *,
    spread: bool = False,
    timer: Timer | None = None,
) -> float | Timing:
    """Median seconds of one pass over n new tokens on top of a cached prompt.

    model: of transformers, or a context. prompt_ids: cached once; the cache is cut back to them after every
    pass. trials: passes that count, after one that does not. spread: return the whole `Timing`. timer: None =
    `timer_for(model)`. ValueError: n or trials below 1, an empty prompt, more tokens than the model has positions.
    Taught in notebook 02_verify_cost, section 'Time one pass'.
    """
    return step_cost(model, prompt_ids, n, trials=trials, spread=spread, timer=timer)


def step_cost(
    model: Model,
    prompt_ids: list[int],
    n: int = 1,
    batch: int = 1,
    trials: int = 10,
    *,
    spread: bool = False,
    timer: Timer | None = None,
) -> float | Timing:
    """Median seconds of one pass over `batch` sequences of n new tokens each, each on its own cached prompt.

    batch above 1 needs a model of transformers. ValueError: as `time_verify`, and batch below 1.
    Taught in notebook 02_verify_cost, section 'Many users'.
    """
    context = _context(model, batch)
    timing = dict(interleave({n: _pass(context, prompt_ids, n)}, trials, timer or timer_for(context)))[n]
    return timing if spread else timing.median


def verify_times(
    models: Mapping[str, Model],
    prompt_ids: list[int],
    sizes: Sequence[int] = SIZES,
    trials: int = 10,
    timer: Timer | None = None,
) -> Iterator[tuple[tuple[str, int], Timing]]:
    """Time passes over each number of tokens for each model, all interleaved, and yield after every pass.

    Yields (name, n) and its Timing so far. Going through all sizes before the second pass of any lets a noisy moment
    hit all alike; going through the models at each size lets each find the caches as the other leaves them.
    ValueError: as `time_verify`, and nothing to time, before anything is timed.
    Taught in notebook 02_verify_cost, section 'Measure'.
    """
    if not models or not sizes:
        raise ValueError("there is nothing to time: name at least one model and one number of tokens")
    contexts = {name: as_context(model) for name, model in models.items()}
    jobs = {(name, n): _pass(contexts[name], prompt_ids, n) for n, name in itertools.product(sizes, contexts)}
    # Where a cache has to grow, what `graphs` recorded over it is lost: so it grows before the uncounted passes.
    for name in contexts:
        work, undo = jobs[name, max(sizes)]
        work()
        undo()
    yield from interleave(jobs, trials, timer or timer_for(next(iter(contexts.values()))))


def batch_grid(
    model: PreTrainedModel, prompt_ids: list[int], most: int = 64, trials: int = 5, timer: Timer | None = None
) -> Iterator[tuple[tuple[int, int], Timing]]:
    """Time B sequences of n tokens for the powers of two with B × n ≤ most; yields (B, n) and its Timing so far.

    Always by transformers' forward, also for one sequence, so that all B compare. Each B has its own caches: B times
    the prompt, all kept until the last pass. PairError: not enough free memory for them.
    Taught in notebook 02_verify_cost, section 'Many users'.
    """
    powers = [2**i for i in range(most.bit_length())]
    contexts = {batch: _wide(model, batch) for batch in powers}
    need = sum(cache_bytes(model, b * len(prompt_ids) + most) for b in powers)
    if need > (free := free_memory(model.device)):
        short = f"need {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {model.device}"
        raise PairError(f"{sum(powers)} caches of {len(prompt_ids)} tokens {short}: take a shorter prompt")
    jobs = {(b, n): _pass(contexts[b], prompt_ids, n) for b in powers for n in powers if b * n <= most}
    yield from interleave(jobs, trials, timer or timer_for(model))


def round_times(
    target: Model, draft: Model, prompt_ids: list[int], k: int = 4, trials: int = 10, timer: Timer | None = None
) -> tuple[Timing, Timing]:
    """Time one-token steps as they alternate in a round: one of the target, then k of the draft in a row.

    Returns the target's Timing and the draft's, the latter in seconds per step: of a round's k draft steps the first
    finds the caches full of the target's weights, and the others do not. ValueError: as `time_verify`, and k below 1.
    Taught in notebook 02_verify_cost, section 'c, the price of a guess'.
    """
    at_least_one(k=k)
    contexts = as_context(target), as_context(draft)
    timer = timer or timer_for(contexts[0])
    jobs = {"target": _pass(contexts[0], prompt_ids, 1), "draft": _pass(contexts[1], prompt_ids, 1, repeat=k)}
    found = dict(interleave(jobs, trials, timer))
    return found["target"], Timing(tuple(s / k for s in found["draft"].seconds))


def draft_cost_ratio(
    target: Model, draft: Model, prompt_ids: list[int], k: int = 4, trials: int = 10, timer: Timer | None = None
) -> float:
    """c: seconds of one draft step ÷ seconds of one target step on one token, timed as `round_times` does.

    Source: Leviathan et al. 2023, section 3.3. Taught in notebook 02_verify_cost, section 'c, the price of a guess'.
    """
    of_target, of_draft = round_times(target, draft, prompt_ids, k, trials, timer)
    return of_draft.median / of_target.median


def verify_ratio(seconds: Mapping[int, float], k: float) -> float:
    """v(k): seconds of a pass over k + 1 tokens ÷ seconds of one over 1.

    seconds: measured medians by number of tokens, that of 1 among them; between two of them a straight line is taken.
    ValueError when 1 is missing or k + 1 lies outside of what was measured.
    Taught in notebook 02_verify_cost, section 'Measure'.
    """
    n, sizes = k + 1, sorted(seconds)
    if 1 not in seconds or not 1 <= n <= sizes[-1]:
        raise ValueError(f"v({k:g}) needs passes over 1 and over {n:g} tokens or more, and there are {sizes}")
    below = max(size for size in sizes if size <= n)
    above = min(size for size in sizes if size >= n)
    part = (n - below) / (above - below) if above > below else 0
    return (seconds[below] + part * (seconds[above] - seconds[below])) / seconds[1]


def check_fit(prompt: int, more: int, positions: int) -> None:
    """ValueError, with what to do, unless so many tokens and so many more fit into a model's positions."""
    if prompt + more > positions:
        raise ValueError(
            f"a prompt of {prompt} tokens and {more} more do not fit into the model's {positions} positions: "
            "shorten the prompt or time fewer tokens"
        )


class _Copies:
    """A model that makes each pass for several copies of its input at once, over a cache as wide."""

    def __init__(self, model: PreTrainedModel, batch: int):
        self._model, self._batch = model, batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, input_ids: torch.Tensor, **more: Any) -> Any:
        (cache,) = (x for x in more.values() if isinstance(x, DynamicCache))
        if cache.get_seq_length():
            return self._model(input_ids=input_ids.expand(self._batch, -1), **more)
        # The prompt is the same for all: read once, its cache is then copied.
        out = self._model(input_ids=input_ids, **more)
        cache.batch_repeat_interleave(self._batch)
        return out


def _context(model: Model, batch: int) -> LanguageModel:
    at_least_one(batch=batch)
    return as_context(model) if batch == 1 else _wide(model, batch)


def _wide(model: Model, batch: int) -> Context:
    if hasattr(model, "rollback"):
        raise ValueError("a batch needs the transformers model itself, not a context, which holds one sequence")
    return Context(_Copies(model, batch))


def _pass(
    context: LanguageModel, prompt_ids: list[int], n: int, repeat: int = 1
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A job for `interleave`: `repeat` passes over n tokens behind the cached prompt, then the cut back."""
    at_least_one(n=n)
    if not prompt_ids:
        raise ValueError("the prompt is empty: give at least one token, such as the model's BOS")
    check_fit(len(prompt_ids), n * repeat, context.max_length)
    # Which tokens they are makes no difference to the time.
    tokens = list(itertools.islice(itertools.cycle(prompt_ids), n))

    def cover() -> None:
        context.rollback(shared(context.tokens, prompt_ids))
        if missing := prompt_ids[len(context.tokens) :]:
            context.feed(missing, rows=1)

    def work() -> None:
        for _ in range(repeat):
            context.feed(tokens)

    cover()
    return work, cover
