"""What the bench leaves behind: a record in results/, the lines on the terminal, and what the command line asks for."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import torch
from tqdm import tqdm

from speclib import bench, bench_trace, pairs, records, scoreboard, weights
from speclib.bench import Load, Row, Run, Server
from speclib.bench_trace import Trace, decoding, ttft
from speclib.records import Record

__all__ = ["main", "record"]

KIND = "bench"


def main(
    base_url: str,
    model: str | None,
    prompts: Path,
    rows: list[Row],
    load: Load,
    *,
    precision: str | None = None,
    change: str = "",
    api_key_env: str | None = None,
    tokenizer: str | None = None,
    name: str | None = None,
    out: Path = records.RESULTS,
    as_json: bool = False,
    board: bool = True,
) -> int:
    """Measure with progress on stderr, write the record, bring the scoreboard up to date, print; the exit status.

    model: None = the only one that the server has. precision: None = on this machine the one that pairs are loaded in.
    tokenizer: as `counter`. name: of the machine; None = its host name, or the server's where it is another one.
    as_json: the record on stdout in place of lines. A run that ended early but brought something is written; its status
    is 130 when it was interrupted and 1 when the server went away. ValueError: bad input, before anything is written.
    """
    found = bench.read_prompts(prompts)
    server = Server(base_url, model or "", _key(api_key_env))
    if not model:
        server = dataclasses.replace(server, model=_only_model(server))
    count = counter(tokenizer) if tokenizer else None
    progress = functools.partial(tqdm, unit=" requests", leave=False)
    run = bench.run(server, rows, found, load, count=count, progress=progress)
    if not _some(run):
        print("interrupted before the first request was over: nothing is written", file=sys.stderr)
        return 130
    told = precision or (_here() if server.local else "not told")
    written = record(run, server, load, prompts=prompts, precision=told, change=change, name=name)
    path = records.write(written, out)
    if as_json:
        print(json.dumps(written, indent=1, ensure_ascii=False))
    else:
        print(*lines(run), path, sep="\n")
    # The scoreboard is made from the course's own folder of records, and from no other.
    if board and Path(out).resolve() == records.RESULTS:
        scoreboard.write(records.RESULTS, scoreboard.PATH)
    return 0 if run.complete else 130 if run.why == "interrupted" else 1


def record(
    run: Run, server: Server, load: Load, *, prompts: Path, precision: str, change: str = "", name: str | None = None
) -> Record:
    """The run as a record: a row for each of the run's, with the summary and the requests of each concurrency."""
    # Of another machine only its name is known from here.
    machine = records.machine(pairs.default_device(), name) if server.local else {"host": name or server.url.host}
    summaries = run.summaries()
    return {
        "kind": KIND,
        "when": records.now(),
        "commit": commit(records.RESULTS.parent),
        "what": f"{server.model.rsplit('/', 1)[-1]} {run.rows[0].label}",
        "machine": machine,
        "dtype": precision,
        "model": server.model,
        "prompts": Path(prompts).name,
        "load": {k: v for k, v in dataclasses.asdict(load).items() if k != "concurrency"},
        "complete": run.complete,
        "rows": [
            {
                "target": row.label,
                "drafter": row.drafter,
                "k": row.k,
                "change": change if i == 0 else "",
                "levels": [
                    {"concurrency": c, **_rounded(found), "requests": _requests(run.traces[row.label][c])}
                    for c, found in summaries[row.label].items()
                ],
            }
            for i, row in enumerate(run.rows)
        ],
    }


