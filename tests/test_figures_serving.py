"""F8 shows what was measured, and grows with it."""

from __future__ import annotations

import itertools

import plotly.graph_objects as go
import pytest

from speclib.figures import serving_board
from speclib.figures.serving import by_concurrency
from speclib.figures.serving_board import live_load

LEVELS = (1, 4, 16)


def spread(x):
    return {"mean": x, "p50": x, "p95": 1.5 * x, "p99": 2 * x}


def summary(ttft, tpot, speed):
    return {"ttft": spread(ttft), "tpot": spread(tpot), "tokens_per_second": speed}


FOUND = {
    "plain": {1: summary(0.1, 0.04, 25.0), 4: summary(4.0, 0.04, 25.5), 16: summary(20.0, 0.04, 25.2)},
    "fast": {1: summary(0.1, 0.02, 48.0), 4: summary(2.0, 0.02, 49.0)},
}


def sentence(fig):
    return fig["layout"]["annotations"][0]["text"]


def names(fig):
    return [a["text"] for a in fig["layout"]["annotations"]]


def test_latency_and_throughput_are_those_measured():
    fig = by_concurrency(FOUND, LEVELS)
    ttft, tpot, fast_ttft, _, speed, fast_speed = fig["data"]
    assert ttft["y"] == pytest.approx([100, 4000, 20_000]) and tpot["y"] == pytest.approx([40] * 3)
    assert ttft["error_y"]["array"] == pytest.approx([50, 2000, 10_000])
    assert fast_ttft["y"] == [pytest.approx(100), pytest.approx(2000), None]
    assert speed["y"] == [25.0, 25.5, 25.2] and fast_speed["y"] == [48.0, 49.0, None]
    assert (ttft.get("yaxis"), speed["yaxis"]) == (None, "y2")
    assert sentence(fig) == "4 users at once: plain <b>25.5 tokens/s</b>, fast <b>49.0 tokens/s</b>"
    assert "<b>plain, TTFT</b>" in names(fig) and "<b>fast, TTFT</b>" not in names(fig)
    assert len({t["marker"]["symbol"] for t in (ttft, tpot, fast_ttft)}) == 3
    go.Figure(fig)


def test_plain_and_speculative_look_the_same_in_any_order():
    one = by_concurrency({"plain": {}, "b": {}}, LEVELS)["data"]
    other = by_concurrency({"b": {}, "plain": {}}, LEVELS)["data"]
    assert one[0]["marker"] == other[2]["marker"] != one[2]["marker"] == other[0]["marker"]


def test_what_is_not_there_is_said():
    assert sentence(by_concurrency({"plain": {}, "fast": {}}, LEVELS)) == "Nothing is measured yet."
    unknown = {**summary(0.1, 0.1, None), "tpot": None}
    assert "no tokens" in sentence(by_concurrency({"hosted": {1: unknown}}, (1,)))


@pytest.mark.parametrize("rows", [0, 5])
def test_too_many_rows_are_refused(rows):
    with pytest.raises(ValueError, match=f"{rows} rows"):
        by_concurrency({str(i): {} for i in range(rows)}, LEVELS)


def test_names_at_the_ends_do_not_overlap():
    same = {label: {16: summary(1.0, 1.0, 30.0)} for label in ("a", "b", "c", "d")}
    notes = [
        a for a in by_concurrency(same, (1, 16))["layout"]["annotations"] if "TTFT" in a["text"] or "TPOT" in a["text"]
    ]
    places = sorted(a["y"] for a in notes)
    assert len(places) == 8 and min(b - a for a, b in itertools.pairwise(places)) > 0.2


class Run:
    def __init__(self):
        self.found = {"plain": {}}

    def summaries(self):
        return self.found


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_the_live_figure_ends_with_all_that_was_measured(monkeypatch, every):
    boards, updated = [], []

    class Handle:
        def update(self, board):
            updated.append(board)

    def display(board, display_id):
        boards.append(board)
        return Handle()

    monkeypatch.setattr(serving_board, "display", display)
    monkeypatch.setattr(serving_board, "EVERY", every)
    seen = []

    def measure(on_request):
        run = Run()
        for c in (1, 4):
            run.found = {"plain": {**run.found["plain"], c: FOUND["plain"][c]}}
            on_request(run)
            seen.append(boards[0].shown["data"][2]["y"])
        return run

    run = live_load(measure, ["plain"], LEVELS)
    assert isinstance(run, Run) and len(updated) == 1 and updated[0] is boards[0]
    assert updated[0].shown["data"][2]["y"] == [25.0, 25.5, None]
    assert seen[0] == [25.0, None, None] and seen[1] == ([25.0, 25.5, None] if every == 0 else [25.0, None, None])
