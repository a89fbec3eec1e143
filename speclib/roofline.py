"""What a step must read and compute, and how long a machine needs for that at the least.

Nothing here is measured: bytes and FLOPs follow from a model's shape, so a model on the meta device will do.
Source: Williams, Waterman and Patterson 2009, "Roofline", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Machine:
    """Two numbers of a machine: bytes per second read from memory, FLOP per second at most, and their source."""

    name: str
    bandwidth: float
    peak: float
    source: str


# Makers' figures for dense bf16. No figure for the Spark's is published: its petaFLOP is FP4 with sparsity, of
# which dense bf16 is an eighth (two for sparsity, two for each doubling of the width), so it is an estimate.
SPARK = Machine("Spark", 273e9, 125e12, "maker's 273 GB/s; 125 TFLOP/s estimated as 1 PFLOP/s sparse FP4 ÷ 8")
H200 = Machine("H200", 4.8e12, 989e12, "maker's data sheet: 4.8 TB/s, 989 TFLOP/s dense bf16")


def model_bytes(model: PreTrainedModel) -> int:
    """Bytes of all parameters; one that is used twice, as a tied embedding is, counts once.

    Taught in notebook 02_verify_cost, section 'Bytes by hand'.
    """
    return sum(p.numel() * p.element_size() for p in model.parameters())


def step_bytes(model: PreTrainedModel) -> int:
    """Bytes of the parameters that one step reads: all but the tables in which it only looks rows up.

    An embedding that also serves as output matrix (tied) is read; one of its own is looked up. The KV cache
    comes on top: `cache_bytes`. Taught in notebook 02_verify_cost, section 'Bytes by hand'.
    """
    return sum(p.numel() * p.element_size() for p in _read(model))


def cache_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Bytes of the KV cache over `tokens` tokens in the model's own precision; a step reads all of it.

    Taught in notebook 02_verify_cost, section 'Bytes by hand'.
    """
    config = model.config.get_text_config(decoder=True)
    return 2 * config.num_hidden_layers * _kv_heads(config) * _head_dim(config) * model.dtype.itemsize * tokens


def flops_per_token(model: PreTrainedModel, context: int = 0) -> int:
    """Floating-point operations for one token: a multiplication and an addition per weight that is read.

    context: tokens that attention looks back at; each layer and head compares and adds up head_dim numbers for
    each. Taught in notebook 02_verify_cost, section 'FLOPs by hand'.
    """
    config = model.config.get_text_config(decoder=True)
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * _head_dim(config) * context
    return 2 * sum(p.numel() for p in _read(model)) + attention


def roofline(n: float, bytes: float, flops: float, bandwidth: float, peak: float) -> float:
    """Seconds that a pass over n tokens takes at the least: the longer of reading and computing.

    bytes: read once for the whole pass. flops: per token. bandwidth: bytes per second. peak: FLOP per second.
    ValueError unless bandwidth and peak are positive. Source: Williams et al. 2009, section 3.
    Taught in notebook 02_verify_cost, section 'The roofline'.
    """
    if bandwidth <= 0 or peak <= 0:
        raise ValueError(f"bandwidth and peak must be positive, not {bandwidth:g} and {peak:g}")
    return max(bytes / bandwidth, n * flops / peak)


def ridge_point(bandwidth: float, peak: float) -> float:
    """FLOP per byte at which reading and computing take equally long; below it memory is the limit.

    Source: Williams et al. 2009, section 3. Taught in notebook 02_verify_cost, section 'The roofline'.
    """
    return peak / bandwidth


def ceiling_tokens_per_second(bytes: float, bandwidth: float) -> float:
    """The most tokens per second that plain decoding can reach when each step reads `bytes`.

    Taught in notebook 02_verify_cost, section 'The ceiling'.
    """
    return bandwidth / bytes


def _read(model: PreTrainedModel) -> list[Tensor]:
    output = model.get_output_embeddings()
    used_as_matrix = id(output.weight) if output is not None else None
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} - {used_as_matrix}
    return [p for p in model.parameters() if id(p) not in looked_up]


def _kv_heads(config) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _head_dim(config) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def free_memory(device: torch.device) -> int:
    """Bytes free on a device.

    On unified memory (a GPU without its own, as the DGX Spark's) CUDA counts the page cache as used, so there the
    system's own count is taken, as on the CPU.
    """
    if device.type == "cuda" and not torch.cuda.get_device_properties(device).is_integrated:
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
