"""What a step costs: counted exactly, timed on simulated clocks, and drawn; no real time is ever asserted."""

from __future__ import annotations

import json
import statistics
import sys
import types

import pytest
import torch
from tiny import save, tiny_llama
from transformers import LlamaForCausalLM

from speclib import cli, cost, pairs, records, roofline, shapes, timing, verify_cost, weights
from speclib.checks import cost as checks
from speclib.context import Context
from speclib.cost import Timing
from speclib.exercises import Todo
from speclib.lean import Lean, LeanContext, hurry
from speclib.pairs import PairError
from speclib.parts import step_parts

BF16 = torch.bfloat16


class Sim(checks.Simulated):
    """A simulated device; as a timer it waits and reads its own clock, as WallTimer does."""

    def __init__(self, disturbed=None, step=0.020):
        super().__init__(disturbed or {})
        self.STEP = step

    def timer(self, work):
        self.wait()
        start = self.clock()
        work()
        self.wait()
        return self.clock() - start


# --- counted ------------------------------------------------------------------------------------------------


def test_the_8b_reads_15_of_its_16_gb_and_the_ceiling_is_18_tokens_per_second():
    llama = shapes.build("llama-8b", BF16, "meta")
    assert llama.num_parameters() == 8_030_261_248
    assert cost.model_bytes(llama) == 16_060_522_496
    assert cost.step_bytes(llama) == 16_060_522_496 - 2 * 128_256 * 4096
    assert cost.ceiling_tokens_per_second(cost.step_bytes(llama), 273e9) == pytest.approx(18.2, abs=0.05)
    assert cost.ceiling_tokens_per_second(cost.model_bytes(llama), 273e9) == pytest.approx(17.0, abs=0.05)
    assert cost.cache_bytes(llama, 1) == 131_072


@pytest.mark.parametrize("name, parameters, tied", [
    ("llama-1b", 1_235_814_400, True), ("qwen-7b", 7_615_616_512, False), ("qwen-0.5b", 494_032_768, True),
    ("smol", 134_515_008, True), ("smol-draft", 18_138_880, False),
])  # fmt: skip
def test_every_shape_has_its_models_parameters(name, parameters, tied):
    model = shapes.build(name, BF16, "meta")
    assert model.num_parameters() == parameters
    assert cost.model_bytes(model) == sum(p.numel() * p.element_size() for p in model.parameters()) == 2 * parameters
    assert (cost.step_bytes(model) == cost.model_bytes(model)) == tied


def test_c_from_bytes_of_the_llama_pair_is_a_sixth():
    small, large = (cost.step_bytes(shapes.build(n, BF16, "meta")) for n in ("llama-1b", "llama-8b"))
    assert small / large == pytest.approx(0.165, abs=0.001)


def test_flops_are_two_for_each_weight_that_is_read_and_four_for_each_look_back():
    model = tiny_llama()
    read = model.num_parameters() - model.get_input_embeddings().weight.numel()
    assert cost.flops_per_token(model) == 2 * read
    assert cost.flops_per_token(model, 10) - cost.flops_per_token(model) == 4 * 2 * 4 * 8 * 10
    assert cost.step_bytes(model) == 4 * read


def test_the_cache_of_a_real_context_has_the_bytes_that_are_counted():
    context = Context(tiny_llama())
    context.feed([1, 2, 3])
    held = sum(t.numel() * t.element_size() for layer in context._cache.layers for t in (layer.keys, layer.values))
    assert cost.cache_bytes(context.model, 3) == held


def test_the_roofline_bends_at_the_ridge():
    size, flops, speed, peak = 15e9, 15e9, 273e9, 125e12
    ridge = cost.ridge_point(speed, peak)
    assert ridge == pytest.approx(457.9, abs=0.1)
    assert cost.roofline(1, size, flops, speed, peak) == cost.roofline(400, size, flops, speed, peak) == size / speed
    assert cost.roofline(ridge, size, flops, speed, peak) == pytest.approx(size / speed)
    assert cost.roofline(2 * ridge, size, flops, speed, peak) == pytest.approx(2 * size / speed)
    for bad in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="must be positive"):
            cost.roofline(1, 1, 1, *bad)


def test_presets_say_where_they_come_from_and_what_is_estimated():
    assert (cost.SPARK.bandwidth, cost.H200.bandwidth, cost.H200.peak) == (273e9, 4.8e12, 989e12)
    assert "estimated" in cost.SPARK.source and "data sheet" in cost.H200.source


# --- shapes -------------------------------------------------------------------------------------------------


def test_names_of_shapes():
    assert shapes.names("llama") == ("llama-8b", "llama-1b")
    assert shapes.names("smol-draft") == ("smol-draft",)
    assert shapes.names("qwen-7b, smol") == ("qwen-7b", "smol")
    for bad in ("llama-9b", "smol,smol,smol", "", "smol,"):
        with pytest.raises(ValueError, match=r"there is no shape.*choose smol, llama"):
            shapes.names(bad)
    with pytest.raises(ValueError, match=r"llama names two shapes: take llama-8b or llama-1b"):
        shapes.build("llama", BF16, "meta")


