"""The lean forward says what transformers' does: after any schedule, recorded or not, whatever lies behind its end."""

import itertools
from collections import Counter
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_draft import fresh, tiny_draft
from test_timing import call_clock
from tiny import tiny_llama
from torch.utils._python_dispatch import _disable_current_modes
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from speclib import cost, pairs
from speclib.context import Context, as_context
from speclib.decode import decode, spec_greedy
from speclib.distributions import Rng, Sampling
from speclib.drafters import LookupDrafter, ModelDrafter
from speclib.graphs import Graphs
from speclib.lean import Cache, Lean, LeanContext, hurry
from speclib.packed import product
from speclib.parts import step_parts
from speclib.stopping import Stop


def of_config(kind, config, seed=4):
    """A random model of another configuration than `tiny_llama`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(config).eval().requires_grad_(False)


@lru_cache
def tiny_qwen():
    """Biases at queries, keys and values, drawn as the weights are: zeros would hide a missing one."""
    model = of_config(Qwen2ForCausalLM, Qwen2Config(**SMALL, use_sliding_window=False))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for layer in model.model.layers:
            for x in "qkv":
                getattr(layer.self_attn, f"{x}_proj").bias.data.normal_(0, 0.5)
    return model


@lru_cache
def long_llama():
    """Positions scaled as Llama 3.1's are."""
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 32, "rope_theta": 500.0}
    return of_config(LlamaForCausalLM, LlamaConfig(**SMALL, rope_parameters=scaled))


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 600,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS = {
    "draft": tiny_draft,
    "draft, no shared keys": lambda: tiny_draft(kv_heads=4),
    "llama": tiny_llama,
    "llama, scaled positions": long_llama,
    "qwen": tiny_qwen,
}


def recorded(model):
    """A context that goes through `Graphs` on the CPU: what is recorded is the function itself."""
    context = LeanContext(Lean(model))

    def capture(work):
        answer = work().clone()
        return lambda: answer.copy_(work()), answer

    context._pass = Graphs(context.lean, context._cache, capture)
    return context


CONTEXTS = {"lean": lambda model: LeanContext(Lean(model)), "recorded": recorded}
schedules = st.lists(st.tuples(st.lists(st.integers(0, 63), min_size=1, max_size=5), st.integers(0, 6)), max_size=7)


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(MODELS, CONTEXTS)))
def test_feed_and_rollback_equal_a_fresh_pass(name, kind):
    model = MODELS[name]()

    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(schedules)
    def check(schedule):
        context, plain = CONTEXTS[kind](model), Context(model)
        for ids, cut in schedule:
            logits = context.feed(ids)
            assert logits.shape == (len(ids), 64) and logits.dtype == torch.float32
            assert torch.allclose(logits, plain.feed(ids), atol=1e-4)
            assert torch.allclose(logits[-1], fresh(model, context.tokens), atol=1e-4)
            for c in (context, plain):
                c.rollback(max(0, len(c.tokens) - cut))
        assert torch.allclose(context.feed([7], rows=1)[-1], fresh(model, context.tokens), atol=1e-4)

    check()


@pytest.mark.parametrize("kind", CONTEXTS)
def test_stale_entries_are_never_read(kind):
    """Poison that would show in any sum: NaN would leak through 0 · NaN where a mask multiplies, and prove nothing."""
    said = {}
    for poison in (0.0, 1e4, -1e4):
        context = CONTEXTS[kind](tiny_llama())
        context.feed(list(range(1, 30)))
        context.rollback(11)
        context._cache.held[..., 11:, :] = poison
        said[poison] = [context.feed(ids) for ids in ([5], [6, 7, 8], [9, 10])]
    for poison in (1e4, -1e4):
        assert all(torch.equal(a, b) for a, b in zip(said[0.0], said[poison], strict=True))


@pytest.mark.parametrize("kind", CONTEXTS)
def test_the_cache_grows_with_the_text(kind):
    context, tokens = CONTEXTS[kind](tiny_draft()), [i % 64 for i in range(560)]
    context.feed(tokens[:-2], rows=1)  # more than the buffer has room for at first
    context.feed(tokens[-2:-1])
    assert torch.allclose(context.feed(tokens[-1:])[0], fresh(tiny_draft(), tokens), atol=1e-4)
    with pytest.raises(ValueError, match="do not fit into this model's 600 positions"):
        context.feed([1] * 50)


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr("speclib.graphs.ROOM", 16)
    monkeypatch.setattr(Lean, "cache", lambda self, batch=1, positions=16: Cache(self, batch, positions))


