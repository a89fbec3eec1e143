"""A small Llama learns what the target would say next: the data as a trainer reads it, the training, the evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from speclib.distill.corpus import DRAWN, FORCED, GREEDY, KINDS, USER, shard_path
from speclib.distill.loss import distance
from speclib.draft import DraftConfig, DraftForCausalLM

HELD_OUT = 32  # every 32nd chat is kept for evaluation
# A draft speaks in answers; users' words are read, and learnt from a little; what a template forces is only read.
WEIGHTS = {FORCED: 0.0, USER: 0.3, GREEDY: 1.0, DRAWN: 1.0}
WARM_UP, DECAY = 30, 0.6  # steps; the share of all steps in which the learning rate falls to zero
EVALUATIONS = 8  # points of the learning curve


@dataclass(frozen=True)
class Recipe:
    """The draft and its training. vocab_top: output rows. passes: over the corpus. batch: tokens a step. lr: AdamW's,
    of embedding, output and norms; lr_matrix: Muon's, of the layers' matrices. tv: the last share of the steps, in
    which the loss is 1 − α instead of the KL divergence. ValueError: a setting out of range.
    """

    hidden: int = 256
    layers: int = 3
    vocab_top: int = 12_288
    passes: float = 6.0
    batch: int = 2_048
    lr: float = 4e-3
    lr_matrix: float = 0.02
    tv: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden < 64 or self.hidden % 64:
            raise ValueError(f"the draft's width must be a multiple of 64, not {self.hidden}")
        if min(self.layers, self.vocab_top, self.batch) < 1 or self.passes <= 0:
            raise ValueError("a draft needs at least one layer, one token to say and some passes over the corpus")
        if not 0 <= self.tv <= 1:
            raise ValueError(f"the share of the steps that train on 1 − α is in [0, 1], not {self.tv}")


class Chats:
    """Chats of one length: tokens [rows, length]; slots, p [rows, length, 32]: output rows of the target's likeliest
    next tokens (−1: it has none) and their probabilities; mode [rows, length]: how the next token came about; kind."""

    def __init__(self, shards: list[dict[str, Tensor]], kept: Tensor, vocab: int):
        slot_of = torch.full((vocab,), -1, dtype=torch.int32)
        slot_of[kept] = torch.arange(len(kept), dtype=torch.int32)
        self.tokens = torch.cat([s["tokens"] for s in shards])
        self.slots = torch.cat([slot_of[s["ids"].long()] for s in shards])
        self.p = torch.cat([s["p"] for s in shards])
        # Position i is judged by what it says of token i + 1; behind the last there is nothing.
        self.mode = F.pad(torch.cat([s["mode"] for s in shards])[:, 1:], (0, 1), value=FORCED)
        self.kind = torch.cat([s["kind"] for s in shards])
        self.weight = torch.tensor([WEIGHTS[m] for m in range(4)])[self.mode.long()]


def read(folder: Path, shards: int, held_out: bool) -> list[dict[str, Tensor]]:
    """The first shards of a corpus without the chats that are kept for evaluation, or those alone."""
    out = []
    for index in range(shards):
        shard = load_file(shard_path(folder, index))
        pick = (torch.arange(len(shard["tokens"])) % HELD_OUT == 0) == held_out
        out.append({name: x[pick] for name, x in shard.items()})
    return out


def by_length(shards: list[dict[str, Tensor]], kept: Tensor, vocab: int) -> list[Chats]:
    """Shards as `Chats`, one for each length that occurs."""
    lengths = sorted({s["tokens"].shape[1] for s in shards})
    return [Chats([s for s in shards if s["tokens"].shape[1] == n], kept, vocab) for n in lengths]


def frequent(shards: list[dict[str, Tensor]], vocab: int, top: int) -> Tensor:
    """The ids [top] that are likeliest in the corpus by the target's own probabilities, in ascending order."""
    mass = torch.zeros(vocab, dtype=torch.float64)
    for s in shards:
        mass.index_add_(0, s["ids"].flatten().long(), s["p"].flatten().double())
    return mass.topk(min(top, vocab)).indices.sort().values