def test_every_preset_has_the_shapes_of_both_its_models():
    for preset in pairs.PRESETS:
        assert len(shapes.names(preset)) == len(set(shapes.names(preset))) == 2
    real = json.loads((pairs.SMOL_DRAFT.path / "config.json").read_text(encoding="utf-8"))
    assert shapes.SHAPES["smol-draft"][1].items() <= real.items()


def small_shape(monkeypatch):
    kind, values = shapes.SHAPES["smol"]
    values = values | {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    values |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256}
    monkeypatch.setitem(shapes.SHAPES, "smol", (kind, values))
    monkeypatch.setitem(shapes.PAIRS, "both", ("smol", "smol"))


def test_a_built_shape_runs_and_leaves_the_random_state_alone(monkeypatch):
    small_shape(monkeypatch)
    before = torch.random.get_rng_state()
    model = shapes.build("smol", BF16, "cpu")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.dtype == BF16 and not model.training
    assert Context(model).feed([1, 2, 3]).isfinite().all()


def test_a_shape_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(shapes, "free_memory", lambda device: 10**9)
    with pytest.raises(PairError, match=r"llama-8b needs 16\.1 GB, and 1\.0 GB are free on cpu"):
        shapes.build("llama-8b", BF16, "cpu")


@pytest.mark.parametrize("ask", [
    cost.bandwidth, lambda device: cost.peak_flops(BF16, device), lambda device: shapes.build("smol", BF16, device),
])  # fmt: skip
def test_a_device_that_is_not_there_is_one_sentence(ask, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device, word in (("cuda", "there is no cuda on this machine"), ("abacus", "there is no device 'abacus'")):
        with pytest.raises(ValueError, match=word) as caught:
            ask(device)
        assert "\n" not in str(caught.value)


def test_unified_memory_is_counted_by_the_system(monkeypatch):
    import psutil

    device = torch.device("cuda", 0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=77))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (11, 22))
    for integrated, free in ((True, 77), (False, 11)):
        properties = types.SimpleNamespace(is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d, p=properties: p)
        assert roofline.free_memory(device) == free
    assert roofline.free_memory(torch.device("cpu")) == 77


# --- timed on a simulated clock -----------------------------------------------------------------------------

PROMPT = list(range(100))


def test_time_verify_gives_the_median_of_undisturbed_passes():
    device = Sim({4: 5.0, 5: 0.001})
    expected = device.undisturbed(8, 100)
    found = cost.time_verify(device, PROMPT, 8, 10, timer=device.timer)
    assert found == pytest.approx(expected, abs=2e-5)
    # The prompt once, then one uncounted pass and ten that count, each behind the prompt alone.
    assert device.log == [(0, 100)] + [(100, 8)] * 11
    assert device.tokens == PROMPT


def test_the_spread_is_there_on_request():
    device = Sim({2: 0.1, 3: 0.2, 4: 0.3, 5: 0.4, 6: 0.5})
    got = cost.time_verify(device, PROMPT, 1, 5, spread=True, timer=device.timer)
    base = device.undisturbed(1, 100)
    assert got.seconds == pytest.approx([base + 0.1 * i for i in range(1, 6)], abs=2e-5)
    assert got.median == pytest.approx(base + 0.3, abs=2e-5)
    assert got.spread == pytest.approx((base + 0.2, base + 0.4), abs=2e-5)
    assert Timing((2.0,)).spread == (2.0, 2.0)


def test_a_context_that_covers_something_else_is_brought_to_the_prompt():
    device = Sim()
    device.tokens = [*PROMPT[:60], 999]
    cost.time_verify(device, PROMPT, 2, 1, timer=device.timer)
    assert device.log[0] == (60, 40)


def test_sizes_are_interleaved_so_that_a_noisy_moment_hits_all():
    device = Sim()
    keys = [key for key, _ in cost.verify_times({"target": device}, PROMPT, (1, 8), 3, device.timer)]
    assert keys == [("target", 1), ("target", 8)] * 3
    # The largest once by itself, so that the cache has its room before the uncounted passes.
    assert [fed for _, fed in device.log] == [100, 8, 1, 8, 1, 8, 1, 8, 1, 8]


def test_the_models_take_turns_at_each_size_so_that_neither_is_timed_warm():
    both = {"target": Sim(), "draft": Sim()}
    keys = [key for key, _ in cost.verify_times(both, PROMPT, (1, 8), 1, lambda work: work() or 1.0)]
    assert keys == [("target", 1), ("draft", 1), ("target", 8), ("draft", 8)]