def test_a_recording_is_made_once_for_each_number_of_tokens(little_room):
    context = recorded(tiny_llama())
    prompt = list(range(1, 9))
    rounds = decode(context, LookupDrafter(), prompt, k=3, stop=Stop(7))
    tokens = [t for r in rounds for t in r.tokens]
    first = context._pass.recordings
    assert 1 <= first <= 5  # one for each number of tokens that a pass had
    again = [t for r in decode(context, LookupDrafter(), prompt, k=3, stop=Stop(7)) for t in r.tokens]
    assert again == tokens and context._pass.recordings == first
    # Beyond the room there was, the buffer grows, and what was recorded over the old one is not used again.
    context.feed([1] * 17, rows=1)
    assert not context._pass.recorded
    assert torch.allclose(context.feed([3])[0], fresh(tiny_llama(), context.tokens), atol=1e-4)
    assert context._pass.recordings == first + 1


def test_all_that_is_timed_is_recorded_before_the_first_pass_that_counts(little_room):
    """Also where the largest pass makes the buffer grow, which forgets the recordings of the smaller ones."""
    context = recorded(tiny_llama())
    passes = cost.verify_times({"target": context}, list(range(10)), (1, 2, 4, 8), 2)
    assert len({context._pass.recordings for _ in passes}) == 1


def test_the_parts_of_a_replayed_step_are_clocked_and_the_whole_is_replayed():
    context, replays = LeanContext(Lean(tiny_llama())), []

    def capture(work):
        answer = work().clone()

        def replay():
            replays.append(1)
            with _disable_current_modes():  # a graph runs past whoever watches torch's operations
                answer.copy_(work())

        return replay, answer

    context._pass = Graphs(context.lean, context._cache, capture)
    found = step_parts(context, [1, 2, 3], 2, timer=call_clock())
    # Four products in each of two layers, and the output matrix; a look at the cache in each layer.
    assert found["weights"] == pytest.approx(0.009) and found["attention"] == pytest.approx(0.002)
    assert len(replays) == 1 + 2 * 2  # the prompt, then in each trial an uncounted pass and one that counts


@pytest.mark.parametrize("kind", CONTEXTS)
def test_greedy_drafts_in_one_go_are_those_of_single_steps(kind):
    for model in (tiny_draft(), tiny_llama(), tiny_qwen()):
        quick, slow = CONTEXTS[kind](model), CONTEXTS[kind](model)
        for ids, k in (([1, 2, 3], 4), ([9], 1), ([4, 5], 3)):
            feed, drafts = list(ids), []
            for _ in range(k):
                drafts.append(int(slow.feed(feed, rows=1)[-1].argmax()))
                feed = drafts[-1:]
            assert quick.greedy(ids, k) == drafts
            assert quick.tokens == slow.tokens
            for c in (quick, slow):
                c.rollback(len(c.tokens) - min(k - 1, 2))


@pytest.mark.parametrize("kind", CONTEXTS)
@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_k=5), Sampling(1.3, top_p=0.9)])
def test_drafts_drawn_in_one_go_are_those_of_single_steps(kind, sampling):
    for model in (tiny_draft(), tiny_llama(), tiny_qwen()):
        quick, slow, rngs = CONTEXTS[kind](model), CONTEXTS[kind](model), (Rng(3), Rng(3))
        for ids, k in (([1, 2, 3], 4), ([9], 1), ([4, 5], 3)):
            feed, drafts, rows = list(ids), [], []
            for _ in range(k):
                rows.append(sampling.warp(slow.feed(feed, rows=1)[-1]))
                drafts.append(rngs[0].draw(rows[-1]))
                feed = drafts[-1:]
            tokens, q = quick.sample(ids, k, sampling, rngs[1])
            assert tokens == drafts and torch.equal(q, torch.stack(rows)) and q.dtype == torch.float32
            assert quick.tokens == slow.tokens
            for c in (quick, slow):
                c.rollback(len(c.tokens) - min(k - 1, 2))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_host_hears_of_the_drafts_once_a_round(monkeypatch, temperature):
    """On a GPU each such word waits for all that was launched before it."""
    heard = Counter()
    for name in ("item", "tolist", "__int__", "__bool__", "__index__", "__float__"):
        said = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, name=name, said=said: heard.update([name]) or said(x))
    counts = []
    for k in (1, 6):
        drafter = ModelDrafter(LeanContext(Lean(tiny_llama())))
        heard.clear()
        assert len(drafter.propose([1, 2, 3], k, Sampling(temperature), Rng(0)).tokens) == k
        counts.append(heard.total())
    assert counts[0] == counts[1] <= 2


