"""A model and the tokens that its KV cache covers: forward, feed, rollback.

This is the only module that touches transformers' cache, whose two moving spots are the name of the
argument (`past_key_values`, then `cache`) and what `crop` counts.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES


class LanguageModel(Protocol):
    """What the loop needs of a model: `Context` is one over real weights, `toy.TableLM` one over a table."""

    tokens: list[int]
    vocab_size: int
    max_length: int
    size: int

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor: ...
    def rollback(self, length: int) -> None: ...


def run(model: PreTrainedModel, cache: DynamicCache, x: Tensor, **more: object) -> Any:
    """One pass of a model over ids x [batch, n] on top of `cache`, which is extended in place: transformers' output."""
    return model(input_ids=x, cache=cache, use_cache=True, **more)


def forward(model: PreTrainedModel, cache: DynamicCache, ids: list[int], rows: int | None = None) -> Tensor:
    """Feed token ids on top of `cache`, which is extended in place, and return what may come next.

    ids: at least one. rows: how many of the last positions to score, None for all; a long prompt needs one,
    and the output matrix is a good part of a small model. Returns fp32 logits [rows, vocab]; row i is the
    prediction after ids[:i + 1] when all are scored.
    Taught in notebook 01_distributions, section 'One step by hand'.
    """
    with torch.inference_mode():
        x = torch.tensor([ids], device=model.device)
        logits = run(model, cache, x, logits_to_keep=rows or 0).logits[0]
    # Copied outside of inference mode, so that the caller may change it in place.
    return logits.to(torch.float32, copy=True)


class Context:
    """A model together with its cache, and the very tokens which that cache covers.

    Knowing which tokens are covered, not only how many, is what makes a ghost visible: a rejected token
    that stays behind would be read by every later step.

    model: a causal decoder of transformers. Attention with a sliding window is kept in full, so that it can
    be cut back also past its window. ValueError, naming the model, for what cannot be cut back: recurrent
    or otherwise stateful layers, encoder–decoders, and models that read to both sides.
    Taught in notebook 01_distributions, section 'One step by hand'.
    """

    def __init__(self, model: PreTrainedModel):
        _refuse_uncuttable(model)
        self.model = model
        config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = config.vocab_size
        self.max_length = positions(config)
        self.size: int = model.num_parameters()
        self._empty()

    def feed(self, ids: list[int], rows: int | None = None) -> Tensor:
        """Put ids behind the covered tokens and return the logits after each of them (after the last `rows`).

        Returns fp32 [rows or len(ids), vocab]. ValueError: no ids, rows out of range, an unknown id, more
        tokens than the model has positions. A pass that fails or is interrupted leaves the context empty.
        """
        check_feed(self, ids, rows)
        try:
            logits = forward(self.model, self._cache, ids, rows)
        except BaseException:
            self._empty()
            raise
        if not self._cache.get_seq_length():
            raise ValueError(f"{type(self.model).__name__} keeps nothing in transformers' cache; use another model")
        self.tokens += ids
        self._check_length()
        return logits

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` covered tokens. ValueError unless 0 ≤ length ≤ covered."""
        surplus = len(self.tokens) - length
        if length < 0 or surplus < 0:
            raise ValueError(f"cannot roll back to {length} tokens: the cache covers {len(self.tokens)}")
        # A negative count is the one form of crop that means the same in every version, and −0 empties the
        # cache in some of them.
        if surplus > 0:
            try:
                self._cache.crop(-surplus)
                del self.tokens[length:]
            except BaseException:
                self._empty()
                raise
        self._check_length()

    def _empty(self) -> None:
        # Also after an interruption: layers before it have changed and those behind it have not, which no crop mends.
        self._cache = DynamicCache()
        self.tokens: list[int] = []

    def _check_length(self) -> None:
        length = self._cache.get_seq_length()
        if length != len(self.tokens):
            raise RuntimeError(
                f"the cache holds {length} positions but covers {len(self.tokens)} tokens: this version of "
                "transformers cuts caches in another way; install the pinned one (speclib doctor)"
            )


def shared(a: list[int], b: list[int]) -> int:
    """How many leading tokens two texts have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def as_context(model: LanguageModel | PreTrainedModel) -> LanguageModel:
    """The model itself when it can already feed and roll back, else a new Context over it.

    A model that knows a context of its own (`lean_context`, as the distilled draft does) gets that one.
    """
    if hasattr(model, "rollback"):
        return model
    return model.lean_context() if hasattr(model, "lean_context") else Context(model)


def check_feed(model: LanguageModel, ids: list[int], rows: int | None) -> None:
    """ValueError in one sentence where ids cannot be put behind the tokens that a model covers."""
    if not ids:
        raise ValueError("nothing to feed: ids is empty")
    if rows is not None and not 1 <= rows <= len(ids):
        raise ValueError(f"rows must be in 1 … {len(ids)}, the number of ids fed, not {rows}")
    if min(ids) < 0 or max(ids) >= model.vocab_size:
        bad = next(i for i in ids if not 0 <= i < model.vocab_size)
        raise ValueError(f"token id {bad} is not in 0 … {model.vocab_size - 1}: use this model's own tokenizer")
    if len(model.tokens) + len(ids) > model.max_length:
        raise ValueError(
            f"{len(model.tokens) + len(ids)} tokens do not fit into this model's {model.max_length} positions: "
            "shorten the prompt or ask for fewer tokens"
        )


def positions(config: PreTrainedConfig) -> int:
    """How many tokens a model reads in such a way that later ones leave what is cached as it is."""
    most = getattr(config, "max_position_embeddings", None) or 0
    most = most if most > 0 else 1 << 30
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # In a longer text all positions turn by other angles; those that are cached would keep the old ones.
        most = min(most, rope["original_max_position_embeddings"])
    return most


def _refuse_uncuttable(model: PreTrainedModel) -> None:
    name = type(model).__name__
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder–decoder; speculation here needs a decoder-only model")
    # Some that only ever read forward say so of themselves, too.
    if getattr(config, "is_decoder", True) is False and config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise ValueError(f"{name} reads to both sides of a token (is_decoder is False); use a model that reads forward")
    layers = {type(layer) for layer in DynamicCache(config=config).layers}
    other = layers - {DynamicLayer, DynamicSlidingWindowLayer}
    if other or getattr(model, "_is_stateful", False):
        what = ", ".join(sorted(t.__name__ for t in other)) or "a recurrent state"
        raise ValueError(
            f"{name} keeps {what}, which cannot be cut back after a rejected draft; use a model with "
            "plain attention caches"
        )