@pytest.mark.parametrize("models, sizes", [({}, [1]), ({"target": Sim()}, [])])
def test_nothing_to_time_is_one_sentence(models, sizes):
    with pytest.raises(ValueError, match="there is nothing to time"):
        list(cost.verify_times(models, PROMPT, sizes))


def test_interrupted_and_run_again_it_starts_from_a_clean_cache():
    device = Sim()
    feed, calls = device.feed, []

    def interrupted(ids, rows=None):
        calls.append(len(ids))
        if len(calls) == 4:
            device.tokens.clear()  # as Context does
            raise KeyboardInterrupt
        feed(ids, rows)

    device.feed = interrupted
    with pytest.raises(KeyboardInterrupt):
        list(cost.verify_times({"target": device}, PROMPT, (1, 2), 5, device.timer))
    found = dict(cost.verify_times({"target": device}, PROMPT, (1, 2), 5, device.timer))
    assert {len(t.seconds) for t in found.values()} == {5}
    assert device.tokens == PROMPT


def test_c_is_timed_in_turns_as_in_a_round():
    target, draft, order = Sim(step=0.040), Sim(step=0.004), []
    clocks = {"target": target, "draft": draft}

    def timer(work):
        before = len(target.log)
        seconds = sum(device.timer(lambda: None) for device in clocks.values())
        starts = [d.now for d in clocks.values()]
        work()
        for device in clocks.values():
            device.wait()
        order.append("target" if len(target.log) > before else "draft")
        return seconds + sum(d.now - s for d, s in zip(clocks.values(), starts, strict=True))

    of_target, of_draft = cost.round_times(target, draft, PROMPT, k=4, trials=3, timer=timer)
    assert order == ["target", "draft"] * 4
    assert [fed for _, fed in draft.log[1:5]] == [1, 1, 1, 1]
    assert [covered for covered, _ in draft.log[1:5]] == [100, 101, 102, 103]
    assert of_target.median == pytest.approx(target.undisturbed(1, 100), abs=2e-5)
    assert of_draft.median == pytest.approx(draft.undisturbed(1, 101.5), abs=2e-5)
    c = cost.draft_cost_ratio(Sim(step=0.040), Sim(step=0.040), PROMPT, timer=lambda work: work() or 1.0)
    assert c == pytest.approx(1 / 4)


def test_v_is_one_at_zero_and_straight_between_measured_sizes():
    seconds = {1: 2.0, 2: 2.0, 8: 3.2, 16: 4.0}
    assert cost.verify_ratio(seconds, 0) == 1
    assert cost.verify_ratio(seconds, 7) == pytest.approx(1.6)
    assert cost.verify_ratio(seconds, 4) == pytest.approx(1.3)
    for k, table in ((16, seconds), (-1, seconds), (1, {2: 1.0, 4: 1.0})):
        with pytest.raises(ValueError, match="needs passes over 1"):
            cost.verify_ratio(table, k)


def test_a_batch_makes_the_same_passes_over_a_cache_as_wide():
    model = tiny_llama()
    context, alone = cost._context(model, 3), Context(model)
    assert torch.equal(context.feed([1, 2, 3]), alone.feed([1, 2, 3]))
    assert torch.allclose(context.feed([4, 5]), alone.feed([4, 5]), atol=1e-4)
    assert {layer.keys.shape[0] for layer in context._cache.layers} == {3}
    context.rollback(3)
    assert context.tokens == [1, 2, 3]


def test_the_grid_holds_every_power_of_two_up_to_the_product():
    found = dict(cost.batch_grid(tiny_llama(), [1, 2, 3], most=8, trials=2, timer=lambda work: work() is None or 0.5))
    assert set(found) == {(b, n) for b in (1, 2, 4, 8) for n in (1, 2, 4, 8) if b * n <= 8}
    assert {len(t.seconds) for t in found.values()} == {2}


def test_the_grid_is_of_transformers_forward_whatever_a_context_would_take(monkeypatch):
    model = LlamaForCausalLM(tiny_llama().config).eval().requires_grad_(False)
    hurry(model)
    monkeypatch.setattr(model, "lean_context", lambda: pytest.fail("a pass went through the lean forward"))
    assert len(dict(cost.batch_grid(model, [1, 2], most=2, trials=1, timer=lambda work: work() is None or 0.5))) == 3
    with pytest.raises(ValueError, match="a batch needs the transformers model"):
        list(cost.batch_grid(Context(tiny_llama()), [1, 2], most=2))


def test_the_grid_asks_for_memory_before_it_fills_it(monkeypatch):
    monkeypatch.setattr(cost, "free_memory", lambda device: 10**5)
    monkeypatch.setattr(Context, "feed", lambda *_: pytest.fail("a pass was made"))
    # Seven caches of 100 tokens, each with room for four more, of 256 bytes a token.
    with pytest.raises(PairError, match=r"7 caches of 100 tokens need 0\.0 GB, and 0\.0 GB are free on cpu"):
        list(cost.batch_grid(tiny_llama(), PROMPT[:50] * 2, most=4))
    assert sum(cost.cache_bytes(tiny_llama(), b * 100 + 4) for b in (1, 2, 4)) == 256 * 712


