"""The target talks to itself, and what it thought of every next token is written down.

Many chats grow side by side, one token of each per pass. A shard is one such batch; it follows from the seed and its
number alone and is renamed into place when complete, so that a run that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel

from speclib.context import run
from speclib.distill import seeds
from speclib.lean import Lean

TOP = 32  # probabilities kept per position
FORCED, USER, GREEDY, DRAWN = range(4)  # how a token came about
KINDS = (*seeds.KINDS, "opening", "free")
TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.7, 0.7, 0.8)  # of the answers; user turns are drawn at 0.9
LONG = 8  # every eighth shard holds longer chats, whose later turns are there for drafts far into a talk


@dataclass(frozen=True)
class Template:
    """A chat template as runs of ids. head: up to the first user's words; answer: from behind them to where the answer
    begins; again: from behind an answer to the next user's words (both begin with the id that ends a turn)."""

    head: list[int]
    answer: list[int]
    again: list[int]

    @classmethod
    def of(cls, tokenizer: Any) -> Template:
        """Cut the tokenizer's template apart. ValueError: it has none, or does not repeat turns as they are."""
        if not tokenizer.chat_template:
            raise ValueError("the target's tokenizer has no chat template: distil an instruction-tuned model")
        words = ("first", "second", "third")
        turns = [{"role": r, "content": f"@{w}@"} for r, w in zip(("user", "assistant", "user"), words, strict=True)]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        parts = [text]
        for word in words:
            parts[-1:] = parts[-1].split(f"@{word}@")
        if len(parts) != 4 or not all(parts):
            raise ValueError("the target's chat template rewrites its turns: distil a model with a plain one")
        head, answer, again, last = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
        # A header that names the role before the first answer and not before the second would mislead the draft.
        return cls(head, last if len(last) <= len(answer) else answer, again)


@dataclass
class _Chat:
    """One row: what is to be put in next, and how the token behind it is chosen."""

    rng: random.Random
    template: Template
    tokenizer: Any
    queue: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    mode: int = USER
    kind: int = 0
    temperature: float = 0.9
    began: int = 0

    def ask(self, lead: list[int]) -> None:
        """Begin a user turn: whole, begun, or left to the target."""
        self.queue += lead
        way = self.rng.choices(("whole", "opening", "free"), (4, 3, 3))[0]
        if way == "whole":
            text, kind = seeds.question(self.rng)
            self.kind = KINDS.index(kind)
            self.queue += self.tokenizer.encode(text, add_special_tokens=False)
            self.reply()
        else:
            self.kind = KINDS.index(way)
            if way == "opening":
                self.queue += self.tokenizer.encode(seeds.opening(self.rng), add_special_tokens=False)
            self.mode, self.temperature, self.began = USER, 0.9, len(self.tokens) + len(self.queue)

    def reply(self) -> None:
        self.queue += self.template.answer
        self.temperature = self.rng.choice(TEMPERATURES)
        self.mode = DRAWN if self.temperature else GREEDY
        self.began = len(self.tokens) + len(self.queue)

    def next(self, drawn: int) -> tuple[int, int]:
        """The token that is put in now, given what the model would say, and how it came about."""
        if self.queue:
            token, mode = self.queue.pop(0), FORCED
        else:
            token, mode = drawn, self.mode
            ended = token in (self.template.answer[0], self.template.again[0])
            if mode == USER and (ended or len(self.tokens) - self.began >= 80):
                mode = USER if ended else FORCED
                self.reply()
                token = self.queue.pop(0)
            elif mode != USER and (ended or self._loops()):
                mode = mode if ended else FORCED
                self.ask(self.template.again)
                token = self.queue.pop(0)
        self.tokens.append(token)
        return token, mode

    def _loops(self) -> bool:
        """Small models repeat themselves for ever when greedy: a little of it is lifelike, a corpus full is waste."""
        recent = self.tokens[max(self.began, len(self.tokens) - 96) :]
        if len(recent) < 96 or len(recent) % 8:
            return False
        return len({tuple(recent[i : i + 4]) for i in range(93)}) < 46


