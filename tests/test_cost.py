"""What a step costs: counted exactly, timed on simulated clocks, and drawn; no real time is ever asserted."""

from __future__ import annotations

import json
import statistics
import sys
import types

import pytest
import torch
from tiny import tiny_llama

from speclib import cli, cost, records, roofline, shapes, timing, verify_cost
from speclib.checks import cost as checks
from speclib.context import Context
from speclib.cost import Timing
from speclib.exercises import Todo
from speclib.lean import Lean, LeanContext
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
    ("smol", 134_515_008, True),
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
    assert shapes.names("smol") == ("smol",)
    assert shapes.names("qwen-7b, smol") == ("qwen-7b", "smol")
    for bad in ("llama-9b", "smol,smol,smol", "", "smol,"):
        with pytest.raises(ValueError, match=r"there is no shape.*choose llama"):
            shapes.names(bad)


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
    assert [fed for _, fed in device.log] == [100, 1, 8, 1, 8, 1, 8, 1, 8]


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


def test_parts_add_up_to_the_step_and_a_lean_context_has_them_too():
    for model in (tiny_llama(), LeanContext(Lean(tiny_llama()))):
        calls = []

        def timer(work, calls=calls):
            calls.append(work())
            # What it takes to begin is timed first, twenty times; then every call takes a millisecond more.
            return 0.001 if len(calls) <= 20 else 0.002

        found = step_parts(model, [1, 2, 3], 2, timer=timer)
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
    return verify_cost.measure(models, labels, "tiny", context=20, trials=2, name=name, **more)


@pytest.fixture
def quick(monkeypatch):
    """This machine's own speeds, without measuring them."""
    monkeypatch.setattr(cost, "bandwidth", lambda device: 10e9)
    monkeypatch.setattr(cost, "peak_flops", lambda dtype, device: 1e12)


def test_a_record_says_all_that_is_needed_to_compare(quick, tmp_path):
    record = measured()
    path = records.write(record, tmp_path)
    assert path.name == "verify-cost-here-tiny-float32.json"
    assert records.read(path, "verify-cost") == json.loads(json.dumps(record))
    at = record["machine"]
    assert at["host"] == "here" and at["torch"] == torch.__version__ and at["threads"] == 1
    assert {"cpu", "gpu", "transformers", "load_average", "python"} <= at.keys()
    assert (record["dtype"], record["context"], record["device"]) == ("float32", 20, "cpu")
    rows = record["models"]["target"]["verify"]
    assert [row["n"] for row in rows] == list(cost.SIZES)
    assert all(row["low"] <= row["median"] <= row["high"] and row["passes"] == 2 for row in rows)
    assert record["c"]["from_bytes"] < 1
    assert set(record["models"]["draft"]["parts"]) == {"weights", "attention", "everything else"}
    assert {(row["sequences"], row["n"]) for row in record["batch"]} >= {(1, 64), (64, 1), (8, 8)}
    text = "\n".join(verify_cost.lines(record))
    assert "here:" in text and "10.0 GB/s" in text and "v(7) =" in text and "c = " in text


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