def test_a_model_that_says_nan_is_told_so_and_nothing_stays(monkeypatch):
    context = LeanContext(Lean(tiny_llama()))
    context.feed([1, 2, 3])
    monkeypatch.setattr(context.lean, "head", lambda x: torch.full((*x.shape[:-1], 64), float("nan")))
    with pytest.raises(ValueError, match="no distribution"):
        context.sample([4], 3, Sampling(1.0), Rng(0))
    assert context.tokens == [1, 2, 3]


def test_an_interrupted_pass_leaves_the_context_as_it_was(monkeypatch):
    context = LeanContext(Lean(tiny_llama()))
    context.feed([1, 2, 3])

    def interrupted(x):
        raise KeyboardInterrupt

    head, context.lean.head = context.lean.head, interrupted
    for call in (lambda: context.feed([4, 5]), lambda: context.greedy([4, 5], 3)):
        with pytest.raises(KeyboardInterrupt):
            call()
    context.lean.head = head
    assert context.tokens == [1, 2, 3]
    assert torch.allclose(context.feed([6])[0], fresh(tiny_llama(), [1, 2, 3, 6]), atol=1e-4)


def test_logits_may_be_changed_in_place_and_bad_calls_change_nothing():
    context = as_context(tiny_draft())
    assert isinstance(context, LeanContext)
    context.feed([1, 2, 3])[:, 0] = 5.0
    for call in (context.feed, lambda ids: context.greedy(ids, 2)):
        for bad in ([], [64], [-1]):
            with pytest.raises(ValueError, match=r"empty|0 … 63"):
                call(bad)
    for length in (-1, 4):
        with pytest.raises(ValueError, match="covers 3"):
            context.rollback(length)
    assert context.tokens == [1, 2, 3]


def test_whoever_asks_a_context_for_its_model_gets_that_of_transformers():
    for model in (tiny_llama(), tiny_draft()):
        assert LeanContext(Lean(model)).model is model  # as `Context.model` is: bytes and devices are read off it


def test_what_it_does_not_know_is_refused_by_name():
    kinds = {
        "another architecture": (MistralForCausalLM, MistralConfig(**SMALL)),
        "the activation gelu": (LlamaForCausalLM, LlamaConfig(**SMALL, hidden_act="gelu")),
        "attention with a window": (
            Qwen2ForCausalLM,
            Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1),
        ),
        "positions that are scaled as the text grows": (
            LlamaForCausalLM,
            LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        ),
    }
    for what, (kind, config) in kinds.items():
        with pytest.raises(ValueError, match=f"{kind.__name__} has {what}: the lean forward is for plain"):
            Lean(of_config(kind, config))


# --- through the loop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONTEXTS)
def test_greedy_text_is_that_of_transformers_for_any_schedule_of_k(kind):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    wanted = [t for r in decode(Context(tiny_llama()), None, prompt, stop=Stop(40)) for t in r.tokens]
    for drafter in (None, LookupDrafter(), ModelDrafter(CONTEXTS[kind](tiny_draft())), ModelDrafter(tiny_llama(1))):
        for schedule in ((1,), (2, 5, 0, 3), (7, 1)):
            ks = itertools.cycle(schedule)
            rounds = decode(
                CONTEXTS[kind](tiny_llama()), drafter, prompt, k=lambda last, ks=ks: next(ks), stop=Stop(40)
            )
            assert [t for r in rounds for t in r.tokens] == wanted