def _stepper(model: PreTrainedModel, rows: int, length: int, head: list[int]) -> Any:
    """A function that puts one token behind each row, ids [rows] → logits [rows, vocab]; every row begins with head."""
    first = torch.tensor([head], device=model.device)
    if type(model) is LlamaForCausalLM:
        lean = Lean(model)
        once, cache = lean.cache(1, len(head)), lean.cache(rows, length)
        lean(first, once, rows=1)
        cache.held[..., : len(head), :] = once.held
        cache.length = len(head)
        return lambda ids: lean(ids[:, None], cache)[:, 0]
    cache = DynamicCache()
    run(model, cache, first.expand(rows, -1), logits_to_keep=1)
    return lambda ids: run(model, cache, ids[:, None]).logits[:, -1]


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The TOP largest of logits [rows, vocab], their ids, and the logarithm of the sum of all exponentials [rows]."""
    z = logits.float()
    top, ids = z.topk(min(TOP, z.shape[-1]))
    return top, ids, z.logsumexp(-1)


@torch.inference_mode()
def make_shard(
    model: PreTrainedModel, tokenizer: Any, seed: int, index: int, rows: int, length: int
) -> dict[str, Tensor]:
    """One batch of chats. [rows, length] each: tokens; mode (how each came about); kind (of the question before it);
    ids and p [rows, length, 32]: the most likely tokens behind it, and their probabilities at temperature 1 (fp16).

    Follows from seed and index, up to rounding.
    """
    template = Template.of(tokenizer)
    head = template.head[:-1]
    chats = [_Chat(random.Random(f"{seed}/{index}/{row}"), template, tokenizer, tokens=head[:]) for row in range(rows)]
    generator = torch.Generator(model.device).manual_seed(seed * 1_000_003 + index)
    for chat in chats:
        chat.ask(template.head[-1:])
    step = _stepper(model, rows, length, head)
    drawn, columns = [0] * rows, []
    for _ in range(length - len(head)):
        picked = [chat.next(token) for chat, token in zip(chats, drawn, strict=True)]
        tokens, modes = (torch.tensor(x) for x in zip(*picked, strict=True))
        top, ids, total = most_likely(step(tokens.to(model.device)))
        kinds = torch.tensor([chat.kind for chat in chats])
        p = (top - total[:, None]).exp()
        columns.append((tokens.int(), modes.byte(), kinds.byte(), ids.int().cpu(), p.half().cpu()))
        # The tail behind the 32 is left out of the draw, as top-k sampling would.
        temperature = torch.tensor([max(chat.temperature, 1e-6) for chat in chats], device=top.device)
        weights = ((top - top[:, :1]) / temperature[:, None]).softmax(-1)
        choice = torch.multinomial(weights, 1, generator=generator)
        drawn = ids.long().gather(1, choice)[:, 0].tolist()
    names = ("tokens", "mode", "kind", "ids", "p")
    shard = {name: torch.stack(column, 1) for name, column in zip(names, zip(*columns, strict=True), strict=True)}
    # What stands before every chat was not predicted by anyone: zeros, but for the tokens themselves.
    shard = {name: torch.cat([x.new_zeros(rows, len(head), *x.shape[2:]), x], 1) for name, x in shard.items()}
    shard["tokens"][:, : len(head)] = torch.tensor(head, dtype=torch.int32)
    return shard


def grow(
    model: PreTrainedModel, tokenizer: Any, folder: Path, shards: range, seed: int, rows: int, length: int
) -> None:
    """Write those of `shards` (numbers) that the folder does not hold yet; see `make_shard`.

    Every eighth has half as many rows of twice the length. ValueError: the folder holds a corpus of another seed or
    shape, which would not go together with this one.
    """
    from tqdm import tqdm

    folder.mkdir(parents=True, exist_ok=True)
    settings = {"seed": seed, "rows": rows, "length": length}
    note = folder / "settings.json"
    if note.is_file() and json.loads(note.read_text()) != settings:
        raise ValueError(
            f"{folder} holds a corpus of other settings ({note.read_text().strip()}): choose another folder"
        )
    note.write_text(json.dumps(settings) + "\n")
    for i in tqdm(
        [i for i in shards if not shard_path(folder, i).is_file()], desc="chats", unit="shard", mininterval=10
    ):
        long = i % LONG == LONG - 1
        shard = make_shard(model, tokenizer, seed, i, rows // 2 if long else rows, 2 * length if long else length)
        half_written = folder / f"{os.getpid()}.tmp"
        save_file(shard, half_written, {"seed": str(seed), "index": str(i)})
        half_written.replace(shard_path(folder, i))


def shard_path(folder: Path, index: int) -> Path:
    """Where a shard is kept."""
    return folder / f"shard-{index:05d}.safetensors"


def record(folder: Path, shards: int) -> dict[str, Any]:
    """What the first shards of a corpus are: settings, tokens, tokens of answers, and one SHA-256 over all in order."""
    digest, tokens, answers = hashlib.sha256(), 0, 0
    for i in range(shards):
        shard = load_file(shard_path(folder, i))
        # Of the numbers, not of the file, whose header has no fixed order.
        for _, x in sorted(shard.items()):
            digest.update(x.numpy().tobytes())
        mode = shard["mode"]
        tokens, answers = tokens + mode.numel(), answers + int((mode >= GREEDY).sum())
    settings = json.loads((folder / "settings.json").read_text())
    return settings | {"shards": shards, "tokens": tokens, "answer_tokens": answers, "sha256": digest.hexdigest()}
