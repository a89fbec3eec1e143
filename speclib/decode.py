"""The one loop, which everything else in speclib calls.

A drafter guesses up to k tokens. The target scores all of them in one pass, which takes about as long as a pass over
one token, since reading the weights is what takes the time. From left to right a rule keeps drafts as long as they
pass, then adds one token of the target's own: the fix for the first rejected draft, or the bonus when all were kept.
The rule (accept.py) is made so that the text follows the target's distribution exactly, whatever the drafter says.
Plain decoding is the loop without drafts.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from numbers import Integral

from transformers import PreTrainedModel

from speclib import accept
from speclib.context import LanguageModel, as_context, shared
from speclib.distributions import Rng, Sampling, check_banned
from speclib.drafters import Drafter, ModelDrafter, Proposal
from speclib.stopping import FinishReason, Stop, Trimmer

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Round:
    """What one round brought.

    tokens: committed, already trimmed. drafted, accepted: drafts that the target scored, and those of them that
    stayed, counted only as far as the text goes on (what stands behind an EOS was never part of it). text: what may be
    shown, when Stop has a tokenizer. seconds_draft, seconds_verify: wall time of the drafter; of target and rule.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    finish_reason: FinishReason | None
    text: str
    seconds_draft: float
    seconds_verify: float

    @property
    def checked(self) -> int:
        """Drafts that were judged: those behind a rejection are not."""
        return min(self.accepted + 1, self.drafted)


def decode(
    target: LanguageModel,
    drafter: Drafter | None,
    prompt_ids: list[int],
    *,
    k: int | Callable[[Round | None], int] = 4,
    sampling: Sampling = GREEDY,
    stop: Stop = Stop(),  # noqa: B008 (frozen)
    rng: Rng | None = None,
) -> Iterator[Round]:
    """Generate, a round at a time, text that follows the target's distribution exactly.

    target: a context or table model; what it already covers of the prompt is not computed again. drafter:
    who guesses; None is plain decoding. prompt_ids: at least one id. k: drafts per round, or a function
    of the round before (None at first) that says how many. sampling: how logits become p, for target and
    drafter alike. stop: what ends the text. rng: answers `kept` and `draw`; None draws a fresh seed.
    Yields a `Round` for each pass of the target; the last carries a finish_reason.
    ValueError, when the first round is asked for: an empty prompt, ids the target has no row for, more tokens than it
    has positions, k < 0.
    Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
    Taught in notebook 03_greedy, section 'The loop'.
    """
    text = list(prompt_ids)
    _check(target, text, k, sampling, stop.max_new)
    if stop.max_new == 0:
        return
    rng = Rng() if rng is None else rng
    sampling = dataclasses.replace(sampling, prompt_length=len(text))
    trimmer = Trimmer(stop)
    end = len(text) + stop.max_new
    last: Round | None = None

    # Prefill. From here on the target's cache covers the text but for its last token, and the drafter's a
    # prefix of that; whatever a cache lacks is fed to it first, in front of the drafts.
    target.rollback(shared(target.tokens, text[:-1]))
    if len(text) - 1 > len(target.tokens):
        target.feed(text[len(target.tokens) : -1], rows=1)
    if drafter:
        drafter.begin(text, target)

    while last is None or last.finish_reason is None:
        started = time.perf_counter()

        # Draft. One token of the budget is left for the fix or the bonus.
        wanted = min(k(last) if callable(k) else k, end - len(text) - 1)
        drafts, q = drafter.propose(text, wanted, sampling, rng) if drafter and wanted > 0 else Proposal([])
        if len(drafts) > max(wanted, 0):
            raise ValueError(f"the drafter was asked for at most {wanted} tokens and proposed {len(drafts)}")
        drafted_at = time.perf_counter()

        # Verify: one pass, and its last len(drafts) + 1 rows are the predictions after the text, after the
        # first draft, …, after all of them.
        logits = target.feed(text[len(target.tokens) :] + drafts, rows=len(drafts) + 1)
        logits = sampling.penalise(logits, text, drafts)

        # Keep the leading drafts that pass, then one token more: the fix, drawn from the residual, or the bonus, drawn
        # from p, when all were kept.
        if sampling.temperature == 0:
            kept, token = accept.judge_greedy(logits, drafts)
        else:
            kept, weights = accept.judge(sampling.warp(logits), q, drafts, rng)
            token = rng.draw(weights)
        tokens, shown, finish_reason = trimmer.trim([*drafts[:kept], token])

        # Roll back: what was rejected or trimmed must not stay in a cache, where later steps would read it. The drafter
        # has never read its last draft, so it is told how much of what it may hold is true, and catches up when it is
        # asked again.
        accepted = min(kept, len(tokens))
        true_length = len(text) + accepted
        text += tokens
        target.rollback(len(text) - 1)
        if drafter:
            drafter.rollback(true_length)
        if target.tokens != text[:-1]:
            raise RuntimeError("the target's cache covers something else than the text: a rollback is missing")

        # Where the text ended inside the kept drafts, those behind the end do not count.
        drafted = accepted if accepted == len(tokens) else len(drafts)
        seconds = drafted_at - started, time.perf_counter() - drafted_at
        last = Round(tokens, drafted, accepted, finish_reason, shown, *seconds)
        yield last


