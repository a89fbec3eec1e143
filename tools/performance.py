"""What the forward costs and what speculation adds, in one run: eager, compiled, 8 and 4 bits, and transformers' own.

Run it alone on the machine: `python tools/performance.py --name NAME`. It takes turns prompt by prompt, as `speclib
sweep` does, writes results/performance-NAME-….json, and docs/performance.md from every such record.
`python tools/performance.py --page` only writes the page.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from speclib import cost, pairs, peers, records, scoreboard, sweep
from speclib.context import as_context
from speclib.decode import GREEDY, Stats, decode
from speclib.drafters import LookupDrafter, ModelDrafter
from speclib.rows import PEER, PLAIN, Row, Run, facts, table
from speclib.stopping import Stop

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
LOOP_SHARE = ROOT / "results" / "loop-share.json"
KIND = "performance"
ENGINES = {"eager": {}, "compiled": {"compile": True}, "int8": {"quantize": "int8"}, "int4": {"quantize": "int4"}}
KS = (1, 2, 3)
SHARE = "of the memory's"


class Engine:
    """One way of running the pair: its contexts and drafters, as peers of `sweep.race`."""

    def __init__(self, name: str, pair: Any):
        self.name, self.pair = name, pair
        started = time.perf_counter()
        self.target = as_context(pair.target)
        self.drafters = {"model": ModelDrafter(pair.draft), "lookup": LookupDrafter(), PLAIN: None}
        self.target.feed(pair.chat_ids("Hello"))
        self.ready = {"ready after, s": time.perf_counter() - started}

    def alone(self, prompts: list[dict[str, str]], new: int) -> dict[str, float]:
        """Plain decoding with nothing between its steps, in turns with what the memory gives: this machine's varies."""
        steps, rates = [], []
        for prompt in prompts[:5]:
            rates.append(cost.bandwidth(self.pair.device, 0.3))
            stop = Stop(new, eos=self.pair.eos_ids)
            rounds = list(decode(self.target, None, self.pair.chat_ids(prompt["prompt"]), k=0, stop=stop))
            steps.append(statistics.median(r.seconds_draft + r.seconds_verify for r in rounds))
        lean = getattr(self.target, "lean", None)
        read = lean.bytes if lean else cost.step_bytes(self.pair.target)
        return {
            "GB read by a step": read / 1e9,
            "plain step, s": statistics.median(steps),
            "bandwidth": statistics.median(rates),
            SHARE: statistics.median(read / s / r for s, r in zip(steps, rates, strict=True)),
        }

    def peer(self, drafter: str) -> sweep.Peer:
        made, eos = self.drafters[drafter], self.pair.eos_ids

        def generate(ids: list[int], k: int, most: int) -> Stats:
            # Two tokens first, so that target and drafter have read the prompt, as in the race itself.
            list(decode(self.target, made, ids, k=1, stop=Stop(min(2, most), eos=eos)))
            return Stats(list(decode(self.target, made, ids, k=k, stop=Stop(most, eos=eos))))

        return generate


def measure(prompts: list[dict[str, str]], new: int) -> tuple[list[Run], dict[str, Any]]:
    """Every way on every prompt, in turns; the runs, and what each engine's target is like."""
    engines = {name: Engine(name, pairs.load("smol", **how)) for name, how in ENGINES.items()}
    facts_of = {name: engine.ready | engine.alone(prompts, new) for name, engine in engines.items()}
    base = engines.pop("eager")
    theirs = peers.peers(base.pair, ("model", "lookup"))
    for name, engine in engines.items():
        theirs |= {f"{name} {drafter}": engine.peer(drafter) for drafter in ("model", "lookup")}
        theirs[f"{name} {PLAIN}"] = engine.peer(PLAIN)
    drafters = {name: base.drafters[name] for name in ("model", "lookup")}
    turns = len(prompts) * len(sweep.ways(drafters, KS, theirs))
    race = sweep.race(base.pair, prompts, drafters, KS, new, GREEDY, peers=theirs)
    runs = list(tqdm(race, total=turns, unit=" runs"))
    for name, engine in engines.items():
        facts_of[name] |= quality(base, engine, prompts)
    return runs, facts_of