@pytest.mark.parametrize("bad, word", [
    ({"n": 0}, "n must be at least 1"), ({"trials": 0}, "trials must be at least 1"),
    ({"n": 10}, "do not fit into the model's 32 positions"), ({"prompt_ids": []}, "the prompt is empty"),
])  # fmt: skip
def test_bad_input_is_one_sentence(bad, word):
    with pytest.raises(ValueError, match=word) as caught:
        cost.time_verify(tiny_llama(positions=32), **({"prompt_ids": [1] * 25, "n": 2, "trials": 1} | bad))
    assert "\n" not in str(caught.value)


def test_other_bad_input():
    with pytest.raises(ValueError, match="batch must be at least 1"):
        cost.step_cost(tiny_llama(), [1], batch=0)
    with pytest.raises(ValueError, match="a batch needs the transformers model"):
        cost.step_cost(Context(tiny_llama()), [1], batch=2)
    with pytest.raises(ValueError, match="k must be at least 1"):
        cost.round_times(tiny_llama(), tiny_llama(), [1], k=0)


def test_the_timer_waits_for_the_device_on_which_the_model_is():
    gpu = torch.device("cuda", 0)
    model = types.SimpleNamespace(device=gpu)
    for given in (model, types.SimpleNamespace(model=model)):
        assert cost.timer_for(given) == timing.WallTimer(gpu)
    for given in (Sim(), tiny_llama(), Context(tiny_llama())):
        assert cost.timer_for(given) == timing.WallTimer(torch.device("cpu"))


