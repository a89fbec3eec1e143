"""From logits to p: temperature, top-k, top-p, min-p; drawing a token; how much p and q overlap.

Everything here works on the last dimension and on any number of leading ones, so that one call serves
a single step and a whole block of drafted positions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

NEG_INF = float("-inf")
NO_DISTRIBUTION = "logits hold NaN or +inf, or a row with nothing but −inf: no distribution follows"


class Rng:
    """The randomness of a generation, behind the two questions that speculative decoding asks.

    `kept` asks how many leading drafts survive, `draw` asks for one index. Whatever answers these two
    can drive the loop: this class does it with random numbers, the enumerator of `exactness.py` with
    every answer in turn, which is how the loop is proven.

    seed: int, or None for a seed from the operating system. device: where the numbers are made; give the
    device of the logits, so that a block is judged without moving its probabilities.
    Taught in notebook 01_distributions, section 'Draw from it'.
    """

    def __init__(self, seed: int | None = None, device: str | torch.device = "cpu"):
        self.generator = torch.Generator(device=device)
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def uniform(self, n: int) -> Tensor:
        """n numbers from [0, 1), fp64: in fp32 a step of 2^-24 would show in small probabilities."""
        return torch.rand(n, generator=self.generator, device=self.generator.device, dtype=torch.float64)

    def kept(self, probabilities: Tensor) -> int:
        """How many leading drafts are kept, when draft i is kept with probabilities[i] (shape [k])."""
        u = self.uniform(len(probabilities)).to(probabilities.device)
        # Strictly: u can be 0, and a draft with p = 0 must never be kept.
        return int((u < probabilities).long().cumprod(0).sum())

    def draw(self, weights: Tensor) -> int:
        """An index, with probability proportional to weights[index] (shape [vocab], need not sum to 1)."""
        return int(self.drawn(weights))

    def drawn(self, weights: Tensor) -> Tensor:
        """`draw`, left on the device of the weights: a tensor of one. An rng without it is asked for `draw`."""
        return slice_at(weights, self.uniform(1).to(weights.device))


def slice_at(weights: Tensor, u: Tensor | float) -> Tensor:
    """The index whose slice of the unit interval holds u, when slices as wide as weights lie end to end.

    weights: [vocab], not negative, sum > 0 (need not be 1). u: a number in [0, 1). An index of weight 0
    has an empty slice and never comes out. The sums are fp64. Returns a tensor of one, on the device of the weights.
    Taught in notebook 01_distributions, section 'Draw from it'.
    """
    ends = weights.double().cumsum(-1)
    total = ends[-1]
    # u · total may round up to total itself, which lies behind the last slice.
    point = torch.minimum(u * total, torch.nextafter(total, total.new_zeros(())))
    return torch.searchsorted(ends, point.reshape(1), right=True)


def warp(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    *,
    check: bool = True,
) -> Tensor:
    """The distribution that a token is drawn from: logits, reshaped and cut, then softmax.

    logits: [..., vocab]; −inf marks an impossible token. Returns p of that shape in fp32 (fp64 stays fp64),
    each row summing to 1. temperature 0 is greedy: a one-hot on the argmax (the lowest id wins a tie).
    top_k keeps the k largest logits and whatever ties with the k-th; top_p the smallest set of most likely
    tokens whose mass reaches it, never fewer than one (of those that tie at its edge, the highest ids); min_p all with
    at least min_p times the largest probability. The order is that of transformers' processors: temperature, top-k,
    top-p, min-p. check: whether to look at the logits at all, for which a GPU has to be waited for.

    ValueError: a row with NaN, +inf or nothing but −inf; temperature negative or not finite; top_k < 1;
    top_p outside (0, 1]; min_p outside [0, 1].
    Source: Holtzman et al. 2020, section 3.1 (top-p); Fan et al. 2018, section 5 (top-k); Nguyen et al.
    2024, section 3 (min-p). Taught in notebook 01_distributions, section 'Reshape it'.
    """
    check_warp(temperature, top_k, top_p, min_p)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError("logits have no entries: the last dimension must be the vocabulary")
    z = logits if logits.dtype == torch.float64 else logits.float()
    top = z.amax(-1, keepdim=True)
    # One look finds all three: the maximum is NaN, +inf or −inf exactly when a row has no distribution.
    if check and not torch.isfinite(top).all():
        raise ValueError(NO_DISTRIBUTION)
    if temperature == 0:
        return torch.zeros_like(z).scatter_(-1, z.argmax(-1, keepdim=True), 1.0)
    # Shifted before the division: huge logits over a tiny temperature would overflow. A subnormal
    # temperature can still send a finite gap to −inf, where it belongs, and must not turn 0/T into NaN.
    z = (z - top) / max(temperature, 1e-30)
    if top_k is not None and top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(top_k).values[..., -1:], NEG_INF)
    if top_p is not None and top_p < 1:
        z = z.masked_fill(~_nucleus(z, top_p), NEG_INF)
    if min_p:
        z = z.masked_fill(z < math.log(min_p), NEG_INF)
    # The maximum is 0 here. Not torch's softmax: over 49,152 fp32 numbers its sum is off by 1e-5, this one's by 1e-7.
    weights = z.exp()
    return weights / weights.sum(-1, keepdim=True)


def check_warp(temperature: float, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
    """ValueError in one sentence where a setting of `warp` is out of range; None for a setting is 'off'."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be a number ≥ 0 (0 is greedy), not {temperature}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, Integral) or top_k < 1):
        raise ValueError(f"top_k must be a whole number ≥ 1, or None for no cut, not {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], or None for no cut, not {top_p}")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p must be in [0, 1], or None for no cut, not {min_p}")


