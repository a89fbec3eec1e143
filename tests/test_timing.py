"""What a step costs, timed on simulated clocks; no real time is ever asserted."""

from __future__ import annotations

import types

import pytest
import torch
from tiny import tiny_llama
from transformers import LlamaForCausalLM

from speclib import cost, timing
from speclib.checks import cost as checks
from speclib.context import Context
from speclib.cost import Timing
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