def quality(base: Engine, other: Engine, prompts: list[dict[str, str]], new: int = 32) -> dict[str, float]:
    """How far another engine's target is from the base: agreement of the argmax and KL, along the base's own texts."""
    agree, kl = [], []
    for prompt in prompts:
        ids = base.pair.chat_ids(prompt["prompt"])
        text = ids + [
            t for r in decode(base.target, None, ids, stop=Stop(new, eos=base.pair.eos_ids)) for t in r.tokens
        ]
        rows = []
        for engine in (base, other):
            engine.target.rollback(0)
            rows.append(engine.target.feed(text, rows=len(text) - len(ids)).log_softmax(-1))
        agree += (rows[0].argmax(-1) == rows[1].argmax(-1)).tolist()
        kl += (rows[0].exp() * (rows[0] - rows[1])).sum(-1).tolist()
    return {"argmax as eager": statistics.mean(agree), "KL from eager": statistics.mean(kl)}


def rows_of(runs: Iterable[Run], engine: str) -> list[Row]:
    """The rows of one engine, whose own plain decoding is 1."""
    own = []
    for run in runs:
        name = run.drafter
        if engine == "eager" and (name == PLAIN or name in ("model", "lookup")):
            own.append(run)
        elif name.startswith(f"{engine} "):
            own.append(dataclasses.replace(run, drafter=name.removeprefix(f"{engine} ")))
    return table(own)


def main(
    name: Annotated[str | None, typer.Option(help="What the record calls this machine.")] = None,
    every: Annotated[int, typer.Option(help="Take every so manieth prompt.")] = 2,
    new: Annotated[int, typer.Option(help="Tokens per run.")] = 64,
    page: Annotated[bool, typer.Option("--page", help="Only write the page.")] = False,
) -> None:
    """Measure, keep the record, write the page."""
    if not page:
        prompts = sweep.prompts_of(ROOT / "prompts" / "short.jsonl")[::every]
        device = pairs.default_device()
        record = {
            "kind": KIND,
            "what": "smol",
            "when": records.now(),
            "machine": records.machine(device, name),
            "dtype": str(pairs.default_dtype(device)[0]).removeprefix("torch."),
            "prompts": len(prompts),
            "new": new,
        }
        runs, record["engines"] = measure(prompts, new)
        for engine, of in record["engines"].items():
            of["rows"] = [facts(row) for row in rows_of(runs, engine)]
        # Everything beside transformers' plain decoding, prompt by prompt.
        of_peer = [dataclasses.replace(r, drafter=PLAIN) for r in runs if r.drafter == f"{PEER} {PLAIN}"]
        ours = (PLAIN, "model", "lookup")
        others = [dataclasses.replace(r, drafter=f"eager {r.drafter}") if r.drafter in ours else r for r in runs]
        others = [r for r in others if r.drafter != f"{PEER} {PLAIN}"]
        record["beside"] = [facts(row) for row in table(of_peer + others)]
        print(records.write(record))
    records.put(PAGE, text(records.read_all(KIND)))


HEAD = """# Performance

Plain and speculative decoding of the `smol` pair, greedy, by four ways of running one and the same loop, and
transformers' own `generate`. Each machine's figures come from one run in which all ways took turns, prompt by prompt;
prefill is left out. The target's weights are 4-bit (Q4_1), dequantised to the precision above each table: all figures
are of that model, not of the original SmolLM2. This page is written by `python tools/performance.py` from
`results/performance-*.json`.

- **eager**: transformers' forward, as notebooks 01 to 06 show it. **compiled**: `--compile`, the same layers over one
  buffer for keys and values, with the weights laid out for the machine's matrix kernels (`speclib/lean.py`,
  `speclib/packed.py`; on a GPU recorded as CUDA graphs). **int8**, **int4**: `--quantize`, that with fewer bits per
  weight: another model, whose distance from eager is stated.
- **× transformers**: tokens per second ÷ those of transformers' plain `generate`, with a 95 % interval over prompts.
  **speedup**: over the same engine's own plain decoding.
- **ready after**: seconds for loading both models, laying their weights out and a first pass, in every process anew.
- A step of the target reads all of its weights; **GB/s** is that many bytes ÷ the median plain step of a run with no
  other engine between, beside what the machine's memory gave right before it.
- **behind a server**: `prompts/short.jsonl`, one user, the same client; rows of the scoreboard (`make vllm-check`),
  where the numbers for more users stand, too. tokens/s are those from the first to the last content of an answer.
"""


