"""One case of the checker of `spec_greedy`: two models that look at what is asked of them, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from speclib import decode
from speclib.context import LanguageModel
from speclib.exercises import answer


def counts(stats: decode.Stats) -> dict[str, int]:
    """Rounds, drafts accepted, and drafts rejected: those behind a rejection are neither."""
    accepted, checked = sum(r.accepted for r in stats.rounds), sum(r.checked for r in stats.rounds)
    return {"rounds": len(stats.rounds), "accepted": accepted, "rejected": checked - accepted}


class Endless(BaseException):
    """Out of a loop that does not end, past any `except Exception` in it."""


class Run:
    """One case: two watched models, and the text that plain greedy writes."""

    def __init__(
        self,
        case: str,
        target: LanguageModel,
        draft: LanguageModel,
        prompt: list[int],
        max_new: int,
        K: int,
        passes: int | None = None,
    ):
        self.passes = passes
        self.case, self.prompt, self.max_new, self.K, self.eos = case, prompt, max_new, K, None
        self.reference = (target, draft)
        rounds = decode.decode(target, None, prompt, stop=decode.Stop(max_new))
        self.new = [t for r in rounds for t in r.tokens]

    def stop_at(self, eos: int) -> None:
        """From now on the text ends at the first place of this token."""
        self.eos, self.new = eos, self.new[: self.new.index(eos) + 1]

    def judge(self, fn: Callable[..., Any]) -> None:
        target, draft = self.reference
        wanted = counts(decode.spec_greedy(target, draft, self.prompt, self.max_new, self.K, self.eos)[1])
        target.rollback(0)
        draft.rollback(0)
        self.target, self.draft = Watched(target, "target", self), Watched(draft, "draft", self)
        more = [] if self.eos is None else [self.eos]
        try:
            got = answer(self.case, fn, self.target, self.draft, list(self.prompt), self.max_new, self.K, *more)
        except AssertionError as error:
            # What an earlier round left in a cache is most likely why.
            self._judge_ghosts(f"{str(error).removeprefix(self.case + ', ')}; before that, ")
            raise
        except Endless as endless:
            self.fail(str(endless))
        finally:
            target.rollback(0)
            draft.rollback(0)
        try:
            tokens, stats = got
        except (TypeError, ValueError):
            self.fail(f"return the list of new tokens and a dict of counts, not {got!r}")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            self.fail("the new tokens come back as a list of whole numbers: list(…) of them, and int(…) of each")
        self._judge_text(tokens)
        self._judge_ghosts()
        self._judge_passes()
        self._judge_budget()
        self._judge_twice()
        try:
            stats = {key: int(stats[key]) for key in wanted}
        except (TypeError, KeyError, ValueError):
            self.fail(f"the second result is a dict with rounds, accepted and rejected, not {stats!r}")
        if self.eos is None and stats != wanted:
            self.fail(f"the counts are {wanted}, but yours are {stats} (drafts behind a rejection are not counted)")

    def fail(self, sentence: str) -> None:
        raise AssertionError(f"{self.case}, {sentence}.") from None

    def _judge_text(self, tokens: list[int]) -> None:
        if tokens == self.new:
            return
        if len(tokens) > self.max_new:
            self.fail(f"at most {self.max_new} new tokens come back, but yours gives {len(tokens)}")
        if self.eos in tokens[:-1]:
            self.fail(f"the text ends at token {tokens.index(self.eos) + 1}, but yours runs on behind it")
        if tokens == self.new[: len(tokens)]:
            why = "; the EOS itself is part of the text" if self.eos is not None else ""
            self.fail(f"there are {len(self.new)} new tokens, but yours ends after {len(tokens)}{why}")
        i = next(i for i, (x, y) in enumerate(zip(tokens, self.new, strict=False)) if x != y)
        place = len(self.prompt) + i
        ghost = self.target.ghost
        if ghost and not (
            ghost[1] - len(self.prompt) < len(tokens) and ghost[0] == tokens[ghost[1] - len(self.prompt)]
        ):
            self._judge_ghosts()
        said = f"new token {i + 1} is {self.new[i]} in plain greedy, but yours is {tokens[i]}"
        self.fail(f"{said}{self.target.reason(place, tokens[i])}")

    def _judge_passes(self) -> None:
        if self.passes and self.target.passes > self.passes + 1:
            self.fail(
                f"each round brings {self.K} drafts and a bonus, so {self.passes} passes of the target are enough "
                f"(and one for the prompt), but yours took {self.target.passes}: score all drafts "
                "in one pass, and add the bonus"
            )

    def _judge_budget(self) -> None:
        drafts, room = max(self.target.scored, key=lambda pair: pair[0] - pair[1], default=(0, 0))
        if drafts > room:
            self.fail(
                f"a round scored {drafts} drafts when only {room} could be used: of what is left of max_new, one place "
                "is for the fix or the bonus"
            )

    def _judge_ghosts(self, first: str = "") -> None:
        for model in (self.target, self.draft):
            if model.ghost:
                self.fail(
                    f"{first}the {model.name}'s cache held token {model.ghost[0]} at place {model.ghost[1]}, and the "
                    "text does not: cut it back to the length of the text minus 1, and feed what it lacks"
                )

    def _judge_twice(self) -> None:
        for model in (self.target, self.draft):
            if model.again:
                token, place = model.again
                self.fail(
                    f"the {model.name} read token {token} at place {place} twice: it was cut back too far; what is in "
                    "the text, minus its last token, may stay in the cache"
                )


class Watched:
    """A model that looks at what is asked of it, and ends a loop that would not end."""

    def __init__(self, model: LanguageModel, name: str, run: Run):
        self.model, self.name, self.run = model, name, run
        self.vocab_size, self.max_length, self.size = model.vocab_size, model.max_length, model.size
        self.passes = 0
        self.ghost: tuple[int, int] | None = None  # (token, place)
        self.again: tuple[int, int] | None = None
        self.scored: list[tuple[int, int]] = []  # per round: drafts, and how many could be used
        self.best: list[tuple[int, list[int], list[int]]] = []  # per pass: first place, ids, argmaxes
        self._text = run.prompt + run.new
        self._length = len(run.prompt)  # of the text, if all goes well
        self._read: set[int] = set()

    @property
    def tokens(self) -> list[int]:
        return list(self.model.tokens)

    def rollback(self, length: int) -> None:
        self.model.rollback(length)

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        ids, before = list(ids), self.tokens
        if not ids:
            raise ValueError(
                f"nothing to feed: the {self.name}'s cache already covers {len(before)} tokens; was it cut back?"
            )
        self.passes += 1
        if self.passes > 20 + len(self._text) * (self.run.K + 1):
            raise Endless(
                f"the {self.name} was asked {self.passes} times and the text is still too short: does it grow in every "
                "round? Behind the kept drafts one more token follows, the fix or the bonus"
            )
        start, block = len(before), before + ids
        for place in range(start, min(len(block), len(self._text))):
            if block[: place + 1] == self._text[: place + 1]:
                if place in self._read:
                    self.again = self.again or (block[place], place)
                self._read.add(place)
        logits = self.model.feed(ids, rows)
        if self.name == "target":
            self._look(before, block)
            self.best.append((len(block) - len(logits), block, logits.argmax(-1).tolist()))
        return logits

    def _look(self, before: list[int], block: list[int]) -> None:
        """What is in the caches, and how many drafts there are, now that a block is scored."""
        if self.ghost is None:
            self.ghost = _parting(before, self._text)
        draft = self.run.draft
        if draft.ghost is None:
            draft.ghost = _parting(draft.tokens, block)
        if len(block) >= self._length:
            drafts = block[self._length :]
            kept = _parting(drafts, self._text[self._length :])
            kept = kept[1] if kept else min(len(drafts), len(self._text) - self._length)
            self.scored.append((len(drafts), len(self.run.prompt) + self.run.max_new - self._length - 1))
            self._length += kept + 1

    def reason(self, place: int, token: int) -> str:
        """Why a wrong token may have come out at a place of the text: as the end of a sentence."""
        rule = (
            "row i is what the target says after drafts[:i]; it judges drafts[i], and gives the token if that one fails"
        )
        for first, block, best in self.best:
            row = place - 1 - first
            if 0 <= row < len(best) and block[:place] == self._text[:place]:
                if place < len(block) and block[place] == token:
                    return f", a draft that the target does not say there: {rule}"
                if row + 1 < len(best) and best[row + 1] == token:
                    return f", which stands one row too late: {rule}"
                if row and best[row - 1] == token:
                    return f", which stands one row too early: {rule}"
        return f": {rule}"


def _parting(a: list[int], b: list[int]) -> tuple[int, int] | None:
    """a's token and its place where a first differs from b, as far as both go; None if they agree."""
    return next(((x, i) for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
