"""Tiny random models for tests: a Llama of two layers takes milliseconds to make and to run."""

from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speclib import shapes, weights

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = (("e", "r"), ("Ġ", "q"), ("o", "w"), ("r", "o"))
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}</s>{% endif %}"


@lru_cache
def tiny_llama(seed=0, vocab=64, positions=512, hidden=32, layers=2):
    """A random Llama in fp32, the same for the same arguments. Large weights make its logits differ clearly."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            initializer_range=0.4,
            bos_token_id=None,
            eos_token_id=None,
        )
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def tiny_tokens(merges=MERGES, swap=False):
    tokens = ["<|endoftext|>", "<s>", "</s>", *ALPHABET, *("".join(m) for m in sorted(merges))]
    if swap:
        tokens[10], tokens[11] = tokens[11], tokens[10]
    return tokens


def tiny_tokenizer(merges=MERGES, swap=False, normalizer=None, template=TEMPLATE, added=(), **special):
    tokens = tiny_tokens(merges, swap)
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=list(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if normalizer:
        inner.normalizer = normalizer
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<|endoftext|>"} | special
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    tokenizer.add_tokens(list(added))
    tokenizer.chat_template = template
    return tokenizer


def save(folder: Path, tokenizer=None, **llama) -> str:
    """A model folder with a tiny Llama and its tokenizer; the folder's name."""
    with weights.quiet():
        tiny_llama(**({"vocab": 320} | llama)).save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return str(folder)


def small_shape(monkeypatch):
    """The shape `smol`, made small, and a pair `both` of two such."""
    kind, values = shapes.SHAPES["smol"]
    values = values | {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    values |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256}
    monkeypatch.setitem(shapes.SHAPES, "smol", (kind, values))
    monkeypatch.setitem(shapes.PAIRS, "both", ("smol", "smol"))
