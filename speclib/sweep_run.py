"""`speclib sweep`: the race on a real pair, kept in a record that an interrupted run goes on with, and drawn."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from speclib import pairs, records, sweep, sweep_record
from speclib.chat import make_drafter
from speclib.distributions import Sampling
from speclib.records import Record
from speclib.rows import PEER, Row, Run, facts

UNFINISHED = "unfinished"  # the folder, beside the finished records, of those that were interrupted
PROMPTS = Path(__file__).resolve().parent.parent / "prompts" / "short.jsonl"


def run(
    pair: str,
    drafters: str,
    ks: str,
    prompts: Path,
    new: int,
    temperature: float,
    peers: bool,
    resume: bool,
    name: str | None,
    out: Path,
    compile: bool = False,
    quantize: str | None = None,
) -> int:
    """Race drafters on a file of prompts, with a progress bar on stderr; write record, table and figure.

    pair: as `pairs.load`. drafters: names that `chat.make_drafter` knows, with commas. ks: as `numbers`. new: tokens
    per run. peers: transformers' own ways in the same turns. resume: go on with an interrupted run of the same
    settings. name: of the machine. compile, quantize: as `pairs.load`. Returns the exit status: 0, or 130 when
    interrupted. Then every prompt whose turns are through is kept, in the folder `unfinished`, and the one under way is
    lost, since its turns belong together.
    PairError: what is missing. ValueError: bad input, before anything is measured.
    Taught in notebook 05_sweep, section 'The whole sweep'.
    """
    asked, k, sampling = sweep.prompts_of(prompts), numbers(ks), Sampling(temperature)
    names = [part for part in map(str.strip, drafters.split(",")) if part]
    loaded = pairs.load(pair, compile=compile, quantize=quantize)
    forward = quantize or ("compiled" if compile else "eager")
    players = {n: made for n in names if (made := make_drafter(n, loaded))}
    if not players:
        raise ValueError(f"{drafters!r} names no drafter to race with plain decoding: name model, lookup or both")
    theirs: dict[str, sweep.Peer] = {}
    if peers:
        from speclib import peers as other

        theirs = other.peers(loaded, tuple(n for n in players if n in other.WAYS), sampling)
    record: Record = {
        "kind": sweep_record.KIND,
        "when": records.now(),
        "what": _what(pair, prompts, temperature, forward),
        "machine": records.machine(loaded.device, name),
        "pair": pair,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": loaded.device.type,
        "forward": forward,
        "prompts": {"file": prompts.name, "count": len(asked), "sha256": _digest(asked)},
        "new": new,
        "sampling": {"temperature": temperature},
        "seed": 0,
        "drafters": list(players),
        "k": k,
        "peers": peers,
        "rows": [],
        "by_kind": {},
        "runs": [],
    }
    record = sweep_record.begin(record, out / UNFINISHED, resume)
    done = list(dict.fromkeys(packed["prompt"] for packed in record["runs"]))
    race = sweep.race(loaded, asked, players, k, new, sampling, done=done, peers=theirs)
    kept = records.write(record, out / UNFINISHED)
    through = _collect(race, record, kept.parent, len(asked), len(sweep.ways(players, k, theirs)))
    runs = sweep_record.runs_of(record)
    table, kinds = sweep.table(runs), sweep.by_kind(runs)
    record["rows"] = [facts(row) for row in table]
    record["by_kind"] = {kind: [facts(row) for row in of] for kind, of in kinds.items()}
    if not through:
        records.write(record, kept.parent)
        count = len({one.prompt for one in runs})
        print(*lines(table), f"interrupted: {count} of {len(asked)} prompts are kept, --resume goes on", sep="\n")
        return 130
    record["machine"]["load_average_after"] = records.machine(loaded.device)["load_average"]
    path = records.write(record, out)
    kept.unlink()
    with contextlib.suppress(OSError):  # another sweep may be under way in there
        kept.parent.rmdir()
    print(*lines(table), path, *sweep_record.beside(path, table, kinds), sep="\n")
    return 0


def numbers(text: str) -> list[int]:
    """Whole numbers from "1,2,5", "1-8" or both together, ascending. ValueError: another form."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ValueError(f"{text!r} is no list of K: write it as 1,2,4 or as 1-8")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not found:
        raise ValueError(f"{text!r} holds no K: write the smaller number first")
    return sorted(found)


def lines(table: Sequence[Row]) -> Iterator[str]:
    """Rows in words, a line each, for the terminal; at the end, ours beside each peer."""

    def text(value: float, digits: int = 2) -> str:
        return "–" if value != value else f"{value:.{digits}f}"

    for row in table:
        head = f"{row.drafter}, K = {row.K}: {row.tokens_per_second:.1f} tokens/s"
        if row.K == 0:
            yield f"{row.drafter}: {row.tokens_per_second:.1f} tokens/s"
            continue
        low, high = row.interval
        yield (
            f"{head}, speedup {row.speedup:.2f} ({low:.2f}–{high:.2f}), predicted {text(row.predicted)}; "
            f"AL {row.mean_accepted_length:.2f}, α̂ {text(row.alpha_hat)}, "
            f"acceptance rate {text(row.acceptance_rate)}, c {text(row.c, 3)}, v {text(row.v)}"
        )
    ours = {(f"{PEER} {row.drafter}", row.K): row for row in table}
    for peer in table:
        if own := ours.get((peer.drafter, peer.K)):
            both = own.ratios.keys() & peer.ratios.keys()
            ratio = statistics.median(own.ratios[prompt] / peer.ratios[prompt] for prompt in both)
            what = own.drafter if own.K == 0 else f"{own.drafter}, K = {own.K}"
            yield f"{what}: {ratio:.2f} × the speed of {peer.drafter}, median over {len(both)} prompts"


def _collect(race: Iterator[Run], record: Record, folder: Path, prompts: int, turns: int) -> bool:
    """Add runs to the record, a prompt's at a time, and write it after each; False when interrupted."""
    with tqdm(total=prompts * turns, initial=len(record["runs"]), unit=" runs", leave=False) as bar:
        try:
            fresh: list[Run] = []
            for one in race:
                fresh.append(one)
                bar.set_postfix_str(f"{one.prompt}, {one.drafter}, K = {one.K}", refresh=False)
                bar.update()
                if len(fresh) == turns:
                    record["runs"] = [*record["runs"], *map(sweep_record.pack, fresh)]  # all of them, or none
                    fresh = []
                    records.write(record, folder)
        except KeyboardInterrupt:
            return False
    return True


def _what(pair: str, prompts: Path, temperature: float, forward: str) -> str:
    differs = {
        prompts.stem: prompts.stem != PROMPTS.stem,
        f"t{temperature:g}": temperature,
        forward: forward != "eager",
    }
    return "-".join([pair, *(part for part, told in differs.items() if told)])


def _digest(prompts: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps(prompts, ensure_ascii=False).encode()).hexdigest()