def test_sampled_text_is_that_of_transformers_with_the_same_seed():
    sampling = Sampling(0.8, top_p=0.9)
    texts = []
    for target in (Context(tiny_llama()), LeanContext(Lean(tiny_llama()))):
        rounds = decode(
            target, ModelDrafter(tiny_draft()), [1, 2, 3], k=3, sampling=sampling, stop=Stop(40), rng=Rng(7)
        )
        texts.append([t for r in rounds for t in r.tokens])
    assert texts[0] == texts[1]


def test_a_model_in_a_hurry_is_lean_in_every_context_and_itself_elsewhere():
    model = of_config(LlamaForCausalLM, LlamaConfig(**SMALL), seed=9)
    before = fresh(model, [1, 2, 3])
    hurry(model)
    first, second = as_context(model), as_context(model)
    assert isinstance(first, LeanContext) and first.lean is second.lean and first is not second
    first.feed([1, 2, 3])
    assert second.tokens == []
    assert torch.equal(fresh(model, [1, 2, 3]), before)
    tokens, stats = spec_greedy(model, tiny_draft(), [1, 2, 3], 12, 3)
    assert len(tokens) == 12 and stats.rounds


def test_a_pair_is_loaded_for_speed_on_demand(tmp_path):
    from tiny import save

    target, draft = save(tmp_path / "target"), save(tmp_path / "draft", seed=1)
    kinds = {False: Context, True: LeanContext}
    for compile, kind in kinds.items():
        pair = pairs.load(f"{target},{draft}", dtype=torch.float32, compile=compile)
        assert isinstance(as_context(pair.target), kind) and isinstance(as_context(pair.draft), kind)
    with pytest.raises(ValueError, match="int8 weights need a model in bfloat16"):
        _ = pairs.load(f"{target},{draft}", dtype=torch.float32, quantize="int8").target
    with pytest.raises(ValueError, match="choose int8 or int4"):
        pairs.load(f"{target},{draft}", quantize="int5")


# --- weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "worst"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_a_product_is_that_of_the_weights(n, dtype, worst):
    g = torch.Generator().manual_seed(n)
    weight, bias, x = (torch.randn(*s, generator=g).to(dtype) for s in ((192, 128), (192,), (2, n, 128)))
    exact = x.double() @ weight.double().T
    for b, wanted in ((None, exact), (bias, exact + bias.double())):
        out = product(weight, b)(x)
        assert out.shape == (2, n, 192) and out.dtype == dtype
        assert (out.double() - wanted).norm() / wanted.norm() < worst


@pytest.mark.parametrize(("quantize", "least", "most"), [("int8", 2e-3, 0.012), ("int4", 0.03, 0.11)])
def test_fewer_bits_round_and_do_no_worse_than_that(quantize, least, most):
    g = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(*s, generator=g).bfloat16() for s in ((192, 128), (192,)))
    for n in (1, 2, 5, 40):
        x = torch.randn(1, n, 128, generator=g).bfloat16()
        wanted = x.double() @ weight.double().T + bias.double()
        out = product(weight, bias, quantize)(x)
        assert out.shape == (1, n, 192)
        assert least < (out.double() - wanted).norm() / wanted.norm() < most


def test_a_quantised_model_decodes_exactly_its_own_text():
    """Rounded weights make another model; speculation still says what that model says."""
    wide = {**SMALL, "hidden_size": 64, "intermediate_size": 128}
    model = of_config(LlamaForCausalLM, LlamaConfig(**wide)).bfloat16()
    for quantize in ("int8", "int4"):
        lean = Lean(model, quantize)
        plain, spec = (
            [t for r in decode(LeanContext(lean), drafter, [1, 2, 3], k=3, stop=Stop(16)) for t in r.tokens]
            for drafter in (None, LookupDrafter(1))
        )
        differ = next((i for i, (a, b) in enumerate(zip(plain, spec, strict=True)) if a != b), None)
        if differ is not None:  # a near tie that a pass over more rows rounds to the other side
            context = LeanContext(lean)
            row = context.feed([1, 2, 3, *plain[:differ]])[-1]
            assert abs(row[plain[differ]] - row[spec[differ]]) < 0.3


def test_shapes_that_four_bits_cannot_take_are_named():
    with pytest.raises(ValueError, match="64 × 64 blocks, and there is one of 96 × 128: take int8"):
        product(torch.ones(96, 128).bfloat16(), None, "int4")
