"""SCOREBOARD.md, made from the records of `speclib bench` and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speclib import records
from speclib.bench_speedup import paired, speedup, speedup_interval
from speclib.records import Record
from speclib.rows import PLAIN

PATH = records.RESULTS.parent / "SCOREBOARD.md"
HEAD = """# Scoreboard

Made by `speclib scoreboard` from the records in `results/`; do not edit it by hand. While `speclib serve` runs in
another terminal, `speclib bench` adds a row (the same `--target` again replaces its own):

    speclib bench --target smol-model --speculation model:4 --against-plain --change "the draft model, K = 4"

- A table is about one machine, one model and one precision. Rows of different tables are never compared.
- The target of `smol` is SmolLM2-135M-Instruct with 4-bit weights (Q4_1), dequantised: its figures are of that model.
- **Row 0** is the baseline: the newest row there whose target is `plain`, one token a pass.
- **tokens/s** at a concurrency: tokens of all answers ÷ seconds in which any request was under way, waiting and
  prefill included. So many users send, each the next request when the answer to the last one is complete.
- **TTFT**: request sent → first content that is not empty; the median at the lowest concurrency.
- **Speedup**: plain ÷ speculative seconds per token, over the same prompts at concurrency 1. Seconds run from first to
  last content, so prefill is excluded; tokens are those behind the first chunk, and a chunk is not a token.
  `--against-plain` sends every prompt both ways, in turn, so that whatever else the machine does hits both alike. In
  brackets is the middle 95 % when the prompts are drawn anew: how much the figure hangs on these prompts. It is not the
  ratio of two tokens/s columns: those hold waiting and prefill, and row 0 may be of another run.
- **~** before a speedup: plain was not measured in the same run but in that of row 0, with the same prompts and
  lengths; what changed on the machine between the two is part of the figure.
- With `ignore_eos` all answers have the same length; a text that goes on past its end repeats itself, which flatters
  speculation. The conditions stand above each table.
