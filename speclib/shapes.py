"""Models of a known shape with random weights: the shape alone decides how long a step takes.

So a reader without access to the real weights, or without the disk for them, can still measure their machine.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config

from speclib import weights
from speclib.draft import DraftConfig
from speclib.roofline import free_memory
from speclib.timing import existing

# From the models' config.json files, which are public; the last is that of our own draft, in drafts/smol.
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
    "smol-draft": (
        DraftConfig,
        {
            "vocab_size": 49_152,
            "head_size": 12_288,
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
        },
    ),
}
# Target and draft of each preset in `pairs`.
PAIRS = {"smol": ("smol", "smol-draft"), "llama": ("llama-8b", "llama-1b"), "qwen": ("qwen-7b", "qwen-0.5b")}


def names(text: str) -> tuple[str, ...]:
    """The one or two shapes that a text names: a pair's two, a shape, or TARGET,DRAFT. ValueError: others."""
    found = PAIRS.get(text) or tuple(part.strip() for part in text.split(","))
    unknown = [name for name in found if name not in SHAPES]
    if unknown or len(found) > 2:
        known = ", ".join(PAIRS | SHAPES)
        raise ValueError(
            f"there is no shape {unknown[0] if unknown else text!r}: choose {known}, or two as TARGET,DRAFT"
        )
    return found


def config(name: str) -> PretrainedConfig:
    """The configuration of one shape. ValueError: no such shape, or a name of two."""
    found = (name,) if name in SHAPES else names(name)
    if len(found) > 1:
        raise ValueError(f"{name} names two shapes: take {found[0]} or {found[1]}")
    kind, values = SHAPES[found[0]]
    return kind(**values)


def build(name: str, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """A model of the named shape with random weights, ready to be timed; nothing is downloaded.

    name: a key of SHAPES. device: "meta" makes one without any numbers, enough to count bytes. The global random
    state is left as it was. ValueError: no such shape, no such device. PairError: not enough free memory.
    Taught in notebook 02_verify_cost, section 'Bytes by hand'.
    """
    shape = config(name)
    device = torch.device("meta") if str(device) == "meta" else existing(device)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    if device.type != "meta":
        need, free = model.num_parameters() * dtype.itemsize, free_memory(device)
        if need > free:
            short = f"needs {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {device}"
            raise weights.PairError(f"the shape {name} {short}: close other programs, or choose a smaller shape")
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    return model.eval().requires_grad_(False)
