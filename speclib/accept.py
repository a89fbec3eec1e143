"""The rules that keep or replace a draft. They are what makes speculation exact.

Given p and a draft d drawn from q: keep d with probability min(1, p(d)/q(d)); otherwise draw from the residual
max(0, p − q), rescaled. Then, for every token y,

    P(y drafted and kept)      = q(y) · min(1, p(y)/q(y))                  = min(p(y), q(y))
    P(rejected)                = 1 − Σ min(p, q)                           = Σ max(0, p − q)
    P(rejected, then y drawn)  = P(rejected) · max(0, p(y) − q(y)) / Σ max(0, p − q) = max(0, p(y) − q(y))
    P(y)                       = min(p(y), q(y)) + max(0, p(y) − q(y))     = p(y)

It needs q to be what d was really drawn from, and p to be computed on the true text. It needs nothing else:
a bad q costs speed, never exactness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speclib.distributions import Rng


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p − q), rescaled to sum to 1: what a rejection draws from.

    p, q: [vocab], same dtype, each summing to 1. Returns [vocab]. Where q covers p everywhere there is
    nothing left to refill and a rejection has probability 0; if rounding rejects all the same, p is the
    answer that is finite and right in the limit.
    Source: Leviathan et al. 2023, section 2.3; Chen et al. 2023, section 2 ((·)₊).
    Taught in notebook 04_sampling_proof, section 'The rule'.
    """
    rest = (p - q).clamp(min=0)
    total = rest.sum()
    return torch.where(total > 0, rest / total, p)


def residual_one_hot(p: Tensor, d: int) -> Tensor:
    """The residual when q is one-hot on d: p without d, rescaled. [vocab] → [vocab].

    Taught in notebook 06_lookup, section 'A q without a model'.
    """
    rest = p.clone()
    rest[d] = 0
    total = rest.sum()
    return torch.where(total > 0, rest / total, p)


def judge(p: Tensor, q: Tensor | None, drafts: list[int], rng: Rng) -> tuple[int, Tensor | None]:
    """Judge a block of drafts in one go: how many are kept, and what the token behind them is drawn from.

    p: [k, vocab] or [k + 1, vocab]; row i is the target's distribution after the text and drafts[:i].
    q: [k, vocab], row i being what drafts[i] was really drawn from; None when each was certain (one-hot).
    drafts: k token ids. Returns (kept, weights): kept in 0 … k, and weights [vocab]: the residual at the
    first rejection, or p's row k when all were kept (None if p has no such row). However many the drafts, the host
    waits for the device as often as for one.
    ValueError: shapes that do not fit; no such id; a draft with q(d) = 0, which cannot have been drawn from that q.
    Source: Leviathan et al. 2023, algorithm 1. Taught in notebook 04_sampling_proof, section 'A whole block'.
    """
    k = len(drafts)
    if len(p) not in (k, k + 1) or (q is not None and q.shape != (k, p.shape[-1])):
        shapes = f"p {list(p.shape)}, q {None if q is None else list(q.shape)}"
        raise ValueError(f"{k} drafts need p with {k} or {k + 1} rows and q with {k}, equally wide; got {shapes}")
    if any(not 0 <= d < p.shape[-1] for d in drafts):
        raise ValueError(f"p has {p.shape[-1]} entries and none for one of the drafts {drafts}")
    at = (torch.arange(k, device=p.device), torch.tensor(drafts, dtype=torch.long, device=p.device))
    keep = p[at]
    if q is not None:
        q = q.to(p.device)
        drawn = q[at]
        if not (drawn > 0).all():
            raise ValueError(
                f"q gives probability 0 to one of the drafts {drafts}: q must be the distribution that "
                "they were drawn from"
            )
        keep = (keep / drawn).clamp(max=1)
    kept = rng.kept(keep)
    if kept == k:
        return k, p[k] if len(p) > k else None
    return kept, residual_one_hot(p[kept], drafts[kept]) if q is None else residual(p[kept], q[kept])


def accept_or_fix(p: Tensor, q: Tensor | None, d: int, rng: Rng) -> tuple[int, bool]:
    """The rule for one draft: (d, True) if it is kept, else (a token from the residual, False).

    p: [vocab], the target's distribution. q: [vocab], what d was drawn from; None when d was certain
    (one-hot). d: the drafted id. The token that comes out is distributed as p, exactly, if d was drawn from q.
    This is `judge` for a block of one, so what is proven of one holds for the other.
    Source: Leviathan et al. 2023, section 2.3. Taught in notebook 04_sampling_proof, section 'The rule'.
    """
    kept, weights = judge(p[None], None if q is None else q[None], [d], rng)
    return (d, True) if kept else (rng.draw(weights), False)


def judge_greedy(logits: Tensor, drafts: list[int]) -> tuple[int, int]:
    """The rule at temperature 0: keep drafts while each is the target's argmax; (kept, the argmax behind them).

    logits: [k + 1, vocab], row i after the text and drafts[:i]. It is the limit of `judge`, where p is
    one-hot: no division and no randomness, and the drafts may come from anywhere. ValueError: a row with
    NaN, +inf or nothing but −inf.
    Source: Stern et al. 2018, section 3. Taught in notebook 03_greedy, section 'Walk left to right'.
    """
    top = logits.max(-1)
    if not torch.isfinite(top.values).all():
        raise ValueError("logits hold NaN or +inf, or a row with nothing but −inf: there is no argmax")
    best, kept = top.indices.tolist(), 0
    while kept < len(drafts) and drafts[kept] == best[kept]:
        kept += 1
    return kept, best[kept]