@pytest.fixture
def two_seconds(monkeypatch):
    """Every job that the machine's own speeds are measured with takes two seconds, also on a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(timing, "free_memory", lambda device: 1 << 40)
    monkeypatch.setattr(timing, "_median", lambda work, device, seconds: work() or 2.0)


@pytest.mark.parametrize("device, readings", [("cpu", 1), ("cuda", 8)])
def test_the_bandwidth_counts_every_byte_of_every_reading(two_seconds, monkeypatch, device, readings):
    read = []

    class Buffer:
        def __init__(self, size, dtype, device):
            self.bytes = size * dtype.itemsize

        def numel(self):
            return self.bytes // 4

        def element_size(self):
            return 4

        def sum(self):
            read.append(self.bytes)

    monkeypatch.setattr(torch, "ones", Buffer)
    assert cost.bandwidth(device, size=1000) == readings * 1000 / 2
    assert read == [1000] * readings


@pytest.mark.parametrize("device, size", [("cpu", 2048), ("cuda", 8192)])
def test_the_peak_counts_two_operations_for_each_pair_of_numbers(two_seconds, monkeypatch, device, size):
    class Matrix:
        def __init__(self, rows, columns, dtype, device):
            self.rows, self.columns = rows, columns

        def __matmul__(self, other):
            assert self.rows == self.columns == other.rows == other.columns == size

    monkeypatch.setattr(torch, "ones", Matrix)
    assert cost.peak_flops(BF16, device) == 2 * size**3 / 2
    with pytest.raises(ValueError, match="seconds must be positive, not -1"):
        cost.peak_flops(BF16, device, seconds=-1)


def test_a_wall_timer_waits_for_the_device_on_both_sides(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("wait"))
    ticks = iter((1.0, 3.5))

    def clock():
        events.append("clock")
        return next(ticks)

    assert timing.WallTimer(torch.device("cuda", 0), clock)(lambda: events.append("work")) == 2.5
    assert events == ["wait", "clock", "work", "wait", "clock"]


def test_an_event_timer_marks_before_and_behind_and_then_waits(monkeypatch):
    events = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            events.append(stream)

        def elapsed_time(self, other):
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "mark")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("wait"))
    assert timing.EventTimer(torch.device("cuda", 0))(lambda: events.append("work")) == 0.25
    assert events == ["wait", "mark", "work", "mark", "wait"]


def call_clock():
    """A timer for `step_parts`: what it takes to begin is timed first, twenty times; then each call takes 1 ms more."""
    calls = []

    def timer(work):
        calls.append(work())
        return 0.001 if len(calls) <= 20 else 0.002

    return timer


def test_parts_add_up_to_the_step_and_a_lean_context_has_them_too():
    for model in (tiny_llama(), LeanContext(Lean(tiny_llama()))):
        found = step_parts(model, [1, 2, 3], 2, timer=call_clock())
        assert list(found) == ["weights", "attention", "everything else"]
        # Two layers of seven matrices (four when fused) and the output matrix, a look at the cache in each layer.
        assert found["weights"] == pytest.approx(0.001 * (9 if isinstance(model, LeanContext) else 15))
        assert found["attention"] == pytest.approx(0.002)
        assert found["everything else"] == 0  # the whole step took 2 ms, less than these


# --- exercises ----------------------------------------------------------------------------------------------


def timed(device, prompt, n, trials, clock, wait, *, sync=True, cut=True, skip=1, of=statistics.median, once=True):
    device.feed(prompt)
    seconds = []
    for _ in range(trials + skip):
        if not once:
            device.rollback(0)
            device.feed(prompt)
        wait()
        start = clock()
        device.feed([0] * n)
        if sync:
            wait()
        seconds.append(clock() - start)
        if cut:
            device.rollback(len(prompt))
    return of(seconds[skip:])


def variant(**how):
    return lambda *args: timed(*args, **how)


def one_by_one(device, prompt, n, trials, clock, wait):
    device.feed(prompt)
    seconds = []
    for _ in range(trials + 1):
        start = clock()
        for _ in range(n):
            device.feed([0])
        wait()
        seconds.append(clock() - start)
        device.rollback(len(prompt))
    return statistics.median(seconds[1:])


def not_at_the_end(device, prompt, n, trials, clock, wait):
    found = timed(device, prompt, n, trials, clock, wait)
    device.feed([0] * n)
    return found


def cut_before(device, prompt, n, trials, clock, wait):
    device.feed(prompt)
    seconds = []
    for _ in range(trials + 1):
        device.rollback(len(prompt))
        wait()
        start = clock()
        device.feed([0] * n)
        wait()
        seconds.append(clock() - start)
    return statistics.median(seconds[1:])


def raises_todo(*_):
    raise Todo


RIGHT = [
    (checks.intensity, checks.intensity_answer), (checks.intensity, lambda w, n, b: 2 * n / b),
    (checks.ceiling, checks.ceiling_answer), (checks.ceiling, lambda w, e, t, b, s: s / ((w - e * (not t)) * b)),
    (checks.time_verify, checks.time_verify_answer), (checks.time_verify, variant()),
    (checks.time_verify, variant(skip=3)),
]  # fmt: skip
WRONG = {
    "intensity, one operation": (checks.intensity, lambda w, n, b: n / b, "two operations"),
    "intensity, upside down": (checks.intensity, lambda w, n, b: b / (2 * n), "bytes per FLOP"),
    "intensity, n forgotten": (checks.intensity, lambda w, n, b: 2 / b, "every one of the tokens"),
    "intensity, n reads": (checks.intensity, lambda w, n, b: 2 * w * n / (w * n * b), "every one of the tokens"),
    "intensity, times bytes": (checks.intensity, lambda w, n, b: 2 * n * b, "divide by the bytes"),
    "intensity, FLOPs only": (checks.intensity, lambda w, n, b: 2 * n * w, "divide the FLOPs"),
    "intensity, of one weight": (checks.intensity, lambda w, n, b: 2 * n / (w * b), "of all weights"),
    "intensity, whole numbers": (checks.intensity, lambda w, n, b: 2 * n // (b + 1), "2 per weight and token"),
    "intensity, nothing": (checks.intensity, lambda w, n, b: None, "return"),
    "intensity, a crash": (checks.intensity, lambda w, n: 1, "raised TypeError"),
    "ceiling, all weights": (checks.ceiling, lambda w, e, t, b, s: s / (w * b), "looked up"),
    "ceiling, never the embedding": (checks.ceiling, lambda w, e, t, b, s: s / ((w - e) * b), "tied embedding is also"),
    "ceiling, the wrong way": (checks.ceiling, lambda w, e, t, b, s: s / ((w - e * t) * b), "looked up"),
    "ceiling, seconds": (checks.ceiling, lambda w, e, t, b, s: (w - e * (not t)) * b / s, "seconds per token"),
    "ceiling, weights as bytes": (checks.ceiling, lambda w, e, t, b, s: s / (w - e * (not t)), "to be bytes"),
    "ceiling, bits": (checks.ceiling, lambda w, e, t, b, s: s / ((w - e * (not t)) * b * 8), "not in bits"),
    "ceiling, embedding twice": (checks.ceiling, lambda w, e, t, b, s: s / ((w + e) * b), "one of the weights"),
    "ceiling, a word": (checks.ceiling, lambda w, e, t, b, s: "fast", "one number"),
    "time, no wait": (checks.time_verify, variant(sync=False), "still at work"),
    "time, no cut": (checks.time_verify, variant(cut=False), "cut it back"),
    "time, cut before instead": (checks.time_verify, cut_before, "after the last pass too"),
    "time, mean": (checks.time_verify, variant(of=statistics.mean), "a mean is taken"),
    "time, first counted": (checks.time_verify, variant(skip=0), "the first pass is counted"),
    "time, first counted in all": (
        checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, n, t + 1, c, w, skip=0), "the first pass is counted",
    ),
    "time, quickest": (checks.time_verify, variant(of=min), "the quickest"),
    "time, sum": (checks.time_verify, variant(of=sum), "added up"),
    "time, milliseconds": (checks.time_verify, variant(of=lambda s: 1000 * statistics.median(s)), "not milliseconds"),
    "time, per token": (
        checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, n, t, c, w) / n, "not the time for each token",
    ),
    "time, prompt every time": (checks.time_verify, variant(once=False), "more than once"),
    "time, one by one": (checks.time_verify, one_by_one, "one by one"),
    "time, n ignored": (checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, 3, t, c, w), "a pass was over 3"),
    "time, no prompt": (checks.time_verify, lambda d, p, n, t, c, w: timed(d, [0], n, t, c, w), "the whole prompt"),
    "time, left behind": (checks.time_verify, not_at_the_end, "cut it back|passes"),
    "time, too few": (
        checks.time_verify, lambda d, p, n, t, c, w: timed(d, p, n, 1, c, w), "only 2 passes|there were|passes",
    ),
    "time, nothing measured": (checks.time_verify, lambda *_: 0.02, "first thing to feed"),
}  # fmt: skip


@pytest.mark.parametrize("check, fn", RIGHT)
def test_right_answers_pass(check, fn):
    check(fn)


@pytest.mark.parametrize("check, fn, fragment", WRONG.values(), ids=WRONG)
def test_wrong_answers_are_told_what_is_wrong(check, fn, fragment):
    with pytest.raises(AssertionError, match=f"(?s){fragment}") as caught:
        check(fn)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("check", [checks.intensity, checks.ceiling, checks.time_verify])
def test_a_stub_reaches_attempt_as_not_done(check):
    with pytest.raises(Todo):
        check(raises_todo)


# --- records and the command line ---------------------------------------------------------------------------


def measured(name="here", **more):
    models = {"target": tiny_llama(), "draft": tiny_llama(hidden=16, layers=1)}
    labels = {"target": "a tiny Llama", "draft": "a tinier one"}
    machine = records.machine(torch.device("cpu"), name)
    return verify_cost.measure(models, labels, "tiny", machine, context=20, trials=2, **more)


@pytest.fixture
def quick(monkeypatch):
    """This machine's own speeds, without measuring them."""
    monkeypatch.setattr(cost, "bandwidth", lambda device: 10e9)
    monkeypatch.setattr(cost, "peak_flops", lambda dtype, device: 1e12)