def _nucleus(z: Tensor, top_p: float) -> Tensor:
    """Which entries belong to the smallest set of most likely tokens with mass top_p: a mask shaped as z."""
    vocab = z.shape[-1]
    log_total = z.logsumexp(-1, keepdim=True)
    # Sorting 49,152 entries takes longer than the rest of a step, and the set is nearly always small:
    # look at the top 128 and widen only while the mass is not reached.
    size = min(128, vocab)
    while True:
        head = z.topk(size).values
        ends = (head - log_total).exp().cumsum(-1)
        before = torch.cat([torch.zeros_like(ends[..., :1]), ends[..., :-1]], dim=-1)
        # At least the most likely one, also where top_p is less than fp32 can hold.
        count = (before < top_p).sum(-1, keepdim=True).clamp(min=1)
        if size == vocab or bool((count < size).all()):
            break
        size = min(8 * size, vocab)
    cut = head.gather(-1, count - 1)
    above, tied = z > cut, z == cut
    # As where transformers sorts upwards and cuts from the low end; its sort need not keep ties in order, ours does.
    wanted = count - above.sum(-1, keepdim=True)
    return above | (tied & (tied.flip(-1).cumsum(-1).flip(-1) <= wanted))


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """α = Σ min(p, q) over the last dimension: the most that any rule can keep of drafts drawn from q.

    p, q: [..., vocab], same shape, each summing to 1. Returns [...], in [0, 1]; equal to 1 minus the total
    variation distance ½ Σ |p − q|.
    Source: Leviathan et al. 2023, section 3.2. Taught in notebook 01_distributions, section 'Two vectors'.
    """
    if p.shape != q.shape:
        raise ValueError(f"p and q must have the same shape, not {tuple(p.shape)} and {tuple(q.shape)}")
    return torch.minimum(p, q).sum(-1)


def penalise(
    logits: Tensor,
    history: list[int],
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    banned: Iterable[int] = (),
    prompt_length: int = 0,
) -> Tensor:
    """Logits of one step, lowered for tokens that were used before; banned ids become impossible.

    logits: [vocab]; a changed copy is returned. history: every token before this step, drafts included.
    repetition > 0: logits of the history's tokens are divided by it when positive, multiplied when negative
    (transformers). frequency, presence in [−2, 2], counted over history[prompt_length:]: logit −
    count · frequency − [count > 0] · presence (OpenAI). Ids that the logits have no entry for are passed over.
    ValueError: a setting out of range; a banned id outside the vocabulary.
    Source: Keskar et al. 2019, section 4.1 (repetition); OpenAI's API reference (the other two).
    """
    check_penalties(repetition, frequency, presence)
    vocab = logits.shape[-1]
    out = logits.clone()
    if repetition != 1.0:
        seen = torch.tensor([t for t in history if t < vocab], dtype=torch.long, device=logits.device)
        out[seen] = torch.where(out[seen] < 0, out[seen] * repetition, out[seen] / repetition)
    if frequency or presence:
        counts = Counter(t for t in history[prompt_length:] if t < vocab)
        used = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=out.dtype, device=logits.device)
        out[used] -= times * frequency + presence
    if banned := list(banned):
        check_banned(banned, vocab)
        out[banned] = NEG_INF
    return out


def check_banned(banned: Iterable[int], vocab: int) -> None:
    """ValueError in one sentence where a banned id is none of the vocabulary's."""
    bad = next((t for t in banned if not 0 <= t < vocab), None)
    if bad is not None:
        raise ValueError(f"banned id {bad} is not in 0 … {vocab - 1}")


def check_penalties(repetition: float, frequency: float, presence: float) -> None:
    """ValueError in one sentence where a setting of `penalise` is out of range."""
    if not (math.isfinite(repetition) and repetition > 0):
        raise ValueError(f"repetition penalty must be a number > 0 (1 is off), not {repetition}")
    for name, value in (("frequency", frequency), ("presence", presence)):
        if not -2 <= value <= 2:
            raise ValueError(f"{name} penalty must be in [−2, 2] (0 is off), not {value}")


@dataclass(frozen=True)
class Sampling:
    """How a model's logits become the distribution that tokens are drawn from: for target and draft alike.

    The fields are the arguments of `warp` and `penalise`; temperature 0 is greedy. prompt_length is where
    the generated text begins (`decode` sets it). ValueError when a setting is out of range.
    Taught in notebook 01_distributions, section 'Reshape it'.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    banned: tuple[int, ...] = ()
    prompt_length: int = 0

    def __post_init__(self) -> None:
        check_warp(self.temperature, self.top_k, self.top_p, self.min_p)
        check_penalties(self.repetition, self.frequency, self.presence)

    @property
    def penalises(self) -> bool:
        """Whether any penalty or ban is set."""
        return bool(self.repetition != 1.0 or self.frequency or self.presence or self.banned)

    def penalise(self, logits: Tensor, text: list[int], drafts: list[int]) -> Tensor:
        """Penalties for a block: logits [rows, vocab] after text + drafts[:i], the last row after all drafts."""
        if not self.penalises:
            return logits
        history, first = text + drafts, len(text) + len(drafts) + 1 - len(logits)
        settings = (self.repetition, self.frequency, self.presence, self.banned, self.prompt_length)
        return torch.stack([penalise(row, history[: first + i], *settings) for i, row in enumerate(logits)])

    def warp(self, logits: Tensor, *, check: bool = True) -> Tensor:
        """`warp` with these settings."""
        return warp(logits, self.temperature, self.top_k, self.top_p, self.min_p, check=check)
