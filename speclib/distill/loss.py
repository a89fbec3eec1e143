"""How far the draft's softmax is from the target's stored probabilities, and the gradient of that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SLICE = 256  # positions at a time: their logits stay in the cache


class _Distance(torch.autograd.Function):
    """The logits of one batch are some 50 million numbers. Made, used and dropped in slices, with the gradients taken
    on the way, they cost a third of what autograd would need, and no memory."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, slots: Tensor, p: Tensor, weight: Tensor, tv: bool) -> Any:
        share = (weight / weight.sum().clamp(min=1e-9))[:, None]
        has, at = slots >= 0, slots.clamp(min=0).long()
        p = torch.where(has, p.float(), 0.0)
        matrix = head.to(hidden.dtype)
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=torch.float32)
        loss = alpha = 0.0
        for start in range(0, len(hidden), SLICE):
            s = slice(start, start + SLICE)
            q = (hidden[s] @ matrix.T).float().softmax(-1)
            q_at = q.gather(1, at[s])
            kept = torch.minimum(p[s], q_at)
            alpha += float((share[s] * kept).sum())
            if tv:
                # Σ min(p, q) moves only with the entries where q is the smaller.
                low = torch.where((q_at < p[s]) & has[s], q_at, 0.0)
                gradient = q.mul_(low.sum(-1, keepdim=True)).scatter_add_(1, at[s], -low)
                loss += float((share[s][:, 0] * (1 - kept.sum(-1))).sum())
            else:
                # Rescaled: the mass of what the draft cannot say is best spent on what it can.
                total = p[s].sum(-1, keepdim=True)
                r = p[s] / total.clamp(min=1e-6)
                logs = torch.where(r > 0, r.clamp(min=1e-9).log() - q_at.clamp(min=1e-9).log(), 0.0)
                loss += float((share[s] * r * logs).sum())
                gradient = q.mul_(total > 0).scatter_add_(1, at[s], -r)
            gradient = gradient.mul_(share[s]).to(hidden.dtype)
            grad_hidden[s] = gradient @ matrix
            grad_head += gradient.T @ hidden[s]
        ctx.save_for_backward(grad_hidden, grad_head.to(head.dtype))
        return hidden.new_tensor(loss, dtype=torch.float32), hidden.new_tensor(alpha, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        grad_hidden, grad_head = ctx.saved_tensors
        return grad * grad_hidden, grad * grad_head, None, None, None, None


def distance(
    hidden: Tensor, head: Tensor, slots: Tensor, p: Tensor, weight: Tensor, tv: bool = False
) -> tuple[Tensor, Tensor]:
    """The loss of a batch of positions, and their mean α = Σ min(p, q).

    hidden [n, width]; head [rows, width]: the output matrix; slots [n, top]: output rows of the target's most likely
    tokens, −1 where there is none; p [n, top]: their probabilities; weight [n]: how much a position counts. tv: the
    loss is the total variation distance 1 − α, else KL(p ‖ q) with p rescaled to the tokens that have a row. Returns
    two scalars, fp32; the gradient flows from the first, to hidden and head.
    Source: Zhou et al. 2024, DistillSpec, section 3 (divergences); Leviathan et al. 2023, corollary 3.6 (α = 1 − TV).
    """
    return _Distance.apply(hidden, head, slots, p, weight, tv)