def test_a_record_says_all_that_is_needed_to_compare(quick, tmp_path):
    record = measured()
    path = records.write(record, tmp_path)
    assert path.name == "verify-cost-here-tiny-float32-context-20.json"
    assert records.read(path, "verify-cost") == json.loads(json.dumps(record))
    at = record["machine"]
    assert at["host"] == "here" and at["torch"] == torch.__version__ and at["threads"] == 1
    assert {"cpu", "gpu", "transformers", "load_average", "python"} <= at.keys()
    assert (record["dtype"], record["context"], record["device"]) == ("float32", 20, "cpu")
    rows = record["models"]["target"]["verify"]
    assert [row["n"] for row in rows] == list(cost.SIZES)
    assert all(row["low"] <= row["median"] <= row["high"] and row["passes"] == 2 for row in rows)
    assert set(record["models"]["draft"]["parts"]) == {"weights", "attention", "everything else"}
    assert {(row["sequences"], row["n"]) for row in record["batch"]} >= {(1, 64), (64, 1), (8, 8)}
    text = "\n".join(verify_cost.lines(record))
    assert "here:" in text and "memory is read at 10.0 GB/s" in text and "v(7) =" in text and "c = " in text


def test_the_speed_that_a_step_reaches_is_told_of_each_model(quick):
    record = measured(batch=False)
    for i, model in enumerate(record["models"].values(), 1):
        model["bytes_per_pass"] *= 10**5 * i  # tiny models would reach 0.0 GB/s
    lines = list(verify_cost.lines(record))
    for model in record["models"].values():
        at = next(i for i, line in enumerate(lines) if model["label"] in line)
        reached = model["bytes_per_pass"] / model["verify"][0]["median"]
        assert (
            f"reads {model['bytes_per_pass'] / 1e9:.3f} GB and thus reaches {reached / 1e9:.1f} GB/s" in lines[at + 1]
        )


def test_c_is_the_draft_over_the_target_and_its_bytes_hold_the_caches(quick, monkeypatch):
    monkeypatch.setattr(cost, "round_times", lambda *_, **__: (Timing((0.4,)), Timing((0.1,))))
    c = measured(batch=False)["c"]
    assert c["measured"] == pytest.approx(0.25)
    target, draft = tiny_llama(), tiny_llama(hidden=16, layers=1)
    # Two vectors of a cache, two heads, fp32; a tiny Llama's four heads share the width.
    caches = 20 * 2 * 2 * 4 * 1 * 4, 20 * 2 * 2 * 4 * 2 * 8
    assert (cost.cache_bytes(draft, 20), cost.cache_bytes(target, 20)) == caches
    bytes_of = [cost.step_bytes(m) + of_cache for m, of_cache in zip((draft, target), caches, strict=True)]
    assert c["from_bytes"] == pytest.approx(bytes_of[0] / bytes_of[1])