"""
EMPTY = "\nThere is no row yet.\n"
NONE = "–"


@dataclass(frozen=True)
class Entry:
    """A row of a record, with the record that it stands in."""

    record: Record
    row: Record

    @property
    def group(self) -> tuple[str, str, str]:
        return self.record["machine"]["host"], self.record["model"], self.record["dtype"]

    def level(self, concurrency: int) -> Record | None:
        return next((x for x in self.row["levels"] if x["concurrency"] == concurrency), None)

    def costs(self, kind: str | None = None) -> list[tuple[str, float, int]]:
        """(prompt, seconds, tokens) of its requests at concurrency 1, all or those of one kind."""
        level = self.level(1)
        if level is None:
            return []
        columns = level["requests"]
        every = zip(columns["prompt"], columns["kind"], columns["seconds"], columns["tokens"], strict=True)
        return [(p, s, n) for p, k, s, n in every if kind in (None, k)]

    def speed(self, kind: str | None = None) -> float | None:
        """Tokens per second from first to last content, of the same requests; None where there are none."""
        costs = self.costs(kind)
        seconds = sum(s for _, s, _ in costs)
        return sum(n for *_, n in costs) / seconds if seconds else None


def write(folder: Path | str = records.RESULTS, path: Path | str = PATH) -> Path:
    """Make the file anew from a folder of records, whole or not at all, and return where it is.

    ValueError: a record that cannot be read; a place that cannot be written to.
    """
    path = Path(path)
    text = table(records.read_all("bench", folder))
    try:
        records.put(path, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written to ({error.strerror}): choose another place") from error
    return path


def entries(found: Iterable[Record]) -> list[Entry]:
    """Every row of some records of the bench, the older records first."""
    return [Entry(record, row) for record in sorted(found, key=lambda r: r["when"]) for row in record["rows"]]


def table(found: Iterable[Record]) -> str:
    """The whole file as text: for every machine, model and precision a table of rows, and one by kind of prompt.

    Taught in notebook 07_serve_and_bench, section 'The scoreboard'.
    """
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries(found):
        groups.setdefault(entry.group, []).append(entry)
    if not groups:
        return HEAD + EMPTY
    return HEAD + "".join("\n".join(("", *_section(groups[key]), "")) for key in sorted(groups))


Gain = tuple[float, tuple[float, float] | None, bool]


def gain(entry: Entry, entries: Sequence[Entry], kind: str | None = None) -> Gain | None:
    """Speedup of a row, its interval (None: a single prompt), whether plain is of the same run; None: unknown.

    entries: those of its machine, model and precision.
    """
    plain = [e for e in entries if e.row["target"] == PLAIN]
    same = [e for e in plain if e.record is entry.record]
    baseline = (same or plain or [None])[-1]
    if entry.row["target"] == PLAIN or baseline is None or _asked(baseline) != _asked(entry):
        return None
    costs = paired(baseline.costs(kind), entry.costs(kind))
    if not costs[0]:
        return None
    return speedup(*costs), speedup_interval(*costs) if len(costs[0]) > 1 else None, bool(same)


def _asked(entry: Entry) -> dict[str, Any]:
    """What has to be the same for two rows to be compared; how often each prompt was sent has not."""
    return {**entry.record["load"], "n": None, "prompts": entry.record["prompts"]}


def _section(entries: Sequence[Entry]) -> Iterator[str]:
    host, model, precision = entries[0].group
    plain = [e for e in entries if e.row["target"] == PLAIN]
    shown = [*plain[-1:], *(e for e in entries if e.row["target"] != PLAIN)]
    levels = sorted({x["concurrency"] for e in shown for x in e.row["levels"]})
    yield f"## {_cell(host)} · {_cell(model)} · {_cell(precision)}\n"
    yield from _conditions(entries[-1].record)
    speeds = [f"tokens/s at {c}" for c in levels]
    yield from _rows(
        ["row", "date", "commit", "target", "precision", "drafter, K", *speeds, "TTFT", "speedup", "change"],
        [_row(i if plain else i + 1, e, entries, levels) for i, e in enumerate(shown)],
    )
    kinds = list(dict.fromkeys(k for e in shown if (x := e.level(1)) for k in x["requests"]["kind"]))
    if kinds:
        yield "\nBy kind of prompt at concurrency 1: tokens/s from first to last content, and speedup.\n"
        yield from _rows(
            ["target", *kinds], [[_cell(e.row["target"]), *(_by_kind(e, entries, k) for k in kinds)] for e in shown]
        )


def _conditions(record: Record) -> Iterator[str]:
    machine, load = record["machine"], record["load"]
    if "cores" in machine:
        unit = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
        yield f"{_cell(unit)}, {machine['system']}, PyTorch {machine['torch']}."
    length = f"{load['max_tokens']} tokens each" if load["ignore_eos"] else f"at most {load['max_tokens']} tokens each"
    ends = " (`ignore_eos`)" if load["ignore_eos"] else ""
    asked = f"{load['n']} requests at each concurrency, {length}{ends}, temperature {load['temperature']:g}"
    yield f"The newest row: prompts `{record['prompts']}`, {asked}.\n"


def _row(number: int, entry: Entry, entries: Sequence[Entry], levels: Sequence[int]) -> list[str]:
    record, row = entry.record, entry.row
    drafter = {None: "not told", "none": "none"}.get(row["drafter"]) or f"{row['drafter']}, {row['k']}"
    lowest = min(row["levels"], key=lambda x: x["concurrency"], default=None)
    first = lowest["ttft"] if lowest else None
    failed = sum(n for x in row["levels"] for n in x["errors"].values())
    notes = [row["change"]] if row["change"] else []
    notes += [f"{failed} requests failed"] if failed else []
    notes += [] if record["complete"] else ["not complete"]
    return [
        str(number),
        record["when"][:10],
        record["commit"] or NONE,
        _cell(row["target"]),
        _cell(record["dtype"]),
        _cell(drafter),
        *(_speed(entry.level(c)) for c in levels),
        f"{1000 * first['p50']:,.0f} ms" if first else NONE,
        "1" if row["target"] == PLAIN else _gain(gain(entry, entries)),
        _cell("; ".join(notes)),
    ]


def _by_kind(entry: Entry, entries: Sequence[Entry], kind: str) -> str:
    speed, found = entry.speed(kind), gain(entry, entries, kind)
    return (NONE if speed is None else f"{speed:.1f}") + (f"; {_gain(found)}" if found else "")


def _speed(level: Record | None) -> str:
    return f"{level['tokens_per_second']:.1f}" if level and level["tokens_per_second"] else NONE


def _gain(found: Gain | None) -> str:
    if found is None:
        return NONE
    value, interval, same = found
    sure = f" ({interval[0]:.2f}–{interval[1]:.2f})" if interval else ""
    return f"{'' if same else '~'}{value:.2f} ×{sure}"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _cell(text: Any) -> str:
    """Text that stays in its cell, whatever was typed."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;") or NONE
