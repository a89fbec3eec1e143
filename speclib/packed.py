"""Matrix products with the weights laid out, once, as this machine's kernels read them; also in 8 and 4 bits.

A step on one token reads every weight once and does next to nothing with it, so the layout decides how much of the
memory's speed is reached. PyTorch's `F.linear` leaves bf16 weights where they are and reaches a third of it on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Product = Callable[[Tensor], Tensor]
GROUP = 32  # columns that share a scale and a zero in 4 bits
# Bytes per weight that a product reads, scales included; None: as the model has it.
BYTES = {None: None, "int8": 1.0, "int4": 0.5 + 4 / GROUP}


def product(weight: Tensor, bias: Tensor | None = None, quantize: str | None = None) -> Product:
    """x ↦ x @ weight.T + bias, for x [..., in], over a copy of the weights in the layout that suits the device.

    weight: [out, in], bf16, or fp32 (then as it is, on any device but the CPU). quantize: None keeps every bit; int8
    gives each row a scale, int4 each group of 32 in a row a scale and a zero, both rounded to nearest.
    ValueError: another quantize; a shape or dtype that its kernel does not take.
    """
    check_quantize(quantize)
    with torch.inference_mode():
        if quantize is not None:
            return _rounded(weight.detach(), bias, quantize)
        if weight.device.type != "cpu" or not _lays_out(weight.dtype):
            return lambda x: F.linear(x, weight, bias)
        laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
    # The very product that TorchInductor puts in for a linear layer whose weights it may freeze.
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, laid_out, bias, "none", [], "")


def _lays_out(dtype: torch.dtype) -> bool:
    """Whether this CPU's kernels take weights of a dtype in a layout of their own."""
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    # Without AVX-512 oneDNN raises where bf16 is to be laid out.
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def check_quantize(quantize: str | None) -> None:
    """ValueError where there is no such `quantize`."""
    if quantize not in BYTES:
        raise ValueError(f"there is no quantize={quantize!r}: choose int8 or int4, or leave it out")


def _rounded(weight: Tensor, bias: Tensor | None, quantize: str) -> Product:
    rows, columns = weight.shape
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"{quantize} weights need a model in bfloat16, not {weight.dtype}: load it in that precision")
    if quantize == "int8":
        scale = (weight.float().abs().amax(1) / 127).clamp(min=1e-8)
        held = (weight.float() / scale[:, None]).round().to(torch.int8).contiguous()
        scale = scale.to(weight.dtype)
        run = lambda x: torch._weight_int8pack_mm(x, held, scale)  # noqa: E731
    else:
        if rows % 64 or columns % 64:
            raise ValueError(f"int4 weights come in 64 × 64 blocks, and there is one of {rows} × {columns}: take int8")
        run = _four_bits(weight)

    def apply(x: Tensor) -> Tensor:
        out = run(x.reshape(-1, columns).contiguous()).view(*x.shape[:-1], rows)
        return out if bias is None else out + bias

    return apply


def _four_bits(weight: Tensor) -> Product:
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).clamp(min=1e-6)
    levels = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int32).view(rows, columns)
    # The kernel reads a level as (level − 8) · scale + zero.
    scales = torch.stack([scale, low + 8 * scale], -1).transpose(0, 1).contiguous().to(weight.dtype)
    if weight.device.type == "cpu":
        held = torch._convert_weight_to_int4pack_for_cpu(levels, 1)
        return lambda x: torch._weight_int4pack_mm_for_cpu(x, held, GROUP, scales)
    held = torch._convert_weight_to_int4pack((levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8), 8)
    return lambda x: torch._weight_int4pack_mm(x, held, GROUP, scales)