def test_what_was_measured_in_another_way_is_another_file(tmp_path):
    record = {"kind": "verify-cost", "what": "smol", "dtype": "bfloat16", "machine": {"host": "a"}}
    names = [
        records.write(record | more, tmp_path).name
        for more in (
            {"device": "cpu", "context": 512},
            {"device": "cuda", "context": 512},
            {"device": "cpu", "context": 8192},
            {"device": "cuda", "context": 8192},
        )
    ]
    assert names == [
        f"verify-cost-a-smol-bfloat16{more}.json" for more in ("", "-cuda", "-context-8192", "-cuda-context-8192")
    ]
    for path in records.RESULTS.glob("verify-cost-*.json"):
        assert records.write(records.read(path, "verify-cost"), tmp_path).name == path.name


def test_a_gpu_is_named_and_so_is_its_memory(monkeypatch):
    for integrated in (0, 1):
        properties = types.SimpleNamespace(name="NVIDIA GB10", is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, p=properties: p)
        found = records.machine(torch.device("cuda", 0), "spark")
        assert (found["host"], found["gpu"]) == ("spark", "NVIDIA GB10")
        assert found["unified_memory"] is bool(integrated)
    found = records.machine(torch.device("cpu"))
    assert found["gpu"] is None and found["unified_memory"] is None


def test_both_clocks_of_a_gpu_time_the_same_passes(monkeypatch):
    events = iter((9.0, 0.3, 0.1, 0.2))  # the first is not counted
    monkeypatch.setattr(cost, "EventTimer", lambda device: lambda work: work() or next(events))
    monkeypatch.setattr(cost, "WallTimer", lambda device: lambda work: work() or 0.4)
    assert verify_cost._timers(tiny_llama(), [1, 2], 3) == {"wall": 0.4, "events": 0.2, "events_over_wall": 0.5}
    assert next(events, None) is None


@pytest.mark.parametrize("ratio, apart", [(0.96, False), (1.04, False), (0.94, True), (1.06, True)])
def test_clocks_that_differ_are_told_of(quick, ratio, apart):
    record = measured(batch=False) | {"timers": {"wall": 1.0, "events": ratio, "events_over_wall": ratio}}
    last = list(verify_cost.lines(record))[-1]
    assert f"clock says {ratio:.3f} of the wall's" in last and ("more than 5 % apart" in last) == apart


def test_short_memory_costs_the_grid_and_not_the_record(quick, monkeypatch, capsys):
    monkeypatch.setattr(cost, "free_memory", lambda device: 10)
    record = measured()
    assert "batch" not in record and "c" in record
    assert capsys.readouterr().err.startswith("without the grid of batches: 127 caches of 20 tokens need")


