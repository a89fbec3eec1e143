"""A context's logits are those of a fresh pass over the tokens it covers, whatever was fed and cut before."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_llama

from speclib.context import Context, as_context, forward
from speclib.toy import FixedLM, P, TableLM

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
NO_IDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def make(kind, **more):
    config = getattr(transformers, kind + "Config")(**{**SIZES, **NO_IDS, **more})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, more.pop("cls", kind + "ForCausalLM"))(config)
    return model.eval().requires_grad_(False)


def fresh(model, tokens):
    """What the model says after `tokens`, from one pass with no cache."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float()


MODELS = {
    "llama": lambda: tiny_llama(),
    "mistral, past its sliding window": lambda: make("Mistral", num_key_value_heads=2, sliding_window=6),
    "gemma2, every other layer sliding": lambda: make(
        "Gemma2", num_key_value_heads=2, head_dim=8, sliding_window=6, attn_implementation="eager"
    ),
    "gpt2, absolute positions": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, **NO_IDS)
    ).eval(),
    "qwen2": lambda: make("Qwen2", num_key_value_heads=2),
    "gpt neox, which calls itself no decoder": lambda: make("GPTNeoX"),
}
schedules = st.lists(st.tuples(st.lists(st.integers(0, 63), min_size=1, max_size=5), st.integers(0, 6)), max_size=7)


@pytest.mark.parametrize("name", MODELS)
def test_feed_and_rollback_equal_a_fresh_pass(name):
    model = MODELS[name]()

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(schedules)
    def check(schedule):
        context = Context(model)
        for ids, cut in schedule:
            logits = context.feed(ids)
            assert logits.shape == (len(ids), 64) and logits.dtype == torch.float32
            assert torch.allclose(logits[-1], fresh(model, context.tokens), atol=1e-4)
            context.rollback(max(0, len(context.tokens) - cut))
        logits = context.feed([7])
        assert context.tokens[-1] == 7
        assert torch.allclose(logits[-1], fresh(model, context.tokens), atol=1e-4)

    check()


def test_every_row_is_the_prediction_after_its_token():
    context, tokens = Context(tiny_llama()), [3, 1, 4, 1, 5]
    logits = context.feed(tokens)
    for i in range(len(tokens)):
        assert torch.allclose(logits[i], fresh(context.model, tokens[: i + 1]), atol=1e-4)
    context.rollback(0)
    assert torch.allclose(context.feed(tokens, rows=2), logits[-2:], atol=1e-5)


def test_a_ghost_left_in_the_cache_changes_what_comes_next():
    """The control of this file: the comparison with a fresh pass does notice a missing rollback."""
    context = Context(tiny_llama())
    context.feed([3, 1, 4])
    true_text = [3, 1, 5]
    assert not torch.allclose(context.feed([5])[-1], fresh(context.model, true_text), atol=1e-4)


def test_forward_is_the_lessons_function():
    cache = transformers.DynamicCache()
    assert forward(tiny_llama(), cache, [1, 2, 3]).shape == (3, 64)
    assert torch.allclose(forward(tiny_llama(), cache, [4])[0], fresh(tiny_llama(), [1, 2, 3, 4]), atol=1e-4)


def test_logits_may_be_changed_in_place():
    logits = Context(tiny_llama()).feed([1, 2])
    logits[:, 0] = float("-inf")
    assert bool(torch.isinf(logits[:, 0]).all())


def test_no_warning_from_transformers(recwarn):
    context = Context(tiny_llama())
    context.feed([1, 2, 3])
    context.rollback(1)
    context.feed([4])
    assert [str(w.message) for w in recwarn] == []


@pytest.mark.parametrize("make_model", [lambda: Context(tiny_llama()), lambda: TableLM(64)], ids=["context", "table"])
def test_bad_calls_are_refused_and_change_nothing(make_model):
    model = make_model()
    model.feed([1, 2, 3])
    for bad in ([], [64], [-1], [1, 2, 99]):
        with pytest.raises(ValueError, match=r"empty|0 … 63"):
            model.feed(bad)
    for rows in (0, 2):
        with pytest.raises(ValueError, match=r"rows must be in 1 … 1"):
            model.feed([1], rows=rows)
    for length in (-1, 4):
        with pytest.raises(ValueError, match="covers 3"):
            model.rollback(length)
    assert model.tokens == [1, 2, 3]
    model.rollback(3)
    assert model.tokens == [1, 2, 3]
    model.rollback(0)
    assert model.tokens == []
    model.feed([5])
    assert model.tokens == [5]


def test_more_tokens_than_positions_are_refused():
    context = Context(tiny_llama(positions=8))
    context.feed([1] * 6)
    with pytest.raises(ValueError, match="9 tokens do not fit into this model's 8 positions"):
        context.feed([1] * 3)
    assert context.feed([1] * 2).shape[0] == 2


def test_an_interrupted_pass_leaves_a_usable_context():
    model = tiny_llama(seed=5)
    context = Context(model)
    context.feed([1, 2, 3])

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        context.feed([4])  # the first layer's cache has grown, the second's has not
    hook.remove()
    assert context.tokens == []
    assert torch.allclose(context.feed([1, 2])[-1], fresh(model, [1, 2]), atol=1e-4)


