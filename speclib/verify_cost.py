"""`speclib verify-cost`: everything of notebook 02 measured in one go, as a record, and records side by side."""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from speclib import cost, pairs, parts, records, shapes
from speclib.context import positions
from speclib.cost import SIZES, Timing
from speclib.lean import hurry
from speclib.records import Record
from speclib.timing import existing

KIND = "verify-cost"
BATCH_TRIALS = 3
CLOSE = 0.05  # how far apart the two clocks of a GPU may be


def measure(
    models: dict[str, PreTrainedModel],
    labels: dict[str, str],
    what: str,
    machine: Record,
    *,
    context: int = records.CONTEXT,
    trials: int = 10,
    batch: bool = True,
    progress: Any = None,
) -> Record:
    """Measure v, c, the machine's own speeds and the grid of batches, and return them as a record.

    models: "target" and, if there is one, "draft". labels: what they are, for people. what: the pair or shape.
    machine: of `records.machine`, asked before anything was loaded, so that the load it tells of is that of others.
    context: cached tokens before each pass. trials: passes that count. batch: also the target's grid of B × n, unless
    memory is short, which is said on stderr. progress: wraps an iterator, as tqdm does (iterable, total=…).
    ValueError: bad numbers, a context that does not fit.
    Taught in notebook 02_verify_cost, section 'Other machines'.
    """
    target = models["target"]
    vocab = min(m.config.get_text_config(decoder=True).vocab_size for m in models.values())
    # Ids that are far apart, so that no row of the embedding is still in a cache from the one before.
    prompt = [(7919 * i) % vocab for i in range(context)]
    watched = progress or (lambda passes, total: passes)
    verify = dict(watched(cost.verify_times(models, prompt, SIZES, trials), total=len(models) * len(SIZES) * trials))
    record: Record = {
        "kind": KIND,
        "when": records.now(),
        "what": what,
        "machine": machine,
        "device": target.device.type,
        "dtype": str(target.dtype).removeprefix("torch."),
        "context": context,
        "trials": trials,
        "bandwidth": cost.bandwidth(target.device),
        "peak": cost.peak_flops(target.dtype, target.device),
        "models": {role: _model(m, labels[role], prompt, _of(verify, role)) for role, m in models.items()},
    }
    if "draft" in models:
        of_target, of_draft = cost.round_times(target, models["draft"], prompt, trials=trials)
        sizes = [cost.step_bytes(models[r]) + cost.cache_bytes(models[r], context) for r in ("draft", "target")]
        record["c"] = {
            "measured": of_draft.median / of_target.median,
            "from_bytes": sizes[0] / sizes[1],
            "target_step": _timing(of_target),
            "draft_step": _timing(of_draft),
        }
    if batch:
        try:
            grid = dict(watched(cost.batch_grid(target, prompt, trials=BATCH_TRIALS), total=28 * BATCH_TRIALS))
            record["batch"] = [{"sequences": b, "n": n, **_timing(t)} for (b, n), t in grid.items()]
        except pairs.PairError as error:
            print(f"without the grid of batches: {error}", file=sys.stderr)
    if target.device.type == "cuda":
        record["timers"] = _timers(target, prompt, trials)
    return record


def run(
    pair: str,
    shape: str | None,
    context: int,
    trials: int,
    device: str | None,
    name: str | None,
    out: Path,
    compile: bool = False,
) -> None:
    """Load or build the models, measure with progress bars on stderr, write the record and print it.

    pair, device, compile: as `pairs.load`; a compiled forward reads one sequence, so the grid of batches is left out.
    shape: as `shapes.names`, in place of a pair. name: as `records.machine`. out: the folder of records. Others: as
    `measure`.
    PairError: what is missing. ValueError: bad input, before anything is loaded.
    Taught in notebook 02_verify_cost, section 'Other machines'.
    """
    cost.at_least_one(context=context, trials=trials)
    where = pairs.default_device() if device is None else existing(device)
    if shape is not None:
        labels = dict(zip(("target", "draft"), shapes.names(shape), strict=False))
        _check_fit(context, *map(shapes.config, labels.values()))
    records.check_folder(out)
    machine = records.machine(where, name)
    if shape is None:
        loaded = pairs.load(pair, device=where, compile=compile)
        _check_fit(context, *map(AutoConfig.from_pretrained, filter(None, loaded.folders)))
        models, labels = {"target": loaded.target}, dict(zip(("target", "draft"), loaded.labels, strict=True))
        try:
            models["draft"] = loaded.draft
        except pairs.PairError as error:
            print(f"without a draft: {error}", file=sys.stderr)
    else:
        models = {role: shapes.build(s, pairs.default_dtype(where)[0], where) for role, s in labels.items()}
        labels = {role: f"shape {s}, random weights" for role, s in labels.items()}
        for model in models.values() if compile else ():
            hurry(model)
    what = f"{shape or pair}-compiled" if compile else shape or pair
    progress = functools.partial(tqdm, unit=" passes", leave=False)
    more = {"context": context, "trials": trials, "batch": not compile, "progress": progress}
    record = measure(models, labels, what, machine, **more)
    path = records.write(record, out)
    print(*lines(record), path, sep="\n")


