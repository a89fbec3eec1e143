"""What F5 counts: single draws that tell what happened, and ten thousand at once from the rule's own law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speclib import accept
from speclib.distributions import Rng
from speclib.exactness import sequence_distribution
from speclib.figures.style import BLUE, RED

# As `accept_or_fix`: p, q, the draft and an rng go in, the token and whether it is the draft come out.
Rule = Callable[[Tensor, Tensor, int, Rng], tuple[int, bool]]


@dataclass(frozen=True)
class Draw:
    """One token: drafted, judged with the number u, kept or replaced. u is None if the rule asked for none."""

    d: int
    u: float | None
    kept: bool
    token: int


class Listening(Rng):
    """An Rng that remembers the number which its last answer to `kept` rested on."""

    u: float | None = None

    def kept(self, probabilities: Tensor) -> int:
        state = self.generator.get_state()
        self.u = float(self.uniform(1))
        self.generator.set_state(state)
        return super().kept(probabilities)


def sample_p_on_reject(p: Tensor, q: Tensor, d: int, rng: Rng) -> tuple[int, bool]:
    """The most natural bug: right about what to keep, and a rejection draws from all of p."""
    kept, _ = accept.judge(p[None], q[None], [d], rng)
    return (d, True) if kept else (rng.draw(p), False)


def one_draw(rule: Rule, p: Tensor, q: Tensor, rng: Listening) -> Draw:
    """Draft from q, apply the rule, and tell what happened."""
    d, rng.u = rng.draw(q), None
    token, kept = rule(p, q, d, rng)
    return Draw(d, rng.u, bool(kept), int(token))


def law(rule: Rule, p: Tensor, q: Tensor) -> Tensor:
    """What a rule does with drafts from q, exactly: [2, vocab], P(y comes out as a replacement, as a kept draft).

    rule is run once for every way its rng can answer, so this is the distribution of the very function, the
    reader's own included. Sums to 1.
    """
    out = torch.zeros(2, len(p), dtype=torch.float64)
    for d, chance in enumerate(q.tolist()):
        if chance > 0:
            for (token, kept), share in sequence_distribution(lambda rng, d=d: rule(p, q, d, rng)).items():
                out[int(kept), int(token)] += chance * share
    return out


def many_draws(law: Tensor, n: int, rng: Rng) -> Tensor:
    """n draws from a `law` at once: counts of the same shape, distributed as n runs of the rule would be."""
    ends = law.flatten().cumsum(0)
    # Cells of probability 0 have no width, and u below 1 keeps to the left of the last end.
    drawn = torch.searchsorted(ends, rng.uniform(n) * ends[-1], right=True)
    return torch.bincount(drawn, minlength=len(ends)).reshape(law.shape)


def in_words(draw: Draw, words: Sequence[str], p: Tensor, q: Tensor, bug: bool = False) -> str:
    """The trace of one draw as HTML: drafted, p/q, u, kept or rejected, and what the replacement was drawn from."""
    word, ratio = f"<b>{words[draw.d]}</b>", float(p[draw.d] / q[draw.d])
    text = f"The draft says {word}. p/q = {p[draw.d]:.2f} / {q[draw.d]:.2f} = <b>{ratio:.3f}</b>"
    if draw.u is not None:
        sign = "&lt;" if draw.u < ratio else "≥"
        text += f" and u = <b>{draw.u:.3f}</b>, so u {sign} p/q: "
    else:
        text += ": "
    if draw.kept:
        return text + f'<b style="color:{BLUE}">✓ kept</b>, {word} comes out.'
    source = "all of p gave" if bug else "the residual gave"
    return text + f'<b style="color:{RED}">✕ rejected</b>, and {source} <b>{words[draw.token]}</b>.'
