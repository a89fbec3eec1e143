"""A trained draft becomes a folder: weights, configuration, the target's tokenizer, and a card that says what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from speclib.draft import DraftForCausalLM, as_llama
from speclib.weights import quiet


def save(model: DraftForCausalLM, tokenizer: Any, out: Path, facts: dict[str, Any], full_head: bool) -> None:
    """Write the draft to a folder, in bf16, with a card made from `facts` (see `card`).

    full_head: as a plain Llama (`draft.as_llama`), which any program loads.
    """
    out.mkdir(parents=True, exist_ok=True)
    with quiet():
        (as_llama(model) if full_head else model).to(torch.bfloat16).save_pretrained(out)
        tokenizer.save_pretrained(out)
    (out / "figures.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    (out / "README.md").write_text(card(facts))


def card(facts: dict[str, Any]) -> str:
    """The card of a draft, in Markdown. facts: target, origin, command, corpus, recipe, parameters, curve, held_out and
    races (empty, or as `run.race` returns them)."""
    corpus, recipe, held = facts["corpus"], facts["recipe"], facts["held_out"]
    curve = "\n".join(
        f"| {point['tokens']:,} | {point['alpha']:.3f} | {point['greedy']:.3f} |" for point in facts["curve"]
    )
    kinds = ", ".join(f"{kind} {value:.2f}" for kind, value in held["greedy by kind"].items())
    return f"""---
license: apache-2.0
library_name: speclib
---
# A draft for {facts["target"]}

A Llama of {recipe["layers"]} layers and width {recipe["hidden"]} ({facts["parameters"]:,} parameters, most of them the
embedding) that guesses what {facts["target"]} says next. It reads every token and says the {facts["head_size"]:,} most
frequent ones; the others have q = 0, so its target's output is unchanged. It is a drafter and no chat model.

    from speclib import pairs, spec_greedy
    pair = pairs.load("{facts["pair"]}")
    tokens, stats = spec_greedy(pair.target, pair.draft, pair.chat_ids("Why is the sky blue?"), max_new=128, K=3)

{_races(facts["races"])}
## How it was made

    {facts["command"]}

- Target: {facts["target"]} ({facts["origin"]}). Its chats and their probabilities are all that the draft has seen.
- Corpus: {corpus["tokens"]:,} tokens of chats that the target led with itself, {corpus["answer_tokens"]:,} of
  them answers (greedy or at 0.5–0.8, users' turns at 0.9), with its 32 most likely next tokens at each
  place. Seed {corpus["seed"]}, {corpus["shards"]} shards, SHA-256
  `{corpus["sha256"]}`. The prompts of the table above are not in it.
- Training: KL divergence, Muon for the layers and AdamW for the rest, {recipe["passes"]:g} passes,
  {recipe["batch"]:,} tokens a step, learning rates {recipe["lr_matrix"]:g} and {recipe["lr"]:g}, seed {recipe["seed"]}.
- On chats held out of the corpus: α = {held["alpha"]:.3f} at temperature 1 and {held["alpha at 0.7"]:.3f} at 0.7; where
  the target was greedy the draft's best guess was right {held["greedy"]:.3f} of the time ({kinds}),
  and the first 1, 2, … 8 guesses in a row {", ".join(f"{x:.2f}" for x in held["kept_at"])}.

| tokens seen | α at T = 1 | greedy agreement |
|---|---|---|
{curve}

Licence: Apache-2.0, as the target's.
"""


def _races(races: list[dict[str, Any]]) -> str:
    lines: list[str] = []
    for race in races:
        machine, (plain, *rows) = race["machine"], race["rows"]
        chip = machine["gpu"] or machine["cpu"]
        lines += [
            f"Temperature {race['temperature']:g}, {race['prompts']} prompts, {race['new']} tokens each, plain and",
            f"speculative in turns; plain {plain['tokens_per_second']:.1f} tokens/s. {chip},",
            f"{machine['threads']} of {machine['cores']} cores, {race['dtype']}, torch {machine['torch']};",
            f"load {machine['load_average']} before the run and {machine['load_average_after']} after it.",
            "",
            "| drafter | K | α̂ | AL | c | v(K) | speedup (95 % over prompts) | predicted | tokens/s |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            low, high = row["interval"]
            shares = [_share(row["alpha_hat"], 3), f"{row['mean_accepted_length']:.2f}"]
            shares += [_share(row["c"], 3), _share(row["v"], 2), f"{row['speedup']:.2f} ({low:.2f}–{high:.2f})"]
            shares += [_share(row["predicted"], 2), f"{row['tokens_per_second']:.1f}"]
            lines.append(f"| {' | '.join([row['drafter'], str(row['K']), *shares])} |")
        lines.append("")
    return "\n".join(lines)


def _share(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