@dataclass
class Stats:
    """A generation's rounds, and the figures that follow from them (docs/words.md).

    Taught in notebook 03_greedy, section 'Measure'.
    """

    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Every committed id."""
        return [t for r in self.rounds for t in r.tokens]

    @property
    def alpha_hat(self) -> float:
        """α̂: kept ÷ checked, pooled over rounds; NaN if nothing was checked."""
        return _ratio(sum(r.accepted for r in self.rounds), sum(r.checked for r in self.rounds))

    @property
    def acceptance_rate(self) -> float:
        """Kept ÷ drafted, which falls with K; NaN if nothing was drafted."""
        return _ratio(sum(r.accepted for r in self.rounds), sum(r.drafted for r in self.rounds))

    @property
    def mean_accepted_length(self) -> float:
        """AL: committed tokens per round, fix or bonus included; 1 for plain decoding."""
        return _ratio(len(self.tokens), len(self.rounds))

    @property
    def seconds(self) -> float:
        """Wall time of all rounds, prefill excluded."""
        return sum(r.seconds_draft + r.seconds_verify for r in self.rounds)


def spec_greedy(
    target: LanguageModel | PreTrainedModel,
    draft: LanguageModel | PreTrainedModel,
    prompt_ids: list[int],
    max_new: int,
    K: int,
    eos: int | list[int] | None = None,
) -> tuple[list[int], Stats]:
    """Greedy speculation with a draft model: the new tokens, and what the rounds were like.

    target, draft: contexts, table models or transformers models with one tokenizer. The tokens are those of
    plain greedy decoding, up to rounding between a pass over one row and one over K + 1.
    Source: Stern et al. 2018, section 3. Taught in notebook 03_greedy, section 'The loop'.
    """
    return spec_sample(target, draft, prompt_ids, max_new, K, GREEDY, eos=eos)


def spec_sample(
    target: LanguageModel | PreTrainedModel,
    draft: LanguageModel | PreTrainedModel,
    prompt_ids: list[int],
    max_new: int,
    K: int,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    rng: Rng | None = None,
    eos: int | list[int] | None = None,
) -> tuple[list[int], Stats]:
    """Speculative sampling with a draft model: the new tokens, distributed as the target's, and the rounds.

    As `spec_greedy`, with sampling (temperature 1 unless said otherwise) and an rng.
    Source: Leviathan et al. 2023, algorithm 1. Taught in notebook 04_sampling_proof, section 'A whole block'.
    """
    stop = Stop(max_new, eos=eos)
    stats = Stats(
        list(decode(as_context(target), ModelDrafter(draft), prompt_ids, k=K, sampling=sampling, stop=stop, rng=rng))
    )
    return stats.tokens, stats


def _ratio(a: int, b: int) -> float:
    return a / b if b else float("nan")


def _check(target: LanguageModel, prompt_ids: list[int], k: object, sampling: Sampling, max_new: int) -> None:
    if not prompt_ids:
        raise ValueError("the prompt is empty: give at least one token, such as the model's BOS")
    if not all(isinstance(t, Integral) for t in prompt_ids):
        raise ValueError("the prompt must be a list of token ids: encode a text, or turn a row of ids by .tolist()")
    bad = next((t for t in prompt_ids if not 0 <= t < target.vocab_size), None)
    if bad is not None:
        raise ValueError(f"prompt id {bad} is not in 0 … {target.vocab_size - 1}: encode with the target's tokenizer")
    if len(prompt_ids) + max_new > target.max_length:
        raise ValueError(
            f"a prompt of {len(prompt_ids)} tokens and {max_new} new ones do not fit into the target's "
            f"{target.max_length} positions: shorten the prompt or ask for fewer"
        )
    if not callable(k) and not (isinstance(k, Integral) and k >= 0):
        raise ValueError(f"K must be a whole number of at least 0, or a function of the round before, not {k}")
    check_banned(sampling.banned, target.vocab_size)
