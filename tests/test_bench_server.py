"""The bench against the course's own server: every count that it tells is the loop's."""

from __future__ import annotations

import pytest
from serving import alone, metrics, script_pair

from speclib import bench, bench_record, serve
from speclib.bench import Load, Prompt, Server
from speclib.scoreboard import table

PROMPTS = [Prompt(f"{kind}-{i}", kind, f"{kind} {i}") for kind in ("chat", "code") for i in range(2)]
LOAD = Load((1, 3), n=4, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pair = script_pair(tmp_path_factory.mktemp("pair"), "the quick brown fox; ", pause=0.001)
    rows = bench.rows_of("fast", "model:4", against_plain=True)
    seen = []
    with serve.background(pair) as running:
        server = Server(running.base_url, running.model)
        run = bench.run(server, rows, PROMPTS, LOAD, on_request=lambda run: seen.append(run.complete))
        counters = metrics(running)
    assert len(seen) == 16 and not any(seen)
    return pair, server, run, counters


def test_tokens_and_drafts_are_those_of_the_loop(measured):
    pair, _, run, _ = measured
    for label, drafter, k in (("fast", "model", 4), ("plain", "none", 4)):
        stats = alone(pair, "chat 0", 24, drafter=drafter, k=k, eos=False, temperature=0.0)
        for traces in run.traces[label].values():
            assert [t.error for t in traces] == [None] * 4
            trace = next(t for t in traces if t.prompt == "chat-0")
            assert trace.tokens == len(stats.tokens) == 24 and trace.tokens_from == "usage"
            assert [c.tokens for c in trace.content] == [len(r.tokens) for r in stats.rounds if r.text]
            assert trace.speculation == {
                "drafted": sum(r.drafted for r in stats.rounds),
                "checked": sum(r.checked for r in stats.rounds),
                "accepted": sum(r.accepted for r in stats.rounds),
                "rounds": len(stats.rounds),
            }


def test_speculation_is_told_and_plain_has_none(measured):
    _, _, run, counters = measured
    fast, plain = (run.summaries()[label][1]["acceptance"] for label in ("fast", "plain"))
    assert 0 < fast["alpha_hat"] < 1 and fast["accepted_length"] > 1.5 and fast["drafted"] > fast["accepted"]
    assert plain["accepted_length"] == 1.0 and plain["alpha_hat"] is None and plain["drafted"] == 0
    # Two rows, two concurrencies, four requests, and the warm-ups: 2 at concurrency 1, 2 + 2 at 3, 8 tokens each.
    assert counters["speclib:generation_tokens_total"] == 16 * 24 + 6 * 8


def test_figures_hang_together(measured):
    _, _, run, _ = measured
    for of in run.summaries().values():
        for s in of.values():
            assert s["tokens"] == 96 and s["requests"] == 4 and not s["errors"]
            assert s["seconds_per_token"] > 0 and 0 < s["ttft"]["p50"] <= s["ttft"]["p99"]
            assert s["inter_token"]["mean"] == pytest.approx(s["seconds_per_token"])
    assert bench.gain(run, "plain", "fast")[0] > 0


def test_the_record_gives_a_row_0_and_a_row(measured):
    _, server, run, _ = measured
    found = bench_record.record(run, server, LOAD, prompts="short.jsonl", precision="fp32", change="a test")
    text = table([found])
    assert "| fast | fp32 | model, 4 |" in text and "| plain | fp32 | none |" in text and "| a test |" in text
    assert "| target | chat | code |" in text
