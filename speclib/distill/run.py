"""From a target to a draft in a folder, in one call: chats, training, evaluation, measurement, card."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path

from speclib import pairs, records, sweep
from speclib.distill import corpus, export, train
from speclib.distill.train import Recipe
from speclib.distributions import Sampling
from speclib.drafters import ModelDrafter, NgramDrafter, ngram
from speclib.rows import facts as facts_of

ROWS, LENGTH = 128, 192
ORIGINS = {"smol": "4-bit Q4_1 weights, dequantised to bf16"}


def distill(
    target: str,
    out: Path,
    work: Path,
    recipe: Recipe,
    tokens: int = 2_000_000,
    seed: int = 1,
    prompts: Path | None = None,
    full_head: bool = False,
    quick: bool = False,
    command: str | None = None,
) -> dict:
    """Distil a draft for `target` into the folder `out`, and return the facts of its card.

    target: a pair's name, or a model by hub name or folder. work: where the corpus and the checkpoint are kept; what is
    there is used, and a run that was interrupted goes on. tokens: size of the corpus. prompts: a file of prompts
    (JSON lines with prompt and kind) to measure plain against speculative decoding on; None leaves it out.
    full_head: the same draft written as a plain Llama, for programs that know no cut output matrix. quick: the whole
    chain at sizes that teach nothing, in a minute.
    ValueError: a target without a chat template, settings that fit neither it nor the work folder. PairError: as load.
    """
    name = target if target in pairs.PRESETS else f"{target},{target}"
    if prompts and not prompts.is_file():
        raise ValueError(f"there is no file of prompts {prompts}: give one, or leave the measurement out")
    rows, length, new, ks = ROWS, LENGTH, 128, (1, 2, 3, 4, 5)
    if quick:
        rows, length, new, ks, tokens, work = 8, 64, 16, (2,), 8 * 64 * 2, work / "quick"
        recipe = dataclasses.replace(recipe, hidden=64, layers=1, vocab_top=min(recipe.vocab_top, 512), batch=256)
    pair = pairs.load(name)
    vocab, width = pair.target.get_input_embeddings().weight.shape
    if recipe.hidden > width:
        raise ValueError(f"the draft's width {recipe.hidden} is more than its target's {width}: choose a smaller one")
    if tokens < 1:
        raise ValueError(f"a corpus has at least one token, not {tokens}")
    shards = -(-tokens // (rows * length))
    corpus.grow(pair.target, pair.tokenizer, work / "corpus", range(shards), seed, rows, length)

    learnt, kept_out = (train.read(work / "corpus", shards, held_out) for held_out in (False, True))
    kept = train.frequent(learnt, vocab, recipe.vocab_top)
    positions = getattr(pair.target.config, "max_position_embeddings", 2048)
    draft = train.new_draft(recipe, pair.target.get_input_embeddings().weight.cpu(), kept, positions)
    draft.to(pair.device)
    data, held_out = (train.by_length(s, kept, vocab) for s in (learnt, kept_out))
    curve = train.train(draft, data, held_out, recipe, work / "training.pt")
    facts = {
        "target": pair.labels[0],
        "origin": ORIGINS.get(target, "as loaded"),
        "pair": name if target in pairs.PRESETS else f"{target},{out}",
        "command": command or shlex.join(["speclib", *sys.argv[1:]]),
        "parameters": draft.num_parameters(),
        "head_size": len(kept),
        "corpus": corpus.record(work / "corpus", shards),
        "recipe": dataclasses.asdict(recipe),
        "curve": curve,
        "held_out": train.evaluate(draft, held_out),
        "races": [],
    }
    export.save(draft, pair.tokenizer, out, facts, full_head)
    ngram.save(ngram.count(learnt), out)
    if prompts:
        facts["races"] = race(f"{pair.folders[0]},{out}", prompts, new, ks, 2 if quick else None)
        (out / "figures.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        (out / "README.md").write_text(export.card(facts))
    return facts


def race(pair_name: str, prompts: Path, new: int, ks: tuple[int, ...], most: int | None = None) -> list[dict]:
    """`sweep.race` on a file of prompts (the first `most`), greedy and at temperature 0.7: the rows, and on what.

    The machine's name is left out, since the facts are handed on with the draft.
    """
    pair = pairs.load(pair_name)
    asked = sweep.prompts_of(prompts)[:most]
    table = NgramDrafter.load(pair.folders[1], pair.target.config.vocab_size)
    drafters = {"distilled": ModelDrafter(pair.draft), "n-gram": table}
    found = []
    for temperature in (0.0, 0.7):
        machine = records.machine(pair.device)
        rows = sweep.table(sweep.race(pair, asked, drafters, ks, new, Sampling(temperature)))
        machine["load_average_after"] = records.machine(pair.device)["load_average"]
        del machine["host"]
        found.append(
            {
                "temperature": temperature,
                "prompts": len(asked),
                "new": new,
                "dtype": str(pair.dtype).removeprefix("torch."),
                "machine": machine,
                "rows": [facts_of(row) for row in rows],
            }
        )
    return found
