"""`speclib verify-cost`: what its records say, how they are written and compared, and what is refused."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
from tiny import save, small_shape, tiny_llama

from speclib import cli, cost, pairs, records, shapes, verify_cost, weights
from speclib.cost import Timing


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
