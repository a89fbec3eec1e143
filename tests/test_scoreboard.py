"""SCOREBOARD.md is what the records give: rows of one machine only, against plain of their own run if it is there."""

from __future__ import annotations

import itertools

import pytest

from speclib import records, scoreboard
from speclib.bench_speedup import paired, speedup
from speclib.scoreboard import EMPTY, Entry, gain, table

KINDS = ("chat", "chat", "code", "code")
LOAD = {"n": 4, "max_tokens": 64, "ignore_eos": True, "temperature": 0.0}


def level(concurrency, seconds, tokens=(60, 60, 60, 60), ttft=0.1, errors=None):
    return {
        "concurrency": concurrency,
        "tokens_per_second": sum(tokens) / sum(seconds),
        "ttft": {"p50": ttft, "p95": ttft, "p99": ttft, "mean": ttft},
        "errors": errors or {},
        "requests": {
            "prompt": [f"{kind}-{i}" for i, kind in enumerate(KINDS)],
            "kind": list(KINDS),
            "seconds": list(seconds),
            "tokens": list(tokens),
        },
    }


def row(target, levels, drafter="model", k=4, change=""):
    return {"target": target, "drafter": drafter, "k": k, "change": change, "levels": levels}


def plain(seconds=(2.0, 4.0, 2.0, 4.0)):
    return row("plain", [level(1, seconds), level(4, seconds)], "none", None)


def record(rows, day=1, host="spark", model="llama", dtype="bf16", **more):
    return {
        "kind": "bench",
        "when": f"2026-11-{day:02}T10:00:00+00:00",
        "commit": "abc1234",
        "what": f"{model} {rows[0]['target']}",
        "machine": {"host": host},
        "dtype": dtype,
        "model": model,
        "prompts": "short.jsonl",
        "load": LOAD,
        "complete": True,
        "rows": rows,
    } | more


FAST = row("fast", [level(1, (1.0, 2.0, 0.5, 1.0)), level(4, (1.0, 2.0, 1.0, 2.0))], change="a draft")