def lines(run: Run) -> Iterator[str]:
    """A run in words for the terminal: a line for each row and concurrency, and the speedup."""

    def ms(spread: dict[str, float] | None) -> str:
        return " / ".join(f"{1000 * spread[p]:,.0f}" for p in ("p50", "p95", "p99")) if spread else "not known"

    yield "times in milliseconds: p50 / p95 / p99"
    often = max((Counter(t.prompt for t in traces).most_common(1)[0][1] for traces in _some(run)), default=0)
    if often > 1:
        yield f"each prompt was sent up to {often} times: what a server keeps of a prompt shortens the later TTFTs"
    for label, of in run.summaries().items():
        for c, s in of.items():
            speed = "not known" if s["tokens_per_second"] is None else f"{s['tokens_per_second']:.1f}"
            each = s["tokens_per_second_each"]
            yield (
                f"{label}, concurrency {c}: {speed} tokens/s in all"
                + (f", {each['p50']:.1f} each" if each else "")
                + f"; TTFT {ms(s['ttft'])}; TPOT {ms(s['tpot'])}; between tokens {ms(s['inter_token'])}"
            )
            if told := s["acceptance"]:
                known = {
                    "α̂": told["alpha_hat"],
                    "acceptance rate": told["acceptance_rate"],
                    "AL": told["accepted_length"],
                }
                yield "  " + ", ".join(f"{word} {value:.2f}" for word, value in known.items() if value is not None)
            if set(s["tokens_from"]) - {"usage"}:
                yield f"  tokens counted by: {', '.join(f'{who} {n}' for who, n in s['tokens_from'].items())}"
            if "taken for one token" in s["first_chunk"]:
                yield "  TPOT takes the first chunk for one token: --tokenizer counts it"
            kinds = bench_trace.by_kind(run.traces[label][c])
            known = {kind: k["seconds_per_token"] for kind, k in kinds.items() if k["seconds_per_token"]}
            if c == 1 and len(known) > 1:
                speeds = ", ".join(f"{kind} {1 / seconds:.1f}" for kind, seconds in known.items())
                yield f"  tokens/s from first to last content, by kind: {speeds}"
            for error, n in s["errors"].items():
                first = next(t for t in run.traces[label][c] if t.error == error)
                yield f"  {n} of {s['requests']} failed, {error}: {first.detail}"
    if len(run.rows) > 1 and 1 in run.traces[run.rows[0].label]:
        fast, plain = (row.label for row in run.rows[:2])
        if gain := bench.gain(run, plain, fast):
            prompts = len({t.prompt for t in run.traces[fast][1]})
            sure = f"{gain[1]:.2f} to {gain[2]:.2f}, 95 %" if prompts > 1 else "one prompt, so no interval"
            yield f"{fast} is {gain[0]:.2f} × {plain} ({sure}) by seconds per token at 1"
            if gain[0] < 1:
                yield f"  so {fast} is slower than {plain}: see α̂ and AL above, and c in notebook 02"
    if not run.complete:
        yield f"{run.why}: above is what was done until then"


def _some(run: Run) -> list[list[Trace]]:
    return [traces for of in run.traces.values() for traces in of.values() if traces]


def counter(name: str) -> Callable[[str], int]:
    """Tokens of a text, by the tokenizer of a preset's target, a folder, or a hub name that was fetched before.

    ValueError: it is not on this machine. PairError: it cannot be read.
    """
    preset = pairs.PRESETS.get(name)
    folder = weights.Folder(Path(name), name) if Path(name).is_dir() else weights.Hub(name)
    source = preset.target if preset else folder
    ready, detail = source.ready()
    if not ready:
        remedy = source.remedy or weights.fetching(name if preset else f"{name},{name}")
        raise ValueError(f"no tokenizer: {detail}: {remedy}")
    tokenizer = weights.load_tokenizer(source.fetch(), source.label)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def commit(folder: Path) -> str:
    """The short hash of the commit in a folder, with a + when files differ from it; "" where there is none.

    Records and the scoreboard do not count: each row that is written would mark the next one.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        others = git("status", "--porcelain", "--", ".", ":!results", ":!SCOREBOARD.md")
        return git("rev-parse", "--short", "HEAD") + "+" * bool(others)
    except (OSError, subprocess.CalledProcessError):
        return ""


def _key(name: str | None) -> str | None:
    if name is not None and not os.environ.get(name):
        raise ValueError(f"the environment variable {name} holds no key: set it, or leave --api-key-env out")
    return os.environ[name] if name else None


def _here() -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[pairs.default_dtype(pairs.default_device())[0]]


def _only_model(server: Server) -> str:
    try:
        headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
        answer = httpx.get(f"{server.url}/models", headers=headers, timeout=10.0, trust_env=not server.local)
        found = [str(m["id"]) for m in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{server.base_url} does not say which models it has ({error}): start the server, or give --model"
        ) from error
    if len(found) != 1:
        raise ValueError(f"{server.base_url} has {len(found)} models: choose one with --model, such as {found[:3]}")
    return found[0]


def _requests(traces: list[Trace]) -> Record:
    """Columns: short, and all that the scoreboard needs. seconds, tokens: as `bench_trace.decoding`."""
    parts = [decoding(t) for t in traces]
    columns = {
        "prompt": [t.prompt for t in traces],
        "kind": [t.kind for t in traces],
        "error": [t.error for t in traces],
        "ttft": [ttft(t) for t in traces],
        "seconds": [s for s, _ in parts],
        "tokens": [n for _, n in parts],
    }
    return _rounded(columns)


def _rounded(value: Any) -> Any:
    """Floats to a microsecond, the rest as it is."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, 6) if isinstance(value, float) else value
