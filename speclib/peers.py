"""Another loop beside ours: transformers' assisted generation, prompt lookup and plain decoding, timed alike.

This is the only module that touches transformers' `generate`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria

from speclib.decode import GREEDY, Round, Stats
from speclib.distributions import Sampling
from speclib.rows import PEER, PLAIN
from speclib.sweep import Peer
from speclib.weights import quiet

WAYS = ("model", "lookup")
LONGEST = 3  # tokens that its lookup looks for first: as ours


def peers(pair: Any, names: tuple[str, ...], sampling: Sampling = GREEDY, seed: int = 0) -> dict[str, Peer]:
    """transformers' own ways by name, for `sweep.race`: plain decoding and, as named, "model" and "lookup".

    pair: target, draft and eos_ids, the very models that our loop runs. K is K: a constant schedule, and no threshold
    below which its draft would stop. sampling: temperature, top-k, top-p and min-p. seed: of each generation.
    ValueError: another name, penalties. Source: Gante 2023 (assisted generation), Saxena 2023 (prompt lookup).
    """
    if unknown := set(names) - set(WAYS):
        raise ValueError(
            f"{PEER} has no way {unknown.pop()!r} that ours could be compared with: name {' or '.join(WAYS)}"
        )
    if (sampling.repetition, sampling.frequency, sampling.presence, sampling.banned) != (1.0, 0.0, 0.0, ()):
        raise ValueError(f"{PEER} counts penalties in another way: compare without them")

    def generate(name: str, ids: list[int], k: int, most: int) -> Stats:
        # What is left out of a configuration is taken from the model's own, which our loop does not follow.
        config = _settings(sampling) | {"max_new_tokens": most, "repetition_penalty": 1.0, "pad_token_id": 0}
        if pair.eos_ids:
            config |= {"eos_token_id": sorted(pair.eos_ids)}
        if name == "lookup":
            config |= {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": LONGEST}
        draft = pair.draft if name == "model" else None
        clock, text = _Clock(), torch.tensor([ids], device=pair.target.device)
        with torch.random.fork_rng(), torch.inference_mode(), quiet(), _constant(draft, k):
            torch.manual_seed(seed)
            pair.target.generate(
                text,
                attention_mask=torch.ones_like(text),
                generation_config=GenerationConfig(**config),
                stopping_criteria=[clock],
                assistant_model=draft,
            )
        return clock.stats()

    return {f"{PEER} {name}": functools.partial(generate, name) for name in (PLAIN, *names)}


class _Clock(StoppingCriteria):
    """Asked after each round whether to stop; it only notes the time, and the text so far.

    Rounds are what lies between two questions. The first round, before the first question, holds the reading of the
    prompt (where there is a draft, in one pass with its first drafts) and is left out, with its tokens.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[float, Tensor]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self._marks.append((time.perf_counter(), input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def stats(self) -> Stats:
        rounds = []
        for (start, before), (end, after) in zip(self._marks, self._marks[1:], strict=False):
            tokens = after[0, before.shape[1] :].tolist()
            rounds.append(Round(tokens, len(tokens) - 1, len(tokens) - 1, None, "", 0.0, end - start))
        return Stats(rounds)


def _settings(sampling: Sampling) -> dict[str, Any]:
    if sampling.temperature == 0:
        return {"do_sample": False}
    given = {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
    return {"do_sample": True, **given, **({} if sampling.min_p is None else {"min_p": sampling.min_p})}


@contextlib.contextmanager
def _constant(draft: PreTrainedModel | None, k: int) -> Iterator[None]:
    """The draft's own settings say how many tokens it guesses: k, whatever happens; put back afterwards."""
    if draft is None:
        yield
        return
    own = draft.generation_config
    draft.generation_config = copy.deepcopy(own)
    draft.generation_config.update(
        num_assistant_tokens=k, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    try:
        yield
    finally:
        draft.generation_config = own