def new_draft(recipe: Recipe, embedding: Tensor, kept: Tensor, positions: int) -> DraftForCausalLM:
    """An untrained draft; its embedding and output are the principal components of the target's embedding."""
    vocab = len(embedding)
    config = DraftConfig(
        vocab_size=vocab,
        head_size=len(kept),
        hidden_size=recipe.hidden,
        intermediate_size=round(recipe.hidden * 8 / 3 / 64) * 64,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.hidden // 64,
        num_key_value_heads=recipe.hidden // 64,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = DraftForCausalLM(config)
    centred = embedding.float() - embedding.float().mean(0)
    _, basis = torch.linalg.eigh(centred[kept].T @ centred[kept])  # ascending
    components = centred @ basis[:, -recipe.hidden :].flip(1)
    components *= 0.5 / components[kept].std()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(components)
        model.lm_head.weight.copy_(0.2 * components[kept])
        model.lm_head.kept.copy_(kept)
    return model


def batches(data: list[Chats], tokens: int, seed: int) -> Iterator[tuple[Chats, Tensor]]:
    """For ever: (chats, rows), in an order that follows from the seed; every chat once in each pass."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        found = []
        for chats in data:
            rows = max(1, tokens // chats.tokens.shape[1])
            found += [(chats, i) for i in torch.randperm(len(chats.tokens), generator=generator).split(rows)]
        for i in torch.randperm(len(found), generator=generator).tolist():
            yield found[i]


def train(
    model: DraftForCausalLM, data: list[Chats], held_out: list[Chats], recipe: Recipe, checkpoint: Path
) -> list[dict[str, Any]]:
    """Train the model in place and return its learning curve: tokens seen, α and greedy agreement on held-out chats.

    Resumes from the checkpoint file, which is renewed at each point of the curve, if it was made by the same recipe.
    Source: Zhou et al. 2024, DistillSpec, section 3; Jordan et al. 2024, Muon (the layers' matrices).
    """
    from tqdm import tqdm

    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    # A batch holds some hundred of all tokens: only their rows of the embedding are touched.
    model.model.embed_tokens.sparse = True
    others = [model.lm_head.weight, *(p for p in model.model.parameters() if p.ndim == 1)]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.lr_matrix, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.0),
        torch.optim.SparseAdam([model.model.embed_tokens.weight], lr=recipe.lr, betas=(0.9, 0.98)),
    ]
    rates = [o.param_groups[0]["lr"] for o in optimizers]
    total = sum(chats.tokens.numel() for chats in data)
    steps, seen, curve, start = max(1, int(total * recipe.passes / recipe.batch)), 0, [], 0
    key = {"recipe": asdict(recipe), "tokens": total}
    if checkpoint.is_file():
        saved = torch.load(checkpoint, weights_only=True)
        if saved["key"] == key:
            model.load_state_dict(saved["model"])
            for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            start, seen, curve = saved["step"], saved["seen"], saved["curve"]
    order = batches(data, recipe.batch, recipe.seed)
    for _ in range(start):
        next(order)
    device = model.device.type
    for step in tqdm(range(start, steps), initial=start, total=steps, desc="train", mininterval=10):
        fraction = min((step + 1) / WARM_UP, 1.0, max(0.01, (1 - step / steps) / DECAY))
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * fraction
        chats, rows = next(order)
        weight = chats.weight[rows].flatten()
        at = weight.nonzero()[:, 0]
        if len(at):
            with torch.autocast(device, torch.bfloat16):
                hidden = model.model(chats.tokens[rows].to(device), use_cache=False).last_hidden_state
            slots, p = (x[rows].flatten(0, 1)[at].to(device) for x in (chats.slots, chats.p))
            hidden = hidden.flatten(0, 1)[at.to(device)].to(torch.bfloat16)
            loss, _ = distance(
                hidden, model.lm_head.weight, slots, p, weight[at].to(device), step / steps >= 1 - recipe.tv
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        seen += chats.tokens[rows].numel()
        if (step + 1) * EVALUATIONS // steps > step * EVALUATIONS // steps:
            found = evaluate(model, held_out)
            curve.append({"tokens": seen, "alpha": found["alpha"], "greedy": found["greedy"]})
            tqdm.write(f"{seen:,} tokens: α {found['alpha']:.3f}, greedy agreement {found['greedy']:.3f}")
            state = {"key": key, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
            half_written = checkpoint.with_suffix(".tmp")
            torch.save(state | {"step": step + 1, "seen": seen, "curve": curve}, half_written)
            half_written.replace(checkpoint)
    return curve


@torch.no_grad()
def evaluate(model: DraftForCausalLM, data: list[Chats]) -> dict[str, Any]:
    """α = Σ min(p, q) over answers, at temperatures 1 and 0.7; in greedy answers, how often the argmax agrees, and that
    by kind of question, and `kept_at`: for i = 1 … 8, how often the first i drafts of a block would all be kept."""
    device, head = model.device.type, model.lm_head.weight.to(torch.bfloat16)
    alphas, cooler, agree, kinds, runs = [], [], [], [], [[] for _ in range(8)]
    for chats in data:
        for row in range(len(chats.tokens)):
            with torch.autocast(device, torch.bfloat16):
                hidden = model.model(chats.tokens[row : row + 1].to(device), use_cache=False).last_hidden_state[0]
            z = (hidden.to(torch.bfloat16) @ head.T).float().cpu()
            slots, p, mode = chats.slots[row].long(), chats.p[row].float(), chats.mode[row]
            has, answer, greedy = slots >= 0, mode >= GREEDY, mode == GREEDY
            q = z.softmax(-1).gather(1, slots.clamp(min=0)) * has
            alphas.append(torch.minimum(p, q).sum(-1)[answer])
            p, q = (p + 1e-9).pow(1 / 0.7), (z / 0.7).softmax(-1).gather(1, slots.clamp(min=0)) * has
            cooler.append(torch.minimum(p / p.sum(-1, keepdim=True), q).sum(-1)[answer])
            match = z.argmax(-1) == slots[:, 0]
            agree.append(match[greedy])
            kinds.append(chats.kind[row][greedy])
            run, inside = match, greedy
            for i in range(8):
                runs[i].append(run[inside])
                run, inside = run[:-1] & match[i + 1 :], inside[:-1] & greedy[i + 1 :]
    agreed, kind = torch.cat(agree).float(), torch.cat(kinds)

    def mean(x: Tensor) -> float:
        return round(float(x.float().mean()), 4) if len(x) else 0.0

    return {
        "alpha": mean(torch.cat(alphas)),
        "alpha at 0.7": mean(torch.cat(cooler)),
        "greedy": mean(agreed),
        "greedy by kind": {name: mean(agreed[kind == i]) for i, name in enumerate(KINDS) if bool((kind == i).any())},
        "kept_at": [mean(torch.cat(run)) for run in runs],
    }