@pytest.mark.parametrize("keeps", [0, 2], ids=["empties the cache", "keeps as many as it should drop"])
def test_a_crop_that_means_something_else_is_noticed(monkeypatch, keeps):
    """transformers' crop(-2) of three positions has left one, two, or none, and in some versions raised."""
    context = Context(tiny_llama())
    context.feed([1, 2, 3])
    crop = transformers.DynamicCache.crop
    monkeypatch.setattr(transformers.DynamicCache, "crop", lambda cache, n: crop(cache, keeps - 3))
    with pytest.raises(RuntimeError, match=rf"holds {keeps} positions but covers 1 tokens.* install the pinned one"):
        context.rollback(1)


def test_an_interrupted_rollback_leaves_a_usable_context(monkeypatch):
    model = tiny_llama(seed=5)
    context = Context(model)
    context.feed([1, 2, 3])

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(context._cache.layers[1], "crop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        context.rollback(1)  # the first layer has been cut, the second has not
    assert context.tokens == []
    assert torch.allclose(context.feed([1, 2])[-1], fresh(model, [1, 2]), atol=1e-4)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: make("Mamba", state_size=4), "MambaForCausalLM.*cannot be cut back"),
        (
            lambda: make("RecurrentGemma", num_key_value_heads=1, head_dim=8, attention_window_size=8, lru_width=32),
            "RecurrentGemmaForCausalLM.*cannot be cut back",
        ),
        (
            lambda: transformers.T5ForConditionalGeneration(
                transformers.T5Config(vocab_size=64, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8)
            ),
            "T5ForConditionalGeneration is an encoder–decoder",
        ),
        (lambda: make("Bert", cls="BertLMHeadModel"), "BertLMHeadModel reads to both sides"),
        (
            lambda: transformers.OpenAIGPTLMHeadModel(
                transformers.OpenAIGPTConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=4)
            ),
            "OpenAIGPTLMHeadModel keeps nothing in transformers' cache",
        ),
        (
            lambda: transformers.XLNetLMHeadModel(
                transformers.XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=4, d_inner=64)
            ),
            "XLNetLMHeadModel keeps nothing in transformers' cache",
        ),
    ],
    ids=["mamba", "recurrent gemma", "t5", "bert", "openai gpt", "xlnet"],
)
def test_what_cannot_be_cut_back_is_refused_by_name(model, why):
    with pytest.raises(ValueError, match=why):
        Context(model()).feed([1, 2])


def test_a_model_whose_longer_texts_turn_the_cached_positions_ends_before_them():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    few = {"original_max_position_embeddings": 8}
    model = make("Phi3", num_key_value_heads=2, max_position_embeddings=64, rope_parameters=rope | few, **few)
    context = Context(model)
    context.feed([1, 2, 3, 4])
    assert torch.allclose(context.feed([5, 6, 7, 8])[-1], fresh(model, [1, 2, 3, 4, 5, 6, 7, 8]), atol=1e-4)
    with pytest.raises(ValueError, match="9 tokens do not fit into this model's 8 positions"):
        context.feed([9])


def test_a_model_that_asks_for_a_quantised_cache_still_gets_one_that_can_be_cut():
    model = make("Llama", num_key_value_heads=2)
    model.generation_config.cache_implementation = "quantized"
    context = Context(model)
    context.feed([1, 2, 3])
    context.rollback(1)
    assert torch.allclose(context.feed([4])[-1], fresh(model, [1, 4]), atol=1e-4)


def test_as_context_wraps_models_and_leaves_the_rest():
    table = TableLM(4)
    assert as_context(table) is table
    context = as_context(tiny_llama())
    assert isinstance(context, Context) and as_context(context) is context


# --- table models -----------------------------------------------------------------------------------


def test_a_table_depends_on_every_token_in_order():
    def after(*tokens):
        return TableLM(5, seed=1).feed(list(tokens))[-1]

    assert torch.equal(after(1, 2, 3), after(1, 2, 3))
    texts = [(1, 2, 3), (0, 2, 3), (1, 0, 3), (2, 1, 3), (1, 2, 2, 3), (3,), (1, 3)]
    rows = [after(*t) for t in texts]
    assert all(not torch.allclose(rows[i], rows[j]) for i in range(len(rows)) for j in range(i))
    assert not torch.allclose(TableLM(5, seed=2).feed([1])[-1], after(1))


def test_a_table_keeps_to_fp64_and_to_its_zeros():
    rows = TableLM(50, seed=3, zeros=0.5).feed([1, 2, 3, 4], rows=3)
    assert rows.dtype == torch.float64 and rows.shape == (3, 50)
    share = float((rows == float("-inf")).double().mean())
    assert 0.3 < share < 0.7
    assert bool(torch.isfinite(rows).any(-1).all())


def test_a_fixed_model_says_the_same_after_every_text():
    model = FixedLM(P)
    assert torch.allclose(model.feed([0, 5, 2]).exp(), P.expand(3, 6))
