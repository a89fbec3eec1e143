"""A generation seen from outside: its rounds, and what both caches really held at each moment of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from speclib.context import LanguageModel, shared
from speclib.decode import Stats
from speclib.wrong import Ghosts


class Held(NamedTuple):
    """One place of a cache: the token that was fed there, and whether it is a ghost, so no part of the text."""

    token: int
    ghost: bool = False


Cache = tuple[Held, ...]


@dataclass(frozen=True)
class Seen:
    """One round, with the fields that `decode.Stats` asks of a `Round`.

    start: how many tokens the text had. drafts: as scored by the target. tokens: committed. draft_cache: after
    drafting, and at the round's end. target_cache: before the pass, after it, and at the round's end.
    """

    start: int
    drafts: tuple[int, ...]
    tokens: tuple[int, ...]
    draft_cache: tuple[Cache, Cache]
    target_cache: tuple[Cache, Cache, Cache]

    @property
    def accepted(self) -> int:
        """Leading drafts that were committed."""
        return shared(list(self.drafts), list(self.tokens))

    @property
    def drafted(self) -> int:
        """As `Round.drafted`: where the text ended inside the kept drafts, those behind its end do not count."""
        return self.accepted if self.accepted == len(self.tokens) else len(self.drafts)

    @property
    def checked(self) -> int:
        """As `Round.checked`."""
        return min(self.accepted + 1, self.drafted)

    @property
    def last(self) -> str:
        """What the token behind the kept drafts is: fix, bonus, plain (nothing was drafted), or end: there is none."""
        if self.accepted == len(self.tokens):
            return "end"
        return "plain" if not self.drafts else "fix" if self.accepted < len(self.drafts) else "bonus"


@dataclass(frozen=True)
class Trace:
    """A generation: pure data, from which the stepper is drawn. expected: the tokens of plain greedy, if known."""

    prompt: tuple[int, ...]
    rounds: tuple[Seen, ...]
    expected: tuple[int, ...] | None = None

    @property
    def tokens(self) -> list[int]:
        """Every committed id."""
        return [t for r in self.rounds for t in r.tokens]

    @property
    def stats(self) -> Stats:
        """α̂, AL and the like; nothing was timed."""
        return Stats(list(self.rounds))

    @property
    def parts_at(self) -> int | None:
        """Where the tokens first differ from those expected; None if nowhere, or if nothing was expected."""
        if self.expected is None or self.tokens == list(self.expected):
            return None
        return shared(self.tokens, list(self.expected))


def record(
    write: Callable[..., tuple[list[int], Any]],
    target: LanguageModel,
    draft: LanguageModel | None,
    prompt_ids: list[int],
    max_new: int,
    K: int,
    eos: int | None = None,
    expected: list[int] | None = None,
) -> Trace:
    """Let `write` generate with two models that are watched, and put together what its rounds were.

    write: `decode.spec_greedy`, or any function that takes the same arguments, returns the new tokens first, and scores
    its drafts in one pass. target, draft: contexts or table models that cover nothing yet; `wrong.Ghosts` of one shows
    its ghosts. draft: None where write needs none. expected: the tokens of plain greedy, to compare with.
    Taught in notebook 03_greedy, section 'Drag it: one round'.
    """
    log = _Log(len(prompt_ids))
    log.target, log.draft = _Watched(target, log), _Watched(draft, log) if draft is not None else None
    tokens = list(write(log.target, log.draft, prompt_ids, max_new, K, eos)[0])
    log.settle()
    rounds, start, end = [], len(prompt_ids), len(prompt_ids) + len(tokens)
    for note, following in zip(log.notes, [*log.notes[1:], None], strict=True):
        after = note.text_after if following else end
        committed = tokens[start - len(prompt_ids) : after - len(prompt_ids)]
        seen = Seen(start, tuple(note.block[start:]), tuple(committed), note.draft_cache, note.target_cache)
        rounds.append(seen)
        start = after
    return Trace(tuple(prompt_ids), tuple(rounds), None if expected is None else tuple(expected))


@dataclass
class _Note:
    block: list[int]
    draft_cache: tuple[Cache, ...]
    target_cache: tuple[Cache, ...]
    text_after: int = 0


@dataclass
class _Log:
    prompt_length: int
    notes: list[_Note] = field(default_factory=list)
    target: Any = None
    draft: Any = None

    def settle(self) -> None:
        """Note how the last round left the caches, once it is certain that it is over."""
        if self.notes and not self.notes[-1].text_after:
            note = self.notes[-1]
            note.text_after = len(self.target.tokens) + 1
            note.target_cache += (tuple(self.target.held),)
            note.draft_cache += (self._drafts(),)

    def scored(self, before: Cache) -> None:
        """The target has read something: a round, unless it was only the beginning of the prompt."""
        if len(self.target.tokens) >= self.prompt_length:
            now = tuple(self.target.held)
            self.notes.append(_Note(list(self.target.tokens), (self._drafts(),), (before, now)))

    def _drafts(self) -> Cache:
        return tuple(self.draft.held) if self.draft else ()


class _Watched:
    """A model whose `held` is what its cache really holds, also where it lies about it."""

    def __init__(self, model: LanguageModel, log: _Log):
        self.model, self.held = model, []
        self.vocab_size, self.max_length, self.size = model.vocab_size, model.max_length, model.size
        self._log = log

    @property
    def tokens(self) -> list[int]:
        return self.model.tokens

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        self._log.settle()
        before = tuple(self.held)
        logits = self.model.feed(ids, rows)
        self.held += [Held(t) for t in ids]
        if self is self._log.target:
            self._log.scored(before)
        return logits

    def rollback(self, length: int) -> None:
        surplus = len(self.tokens) - length
        self.model.rollback(length)
        true = [i for i, cell in enumerate(self.held) if not cell.ghost]
        for i in reversed(true[len(true) - surplus :] if surplus > 0 else []):
            if isinstance(self.model, Ghosts):
                self.held[i] = Held(self.held[i].token, ghost=True)
            else:
                del self.held[i]


class Foreign:
    """A draft as if from another family: every token id means another piece of text to it than to the target.

    model: a draft that covers nothing yet. seed: which permutation of its ids. What it proposes are real guesses,
    in a language that the target does not speak. Taught in notebook 03_greedy, section 'Break it'.
    """

    def __init__(self, model: LanguageModel, seed: int = 0):
        self.model, self.tokens = model, []
        self.vocab_size, self.max_length, self.size = model.vocab_size, model.max_length, model.size
        generator = torch.Generator().manual_seed(seed)
        self._theirs = torch.randperm(model.vocab_size, generator=generator)

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        """As `Context.feed`, with ids and logits in the target's numbering."""
        logits = self.model.feed(self._theirs[ids].tolist(), rows)
        self.tokens = self.tokens + ids
        return logits[:, self._theirs.to(logits.device)]

    def rollback(self, length: int) -> None:
        """As `Context.rollback`."""
        self.model.rollback(length)
        self.tokens = self.tokens[:length]
