"""A K that changes from round to round: a schedule for `decode`, and what it would have done on a recorded text.

With a draft model and greedy decoding, a text tells how every schedule would have gone. A draft behind kept ones was
made on the true text, so which drafts are kept depends on the place in the text alone, not on where rounds begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from speclib.context import LanguageModel, as_context
from speclib.decode import GREEDY, Round, Stats, decode
from speclib.distributions import Rng
from speclib.drafters import ModelDrafter
from speclib.speedup import Verify, speedup
from speclib.stopping import Stop

Policy = Callable[[Round | None], int]


class Heuristic:
    """Two drafts more after a round that kept all, one fewer after a rejection, and never none.

    Give it to `decode` as k; each generation begins at `start` again. most: the largest K that it asks for.
    Source: transformers, `generation/candidate_generator.py`, schedule "heuristic" (which has no limit).
    Taught in notebook 05_sweep, section 'Adaptive K'.
    """

    def __init__(self, start: int = 5, most: int = 16):
        if not 1 <= start <= most:
            raise ValueError(f"start must be in 1 … {most}, the largest K, not {start}")
        self.start, self.most = start, most
        self.k = start

    def __call__(self, last: Round | None) -> int:
        if last is None:
            self.k = self.start
        elif last.accepted < last.drafted:
            self.k = max(1, self.k - 1)
        elif last.drafted:
            self.k = min(self.most, self.k + 2)
        return self.k


def agreement(
    target: LanguageModel | PreTrainedModel,
    draft: LanguageModel | PreTrainedModel,
    prompt_ids: list[int],
    max_new: int,
    eos: int | list[int] | None = None,
) -> tuple[list[int], list[bool]]:
    """The text of plain greedy decoding, and for each token whether the draft, having read up to it, says the same.

    target, draft: as in `decode.spec_greedy`. Returns the new tokens and as many truth values. In bf16 a pass over
    several rows rounds otherwise than one over a single row, so there the loop's text may part from this one.
    Taught in notebook 05_sweep, section 'Easy stretches, hard ones'.
    """
    context = as_context(target)
    tokens = [t for r in decode(context, None, prompt_ids, stop=Stop(max_new, eos=eos)) for t in r.tokens]
    drafter, text, agrees, rng = ModelDrafter(draft), list(prompt_ids), [], Rng(0)
    drafter.begin(text, context)
    for token in tokens:
        agrees.append(drafter.propose(text, 1, GREEDY, rng).tokens == [token])
        text.append(token)
    return tokens, agrees


def run_lengths(agrees: Sequence[bool]) -> list[int]:
    """How many drafts of a round that starts at each place are kept, if there are enough of them."""
    lengths = [0] * (len(agrees) + 1)
    for i in reversed(range(len(agrees))):
        lengths[i] = lengths[i + 1] + 1 if agrees[i] else 0
    return lengths[:-1]


def replay(agrees: Sequence[bool], k: int | Policy, c: float, v: Verify = None) -> Stats:
    """The rounds that the loop would have made on a text, with a length budget of just that text.

    agrees: as `agreement` gives it. k: as in `decode`. c, v: as in `speedup.speedup`. The Stats' tokens are places in
    the text, and its seconds are plain steps, so that tokens ÷ seconds is the predicted speedup.
    ValueError: an empty text, k below 0, a measured v that does not reach a K that is asked for.
    Taught in notebook 05_sweep, section 'Adaptive K'.
    """
    if not agrees:
        raise ValueError("agrees is empty: record a text of at least one token")
    lengths, rounds, place = run_lengths(agrees), [], 0
    while place < len(agrees):
        asked = k if isinstance(k, int) else k(rounds[-1] if rounds else None)
        if asked < 0:
            raise ValueError(f"k must be at least 0, not {asked}")
        drafted = min(asked, len(agrees) - place - 1)
        kept = min(drafted, lengths[place])
        end = place + kept + 1
        finish = "length" if end == len(agrees) else None
        verify = _cost(drafted, c, v) - drafted * c
        rounds.append(Round(list(range(place, end)), drafted, kept, finish, "", drafted * c, verify))
        place = end
    return Stats(rounds)


def oracle(agrees: Sequence[bool], c: float, v: Verify = None, most: int = 16) -> Stats:
    """The quickest rounds that any choice of K ≤ most could have made on this text, as `replay` gives them.

    It knows beforehand what will be kept, so it is a bound and no schedule. Exact: the cheapest way from each place to
    the end is found from the end backwards.
    Taught in notebook 05_sweep, section 'Adaptive K'.
    """
    lengths, n = run_lengths(agrees), len(agrees)
    costs = [_cost(k, c, v) for k in range(min(most, n - 1) + 1)]
    left, choice = [0.0] * (n + 1), [0] * n
    for i in reversed(range(n)):
        options = [costs[k] + left[i + min(k, lengths[i]) + 1] for k in range(min(len(costs), n - i))]
        left[i] = min(options)
        choice[i] = options.index(left[i])
    return replay(agrees, lambda last: choice[last.tokens[-1] + 1 if last else 0], c, v)


def _cost(k: int, c: float, v: Verify) -> float:
    # At α = 0 a round brings one token, so what it costs is the reciprocal of the speedup.
    return 1 / speedup(0.0, k, c, v)
