"""Sweeps as records: runs as lines of whole numbers, one that was interrupted, and what is written beside one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speclib import records
from speclib.decode import Round, Stats
from speclib.records import Record
from speclib.rows import PEER, Row, Run, facts

KIND = "sweep"
# What must be the same, besides the machine, for runs to stand in one record.
SETTINGS = ("pair", "dtype", "device", "forward", "prompts", "new", "sampling", "seed", "drafters", "k", "peers")
NO_ID = -1  # stands for each token of a run that comes from a record, which holds how many they were


def pack(run: Run) -> dict[str, Any]:
    """A run as a record holds it: a line of whole numbers for each of kept, drafted and microseconds, by round.

    The ids are left out. A peer's rounds are told by what they kept alone.
    """
    rounds = run.stats.rounds
    lists = {"kept": [r.accepted for r in rounds]}
    if not run.drafter.startswith(PEER):
        lists["drafted"] = [r.drafted for r in rounds]
        lists["draft_us"] = [round(1e6 * r.seconds_draft) for r in rounds]
        lists["verify_us"] = [round(1e6 * r.seconds_verify) for r in rounds]
    return {
        "prompt": run.prompt,
        "kind": run.kind,
        "drafter": run.drafter,
        "K": run.K,
        "tokens": len(run.stats.tokens),
        "seconds": round(run.stats.seconds, 6),
        "finish": rounds[-1].finish_reason if rounds else None,
        **{key: " ".join(map(str, values)) for key, values in lists.items()},
    }


def unpack(packed: dict[str, Any]) -> Run:
    """The run that `pack` was given, but for its ids (each is `NO_ID`) and text; a peer's rounds share its seconds."""
    lists = {
        key: [int(x) for x in packed[key].split()]
        for key in ("kept", "drafted", "draft_us", "verify_us")
        if key in packed
    }
    kept = lists["kept"]
    count = len(kept)
    drafted = lists.get("drafted", kept)
    drafting = [us / 1e6 for us in lists.get("draft_us", [0] * count)]
    share = packed["seconds"] / max(count, 1)
    verifying = [us / 1e6 for us in lists["verify_us"]] if "verify_us" in lists else [share] * count
    # A round commits what it kept and a fix or bonus; the last one may have been cut.
    tokens = [n + 1 for n in kept]
    if tokens:
        tokens[-1] = packed["tokens"] - sum(tokens[:-1])
    rounds = [
        Round([NO_ID] * n, d, a, packed["finish"] if i == count - 1 else None, "", *seconds)
        for i, (n, d, a, *seconds) in enumerate(zip(tokens, drafted, kept, drafting, verifying, strict=True))
    ]
    return Run(packed["prompt"], packed["kind"], packed["drafter"], packed["K"], Stats(rounds))


def runs_of(record: Record) -> list[Run]:
    """The runs of a record of `speclib sweep`: `sweep.table` makes its rows of them.

    Taught in notebook 05_sweep, section 'The whole sweep'.
    """
    return [unpack(packed) for packed in record["runs"]]


def begin(record: Record, folder: Path, resume: bool) -> Record:
    """The record to go on with: an interrupted one with the same name and settings, or the new one."""
    same_name = [
        old
        for old in (records.read_all(KIND, folder) if folder.is_dir() else [])
        if old["runs"]
        and all(old[key] == record[key] for key in ("what", "dtype"))
        and old["machine"]["host"] == record["machine"]["host"]
    ]
    if not same_name:
        return record
    old = same_name[0]
    if not resume:
        raise ValueError(
            f"an interrupted sweep of {old['what']} is kept in {folder}: go on with it by --resume, or remove it"
        )
    here, then = (
        {key: r[key] for key in SETTINGS} | {k: v for k, v in r["machine"].items() if not k.startswith("load")}
        for r in (record, old)
    )
    if other := [key for key in here if here[key] != then.get(key)]:
        raise ValueError(
            f"the interrupted sweep in {folder} has {other[0]} = {then.get(other[0])}, and now it is {here[other[0]]}: "
            "give the same settings on the same machine, or remove it"
        )
    return old


def beside(path: Path, table: list[Row], kinds: dict[str, list[Row]]) -> list[Path]:
    """Write the rows as a CSV and a figure, as a page that needs no network, beside the record."""
    import pandas as pd
    import plotly.graph_objects as go

    from speclib.figures.sweep import sweep_figure

    flat = []
    for row in [*table, *(row for of in kinds.values() for row in of)]:
        one = facts(row)
        one["low"], one["high"] = one["interval"]
        one["accepted_at"] = " ".join(map(str, one["accepted_at"]))
        flat.append({key: value for key, value in one.items() if key not in ("interval", "ratios")})
    pd.DataFrame(flat).to_csv(path.with_suffix(".csv"), index=False)
    go.Figure(sweep_figure(table)).write_html(path.with_suffix(".html"), config={"displayModeBar": False})
    return [path.with_suffix(".csv"), path.with_suffix(".html")]