def medians(record: Record, role: str = "target") -> dict[int, float]:
    """Seconds by number of tokens, of one model of a record."""
    return {row["n"]: row["median"] for row in record["models"][role]["verify"]}


def lines(record: Record) -> Iterator[str]:
    """A record in words, a line each, for the terminal."""
    at, on = record["machine"], record["device"]
    yield f"{at['host']}: {at['gpu'] or at['cpu']}, {on}, {record['dtype']}, {at['threads']} threads"
    yield (
        f"memory is read at {record['bandwidth'] / 1e9:.1f} GB/s, "
        f"a large matrix product reaches {record['peak'] / 1e12:.2f} TFLOP/s"
    )
    for role, model in record["models"].items():
        found = medians(record, role)
        ms = ", ".join(f"{n}: {1000 * s:.2f}" for n, s in found.items())
        reached = model["bytes_per_pass"] / found[1]
        yield f"{role} ({model['label']}), ms by tokens in a pass: {ms}"
        yield (
            f"  v(7) = {cost.verify_ratio(found, 7):.2f}; a step reads {model['bytes_per_pass'] / 1e9:.3f} GB "
            f"and thus reaches {reached / 1e9:.1f} GB/s"
        )
        split = ", ".join(f"{part} {1000 * seconds:.2f}" for part, seconds in model["parts"].items())
        yield f"  of a one-token step, in ms: {split}"
    if "c" in record:
        yield f"c = {record['c']['measured']:.3f} measured, {record['c']['from_bytes']:.3f} from bytes"
    if "timers" in record:
        ratio = record["timers"]["events_over_wall"]
        apart = "" if abs(ratio - 1) <= CLOSE else ", more than 5 % apart: free the machine, and measure again"
        yield f"the GPU's own clock says {ratio:.3f} of the wall's{apart}"


def compare(paths: list[Path], folder: Path | str) -> Path:
    """Write one figure of several records, as a page that needs no network, and return where it is.

    ValueError: a file that is no such record.
    Taught in notebook 02_verify_cost, section 'Other machines'.
    """
    import plotly.graph_objects as go

    from speclib.figures.machines import machines_figure

    if not paths:
        raise ValueError("nothing to compare: name at least one results/verify-cost-*.json")
    found = []
    for path in paths:
        found.append(records.read(path, KIND))
        try:
            machines_figure(found[-1:])
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{path} lacks what is compared: name a whole record of speclib verify-cost") from error
    figure = go.Figure(machines_figure(found))
    out = Path(folder) / "verify-cost-compare.html"
    with records.told(folder):
        out.parent.mkdir(parents=True, exist_ok=True)
        records.put(out, figure.to_html(config={"displayModeBar": False}))
    return out


def _check_fit(context: int, *configs: PretrainedConfig) -> None:
    for config in configs:
        cost.check_fit(context, SIZES[-1], positions(config.get_text_config(decoder=True)))


def _of(times: dict[tuple[str, int], Timing], role: str) -> dict[int, Timing]:
    return {n: timing for (name, n), timing in times.items() if name == role}


def _model(model: PreTrainedModel, label: str, prompt: list[int], times: dict[int, Timing]) -> Record:
    context = len(prompt)
    return {
        "label": label,
        "parameters": model.num_parameters(),
        "bytes": cost.model_bytes(model),
        "step_bytes": cost.step_bytes(model),
        "bytes_per_pass": cost.step_bytes(model) + cost.cache_bytes(model, context),
        "flops_per_token": cost.flops_per_token(model, context),
        "verify": [{"n": n, **_timing(timing)} for n, timing in times.items()],
        "parts": parts.step_parts(model, prompt),
    }


def _timing(timing: Timing) -> Record:
    low, high = timing.spread
    return {"median": timing.median, "low": low, "high": high, "passes": len(timing.seconds)}


def _timers(target: PreTrainedModel, prompt: list[int], trials: int) -> Record:
    by_events, by_wall = cost.EventTimer(target.device), cost.WallTimer(target.device)
    inner: list[float] = []
    # One around the other, so that both time the same passes.
    wall = cost.time_verify(
        target, prompt, 1, trials, timer=lambda work: by_wall(lambda: inner.append(by_events(work)))
    )
    events = statistics.median(inner[-trials:])
    return {"wall": wall, "events": events, "events_over_wall": events / wall}
