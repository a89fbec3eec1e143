"""Models of a known shape with random weights: the shape alone decides how long a step takes.

So a reader without access to the real weights, or without the disk for them, can still measure their machine.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config

from speclib import weights
from speclib.roofline import free_memory

# From the models' public config.json files.
SHAPES: dict[str, tuple[type[PretrainedConfig], dict]] = {
    "llama-8b": (
        LlamaConfig,
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": False,
        },
    ),
    "llama-1b": (
        LlamaConfig,
        {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
        },
    ),
    "qwen-7b": (
        Qwen2Config,
        {
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": False,
        },
    ),
    "qwen-0.5b": (
        Qwen2Config,
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
        },
    ),
    "smol": (
        LlamaConfig,
        {
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
}
# Target and draft of the pairs that have two large models.
PAIRS = {"llama": ("llama-8b", "llama-1b"), "qwen": ("qwen-7b", "qwen-0.5b")}


def names(text: str) -> tuple[str, ...]:
    """The one or two shapes that a text names: a pair (llama, qwen), a shape, or TARGET,DRAFT. ValueError: others."""
    found = PAIRS.get(text) or tuple(part.strip() for part in text.split(","))
    unknown = [name for name in found if name not in SHAPES]
    if unknown or len(found) > 2:
        known = ", ".join([*PAIRS, *SHAPES])
        raise ValueError(
            f"there is no shape {unknown[0] if unknown else text!r}: choose {known}, or two as TARGET,DRAFT"
        )
    return found


def build(name: str, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """A model of the named shape with random weights, ready to be timed; nothing is downloaded.

    name: a key of SHAPES. device: "meta" makes one without any numbers, enough to count bytes. The global random
    state is left as it was. ValueError: no such shape. PairError: not enough free memory.
    Taught in notebook 02_verify_cost, section 'Bytes by hand'.
    """
    (name,) = names(name)
    device = torch.device(device)
    kind, values = SHAPES[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind(**values), dtype=dtype)
    if device.type != "meta":
        need, free = model.num_parameters() * dtype.itemsize, free_memory(device)
        if need > free:
            short = f"needs {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {device}"
            raise weights.PairError(f"the shape {name} {short}: close other programs, or choose a smaller shape")
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(kind(**values), dtype=dtype)
    return model.eval().requires_grad_(False)