def text(found: list[dict[str, Any]]) -> str:
    """The page, from the records alone."""
    parts = [HEAD + _loop_share()]
    for record in found:
        m = record["machine"]
        parts.append(
            f"## {m['host']}: {m['gpu'] or m['cpu']}, {m['threads']} threads, {record['dtype']}\n\n"
            f"{record['prompts']} prompts × {record['new']} tokens, {record['when'][:10]}, torch {m['torch']}, "
            f"transformers {m['transformers']}, load {m['load_average']} before.\n\n"
            f"{_speeds(record)}\n{_engines(record)}\n{_servers(m['host'])}"
        )
    return "\n".join(parts)


def _loop_share() -> str:
    """What the loop itself takes of a round, from the record of another tool."""
    record = json.loads(LOOP_SHARE.read_text(encoding="utf-8"))
    shares = {name: of["share outside the forward"] for name, of in record.items() if isinstance(of, dict)}
    listed = "; ".join(f"{name}: {100 * share:.1f} %" for name, share in shares.items())
    return (
        f"- **what the loop costs**: of a round that copies a text by lookup, K = {record['k']}, in "
        f"{record['dtype'].removeprefix('torch.')}\n  on {record['threads']} threads, this share is not spent in the "
        f"forward (`python tools/loop_share.py`):\n  {listed}.\n"
    )


def _speeds(record: dict[str, Any]) -> str:
    out = [
        "| engine | drafter | K | tokens/s | × transformers | AL | speedup | c | v |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    own = {(f"{e} {r['drafter']}", r["K"]): r for e, of in record["engines"].items() for r in of["rows"]}
    for row in record["beside"]:
        name = f"{PEER} {PLAIN}" if row["drafter"] == PLAIN else row["drafter"]
        engine, drafter = name.split(" ", 1)
        mine = own.get((name, row["K"]), {})
        low, high = row["interval"]
        ratio = "1" if row["drafter"] == PLAIN else f"{row['speedup']:.2f} ({low:.2f}–{high:.2f})"
        cells = [engine, drafter, row["K"] or "", f"{row['tokens_per_second']:.1f}", ratio]
        cells += [f"{row['mean_accepted_length']:.2f}", *(_number(mine.get(x)) for x in ("speedup", "c", "v"))]
        out.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(out) + "\n"


def _engines(record: dict[str, Any]) -> str:
    out = [
        "| engine | ready after, s | GB read by a step | plain step, ms | GB/s | memory, GB/s | of the memory's "
        "| argmax as eager | KL from eager |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, of in record["engines"].items():
        step = of["plain step, s"]
        cells = [name, f"{of['ready after, s']:.1f}", f"{of['GB read by a step']:.3f}", f"{1000 * step:.1f}"]
        cells += [f"{of['GB read by a step'] / step:.1f}", f"{of['bandwidth'] / 1e9:.1f}"]
        cells += [f"{100 * of[SHARE]:.0f} %", _number(of.get("argmax as eager"), 3)]
        out.append("| " + " | ".join([*cells, _number(of.get("KL from eager"), 4)]) + " |")
    return "\n".join(out) + "\n"


def _servers(host: str) -> str:
    """What the scoreboard's records say of one user, for one machine."""
    out = ["| behind a server | drafter | K | tokens/s | TTFT, ms |", "|---|---|--:|--:|--:|"]
    for entry in scoreboard.entries(records.read_all("bench")):
        level = entry.level(1)
        if entry.group[0] == host and level:
            cells = [entry.row["target"], entry.row["drafter"], entry.row["k"] or ""]
            cells += [_number(entry.speed(), 1), f"{1000 * level['ttft']['p50']:.0f}"]
            out.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(out) + "\n"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(typer.run(main))