def rows_of(text):
    """The cells of every row of the tables of rows, not of those by kind."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    tables = [list(g) for _, g in itertools.groupby(lines, lambda line: line.count("|"))]
    return [[c.strip() for c in line.strip("|").split(" | ")] for t in tables if "commit" in t[0] for line in t[2:]]


def test_the_file_in_the_repository_is_what_its_records_give():
    assert scoreboard.PATH.read_text(encoding="utf-8") == table(records.read_all("bench"))


def test_without_a_record_it_says_how_to_get_the_first_row():
    text = table([])
    assert text.endswith(EMPTY) and "speclib bench --target" in text and "**Row 0**" in text


def test_plain_is_row_0_and_a_row_is_set_against_plain_of_its_own_run():
    first, second = rows_of(table([record([FAST, plain()])]))
    assert first == ["0", "2026-11-01", "abc1234", "plain", "bf16", "none", "20.0", "20.0", "100 ms", "1", "–"]
    assert second[:9] == ["1", "2026-11-01", "abc1234", "fast", "bf16", "model, 4", "53.3", "40.0", "100 ms"]
    # 12 s against 4.5 s for as many tokens; each prompt 2 or 4 times as fast.
    assert second[9].startswith("2.67 × (2.00–") and second[10] == "a draft"


def test_by_kind_of_prompt():
    text = table([record([FAST, plain()])])
    assert "| target | chat | code |" in text
    assert "| plain | 20.0 | 20.0 |" in text
    assert "| fast | 40.0; 2.00 × (2.00–2.00) | 80.0; 4.00 × (4.00–4.00) |" in text


def test_one_prompt_has_no_interval():
    one = {**level(1, (1.0, 2.0, 0.5, 1.0))}
    one["requests"] = {name: column[:1] for name, column in one["requests"].items()}
    shown = rows_of(table([record([row("fast", [one]), row("plain", [level(1, (2.0,) * 4)], "none", None)])]))
    assert shown[1][8] == "2.00 ×"


def test_a_row_of_another_run_is_set_against_row_0_and_marked():
    alone = row("vllm", [level(1, (1.0, 2.0, 1.0, 2.0))], "eagle", 3)
    old, new = record([FAST, plain((9.0,) * 4)], 1), record([row("fast-2", FAST["levels"]), plain()], 2)
    shown = rows_of(table([new, record([alone], 3), old]))
    assert [r[3] for r in shown] == ["plain", "fast", "fast-2", "vllm"]
    assert shown[0][1] == "2026-11-02"  # the newest plain
    assert shown[1][9].startswith("8.00 ×")  # 36 s against 4.5 s, in its own run
    assert shown[3][9] == "~2.00 × (2.00–2.00)" and shown[3][7] == "–"


@pytest.mark.parametrize("other", [{"load": {**LOAD, "max_tokens": 8}}, {"prompts": "other.jsonl"}])
def test_what_was_asked_differently_is_not_compared(other):
    alone = record([row("vllm", [level(1, (1.0, 2.0, 1.0, 2.0))])], 2, **other)
    assert rows_of(table([record([plain()]), alone]))[1][9] == "–"
    more = record([row("vllm", [level(1, (1.0, 2.0, 1.0, 2.0))])], 2, load={**LOAD, "n": 200})
    assert rows_of(table([record([plain()]), more]))[1][9].startswith("~2.00")


@pytest.mark.parametrize("other", [{"host": "laptop"}, {"model": "qwen"}, {"dtype": "fp8"}])
def test_machines_models_and_precisions_have_tables_of_their_own(other):
    text = table([record([plain()]), record([row("vllm", [level(1, (1.0, 2.0, 1.0, 2.0))])], 2, **other)])
    assert text.count("\n## ") == 2
    lonely = next(r for r in rows_of(text) if r[3] == "vllm")
    assert lonely[9] == "–" and lonely[0] == "1"  # no baseline there, so no row 0 and no speedup


def test_only_concurrency_1_tells_a_speedup():
    many = row("fast", [level(4, (1.0, 2.0, 1.0, 2.0))])
    found = record([many, plain()])
    entries = [Entry(found, r) for r in found["rows"]]
    assert gain(entries[0], entries) is None and gain(entries[1], entries) is None


def test_failures_and_interruptions_are_told():
    failed = row("fast", [level(1, (1.0, 2.0, 1.0, 2.0), errors={"cut off": 2, "HTTP 500": 1})], change="x")
    assert rows_of(table([record([failed], complete=False)]))[0][-1] == "x; 3 requests failed; not complete"


def test_what_nobody_counted_is_a_dash():
    silent = level(1, (1.0,) * 4) | {"tokens_per_second": None, "ttft": None}
    silent["requests"] |= {"seconds": [0.0] * 4, "tokens": [0] * 4}
    text = table([record([row("hosted", [silent], None, None), plain()], commit="")])
    (shown,) = (r for r in rows_of(text) if r[3] == "hosted")
    assert shown[2] == shown[6] == shown[8] == shown[9] == "–" and shown[5] == "not told"
    assert "| hosted | – | – |" in text


def test_text_stays_in_its_cell():
    wild = row("a|b\n| c", FAST["levels"], change="<b>| x |\n\n# y")
    text = table([record([wild])])
    assert "a\\|b \\| c" in text and "&lt;b>\\| x \\| # y" in text
    assert len({line.count(" | ") for line in text.splitlines() if line.startswith("| ") and "2026" in line}) == 1


def test_the_order_of_files_does_not_matter():
    found = [record([FAST, plain()], 1), record([plain()], 2, host="laptop"), record([FAST], 3)]
    assert len({table(order) for order in itertools.permutations(found)}) == 1


def test_the_machine_stands_above_its_table():
    machine = {
        "host": "spark",
        "gpu": "NVIDIA GB10",
        "cpu": "Arm",
        "cores": 20,
        "system": "Linux aarch64",
        "torch": "2.13",
    }
    text = table([record([plain()], machine=machine)])
    assert "NVIDIA GB10, Linux aarch64, PyTorch 2.13." in text
    assert "prompts `short.jsonl`, 4 requests at each concurrency, 64 tokens each (`ignore_eos`)" in text


def test_it_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "SCOREBOARD.md"
    folder = tmp_path / "results"
    records.write(record([FAST, plain()]), folder)
    assert scoreboard.write(folder, path) == path
    before = path.read_text(encoding="utf-8")
    assert before == table([record([FAST, plain()])])
    (folder / "bench-broken.json").write_text("{")
    with pytest.raises(ValueError, match="bench-broken"):
        scoreboard.write(folder, path)
    assert path.read_text(encoding="utf-8") == before
    with pytest.raises(ValueError, match="cannot be written to"):
        scoreboard.write(tmp_path / "empty", tmp_path / "no" / "such" / "place.md")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["SCOREBOARD.md", "results"]


def test_requests_are_paired_by_prompt_and_repeats_added_up():
    plain = [("a", 2.0, 10), ("b", 1.0, 5), ("a", 4.0, 10), ("c", 1.0, 5)]
    fast = [("b", 0.5, 5), ("a", 1.0, 10), ("c", 0.0, 0), ("d", 1.0, 9)]
    assert paired(plain, fast) == ([(6.0, 20), (1.0, 5)], [(1.0, 10), (0.5, 5)])
    assert speedup(*paired(plain, fast)) == pytest.approx((7 / 25) / (1.5 / 15))
    with pytest.raises(ValueError, match="0 and 0 prompts"):
        speedup([], [])