def test_a_record_is_replaced_whole_or_not_at_all(quick, tmp_path, monkeypatch):
    record = measured(batch=False)
    path = records.write(record, tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr("pathlib.Path.replace", lambda self, to: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(ValueError, match="No space left"):
        records.write(record | {"trials": 99}, tmp_path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "sweep"}'])
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path, text):
    path = tmp_path / "verify-cost-x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"verify-cost-x\.json"):
        records.read(path, "verify-cost")
    with pytest.raises(ValueError, match="absent"):
        records.read(tmp_path / "absent.json", "verify-cost")


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["speclib", *map(str, arguments)])
    monkeypatch.delenv("SPECLIB_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_verify_cost_from_the_command_line(quick, tmp_path, monkeypatch, capsys):
    small_shape(monkeypatch)
    asked = ["verify-cost", "--shape", "both", "--context", 20, "--trials", 1, "--device", "cpu", "--out", tmp_path]
    assert run_main(monkeypatch, *asked, "--name", "one") == 0
    out, err = capsys.readouterr()
    path = out.splitlines()[-1]
    assert "c = " in out and "passes" in err  # the bar
    assert run_main(monkeypatch, *asked, "--name", "two") == 0
    capsys.readouterr()
    both = [str(p) for p in sorted(tmp_path.glob("*.json"))]
    assert path in both and len(both) == 2
    assert [r["machine"]["host"] for r in records.read_all("verify-cost", tmp_path)] == ["one", "two"]
    flags = [part for p in both for part in ("--compare", p)]
    assert run_main(monkeypatch, "verify-cost", *flags, "--out", tmp_path) == 0
    page = (tmp_path / "verify-cost-compare.html").read_text(encoding="utf-8")
    assert "one, both" in page and "two, both" in page
    assert run_main(monkeypatch, *asked, "--name", "one", "--compile") == 0
    record = records.read(capsys.readouterr().out.splitlines()[-1], "verify-cost")
    assert record["what"] == "both-compiled" and record["c"] and "batch" not in record


def test_a_pair_from_the_command_line(quick, tmp_path, monkeypatch, capsys):
    target, draft = save(tmp_path / "target"), save(tmp_path / "draft", hidden=16, layers=1)
    out = tmp_path / "out"
    asked = ["verify-cost", "--context", 20, "--trials", 1, "--device", "cpu", "--name", "one", "--out", out]
    busy, load = [], pairs.load
    monkeypatch.setattr(records.os, "getloadavg", lambda: (7.0 if busy else 0.5, 0, 0))
    monkeypatch.setattr(pairs, "load", lambda *a, **more: busy.append("loading") or load(*a, **more))
    assert run_main(monkeypatch, *asked, "--pair", f"{target},{draft}") == 0
    path = capsys.readouterr().out.splitlines()[-1]
    record = records.read(path, "verify-cost")
    assert [m["label"] for m in record["models"].values()] == [target, draft]
    assert record["c"]["measured"] > 0 and record["batch"]
    assert record["machine"]["load_average"] == 0.5  # of others, not of this run
    preset = pairs.Preset(pairs.Folder(tmp_path / "target", "alone"), pairs.Absent("a draft", "it is not made yet"))
    monkeypatch.setitem(pairs.PRESETS, "lonely", preset)
    assert run_main(monkeypatch, *asked, "--pair", "lonely") == 0
    said, err = capsys.readouterr()
    assert "without a draft: it is not made yet" in err
    record = records.read(said.splitlines()[-1], "verify-cost")
    assert list(record["models"]) == ["target"] and "c" not in record and record["what"] == "lonely"


@pytest.mark.parametrize("more, word", [
    (["--context", "500"], "a prompt of 500 tokens and 64 more do not fit into the model's 512 positions"),
    (["--out", "/dev/null/x"], "/dev/null/x cannot be written to"),
])  # fmt: skip
def test_what_cannot_come_to_a_record_is_refused_before_a_model_is_made(tmp_path, monkeypatch, capsys, more, word):
    monkeypatch.setattr(weights, "load_model", lambda *_: pytest.fail("a model was loaded"))
    monkeypatch.setattr(shapes, "build", lambda *_: pytest.fail("a model was built"))
    kind, values = shapes.SHAPES["smol"]
    monkeypatch.setitem(shapes.SHAPES, "smol", (kind, values | {"max_position_embeddings": 512}))
    pair = f"{save(tmp_path / 'target')},{save(tmp_path / 'draft')}"
    for what in (["--pair", pair], ["--shape", "smol"]):
        asked = ["verify-cost", *what, "--device", "cpu", "--context", 20, "--out", tmp_path / "out", *more]
        assert run_main(monkeypatch, *asked) == 2
        out, err = capsys.readouterr()
        assert not out and word in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [
    '{"kind": "verify-cost"}', '{"kind": "verify-cost", "models": []}',
    '{"kind": "verify-cost", "models": {"target": {"verify": [{"n": 2, "median": 1}]}}}',
])  # fmt: skip
def test_half_a_record_is_not_compared(tmp_path, monkeypatch, capsys, text):
    path = tmp_path / "half.json"
    path.write_text(text)
    assert run_main(monkeypatch, "verify-cost", "--compare", path, "--out", tmp_path) == 2
    err = capsys.readouterr().err
    assert "half.json lacks what is compared" in err and err.count("\n") == 1


def test_a_comparison_that_cannot_be_written_is_one_line(monkeypatch, capsys):
    path = records.RESULTS / "verify-cost-zen5-smol-float32.json"
    assert run_main(monkeypatch, "verify-cost", "--compare", path, "--out", "/dev/null/x") == 2
    err = capsys.readouterr().err
    assert "/dev/null/x cannot be written to" in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments, word", [
    (["--shape", "nope"], "there is no shape 'nope'"), (["--trials", "0"], "trials must be"),
    (["--context", "0"], "context must be"), (["--device", "cuda:7"], "there is no cuda:7"),
    (["--device", "abacus"], "there is no device 'abacus'"), (["--compare", "absent.json"], "absent.json"),
    (["--shape", "smol", "--context", "9000"], "do not fit"), (["--device", "meta"], "there is no meta"),
])  # fmt: skip
def test_bad_options_are_one_line_and_status_2(monkeypatch, capsys, tmp_path, arguments, word):
    small_shape(monkeypatch)
    assert run_main(monkeypatch, "verify-cost", *arguments, "--out", tmp_path) == 2
    out, err = capsys.readouterr()
    assert not out and word in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_recorded_runs_are_records():
    found = records.read_all("verify-cost")
    assert found
    for record in found:
        assert record["models"]["target"]["verify"][0]["n"] == 1
        assert record["machine"]["threads"] and record["machine"]["load_average"] is not None
