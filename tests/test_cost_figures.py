"""The verify curve grows and can be interrupted, the roofline moves at every control, and both show what is so."""

from __future__ import annotations

import itertools

import plotly.graph_objects as go
import pytest
import torch
from boards import controls

from speclib import cost, shapes
from speclib.checks.cost import Simulated
from speclib.cost import SIZES, Timing
from speclib.figures import cost_live
from speclib.figures.cost import roofline_figure, verify_figure
from speclib.figures.machines import machines_figure

PROMPT = list(range(100))


def timings(ms, passes=5):
    return {n: Timing((ms * (1 + n / 50) / 1000,) * passes) for n in SIZES}


def sentence(fig):
    return fig["layout"]["annotations"][0]["text"]


def facts(name):
    model = shapes.build(name, torch.bfloat16, "meta")
    return cost.step_bytes(model) / 2, cost.cache_bytes(model, 512), cost.flops_per_token(model, 512)


LLAMA = {"target": facts("llama-8b"), "draft": facts("llama-1b")}


def test_the_curve_shows_what_is_measured_and_says_v():
    points = {"target": timings(20), "draft": timings(2)}
    fig = verify_figure(points, {"target": [0.015] * 7}, 5)
    assert fig["data"][1]["y"] == pytest.approx([20 * (1 + n / 50) for n in SIZES])
    assert fig["data"][0]["y"] == pytest.approx([15] * 7)
    assert fig["data"][2]["y"] == [None] * 7
    assert sentence(fig).startswith(f"<b>v(7) = {1.16 / 1.02:.2f}</b>") and "passes" not in sentence(fig)
    assert [a["text"] for a in fig["layout"]["annotations"][1:]].count("<b>draft</b>") == 1
    go.Figure(fig)


def test_a_point_is_hollow_until_all_its_passes_are_there_and_absent_before():
    points = {"target": {1: Timing((0.02,) * 3), 2: Timing((0.02,) * 5)}}
    fig = verify_figure(points, {}, 5)
    assert fig["data"][1]["y"] == [20, 20] + [None] * 5
    assert fig["data"][1]["marker"]["symbol"][:2] == ["circle-open", "circle"]
    assert sentence(fig) == "8 of 35 passes measured"
    assert sentence(verify_figure({"target": {}}, {}, 5)) == "Nothing is measured yet."


def test_whiskers_are_the_quartiles():
    fig = verify_figure({"target": {1: Timing((0.010, 0.020, 0.030, 0.040, 0.050))}}, {}, 5)
    assert fig["data"][1]["error_y"]["array"][0] == pytest.approx(10)
    assert fig["data"][1]["error_y"]["arrayminus"][0] == pytest.approx(10)


def test_labels_at_the_ends_do_not_overlap():
    points = {"target": timings(20), "draft": timings(20)}
    fig = verify_figure(points, {"target": [0.045] * 7, "draft": [0.0451] * 7}, 5)
    places = sorted(a["y"] for a in fig["layout"]["annotations"][1:])
    assert min(b - a for a, b in itertools.pairwise(places)) > 2


def test_the_roofline_figure_states_ceiling_ridge_and_c():
    fig = roofline_figure(LLAMA, cost.SPARK.bandwidth, cost.SPARK.peak)
    assert "<b>18.1</b> tokens/s" in sentence(fig)
    assert "<b>1.00 ×</b>" in sentence(fig) and "c from bytes: <b>0.165</b>" in sentence(fig)
    ridge = fig["data"][4]["x"][0]
    assert ridge == pytest.approx(452, abs=1) and fig["data"][0]["x"][1] == ridge
    assert "458 FLOP per byte" in fig["layout"]["annotations"][1]["text"]
    half = roofline_figure(LLAMA, cost.SPARK.bandwidth, cost.SPARK.peak, bits=8)
    assert half["data"][4]["x"][0] == pytest.approx(ridge / 2, rel=0.01)
    many = roofline_figure(LLAMA, cost.SPARK.bandwidth, cost.SPARK.peak, batch=16)
    assert ridge / 16 < many["data"][4]["x"][0] < ridge / 14  # the caches are read as well
    go.Figure(fig)


@pytest.mark.parametrize("bandwidth, peak, off", [(1e9, 1e15, True), (1e13, 1e10, True), (273e9, 125e12, False)])
def test_a_ridge_off_the_axis_says_so(bandwidth, peak, off):
    label = roofline_figure(LLAMA, bandwidth, peak)["layout"]["annotations"][1]["text"]
    assert ("off the axis" in label) == off


def test_machines_side_by_side():
    row = {"machine": {"host": "a <b>"}, "what": "smol", "dtype": "bfloat16"}
    row["models"] = {"target": {"verify": [{"n": 1, "median": 0.02}, {"n": 8, "median": 0.03}]}}
    fig = machines_figure([row] * 3)
    assert fig["data"][0]["y"] == pytest.approx([1, 1.5])
    assert "&lt;b&gt;" in fig["data"][0]["name"] and "20.0 ms" in fig["data"][0]["name"]
    assert len({t["line"]["dash"] for t in fig["data"]}) == 3
    go.Figure(fig)


# --- live ---------------------------------------------------------------------------------------------------


class Sim(Simulated):
    def __init__(self, stop_at=None):
        super().__init__({})
        self.stop_at = stop_at

    def feed(self, ids, rows=None):
        if len(self.log) == self.stop_at:
            self.tokens.clear()
            raise KeyboardInterrupt
        super().feed(ids, rows)

    def timer(self, work):
        self.wait()
        start = self.now
        work()
        self.wait()
        return self.now - start


@pytest.fixture
def drawn(monkeypatch):
    """Every state of the live figure, as numbers of drawn points, and how often it was shown."""
    seen, redraw = [], cost_live.Board.redraw

    def watched(self):
        redraw(self)
        seen.append(sum(y is not None for y in self.shown["data"][1]["y"]))

    class Handle:
        def update(self, board):
            seen.append("updated")

    monkeypatch.setattr(cost_live.Board, "redraw", watched)
    monkeypatch.setattr(cost_live, "display", lambda board, display_id: Handle())
    return seen


def test_points_appear_as_soon_as_their_median_is_known(drawn):
    sim = Sim()
    found = cost_live.live_curve({"target": sim}, PROMPT, trials=4, timer=sim.timer)
    assert drawn == [1, 2, 3, 4, 5, 6, 7] + [7] * 7 + ["updated"]
    assert {len(t.seconds) for t in found["target"].values()} == {4}


def test_an_interruption_keeps_what_is_measured(drawn, capsys):
    sim = Sim(stop_at=1 + 7 + 7 + 3)  # the prompt, uncounted passes, one of each, three more
    found = cost_live.live_curve({"target": sim}, PROMPT, trials=4, timer=sim.timer)
    assert [len(t.seconds) for t in found["target"].values()] == [2, 2, 2, 1, 1, 1, 1]
    assert drawn == [7, "updated"]
    assert capsys.readouterr().out.startswith("Interrupted:")


def test_an_interruption_before_every_size_was_there_goes_on(drawn):
    sim = Sim(stop_at=10)
    with pytest.raises(KeyboardInterrupt):
        cost_live.live_curve({"target": sim}, PROMPT, trials=4, timer=sim.timer)


def board():
    here = cost.Machine("this machine", 17.3e9, 0.41e12, "measured")
    pairs = {"both": LLAMA, "alone": {"target": facts("smol")}}
    measured = {"alone": {"target": {1: 0.02, 8: 0.03}}}
    return cost_live.roofline_board(pairs, [cost.SPARK, cost.H200, here], measured)


def test_every_control_moves_the_roofline_in_place():
    shown = board()
    traces, labels = [id(t) for t in shown.figure.data], controls(shown)
    assert set(labels) == {"models", "machine", "GB/s", "TFLOP/s", "weights", "sequences"}
    for name in ("GB/s", "TFLOP/s", "weights", "sequences"):
        widget, seen = labels[name], []
        start = widget.value
        for value in (widget.options[0], widget.options[-1]):
            widget.value = value[1] if isinstance(value, tuple) else value
            seen.append(tuple(shown.figure.data[0].y) + tuple(shown.figure.data[0].x))
            assert shown.error.value == ""
        assert seen[0] != seen[1], name
        widget.value = start
    assert [id(t) for t in shown.figure.data] == traces


def test_a_preset_sets_both_sliders_exactly():
    shown = board()
    labels = controls(shown)
    assert (labels["GB/s"].value, labels["TFLOP/s"].value) == (273, 125)
    for name, values in (("H200", (4800, 989)), ("this machine", (17.3, 0.41)), ("Spark", (273, 125))):
        labels["machine"].value = name
        assert (labels["GB/s"].value, labels["TFLOP/s"].value) == values


def test_measured_points_stand_where_they_were_measured_and_a_pair_may_lack_a_draft():
    shown = board()
    labels = controls(shown)
    labels["models"].value = "alone"
    assert shown.figure.data[2].y == (None,) and "c from bytes" not in sentence(shown.shown)
    assert shown.figure.data[1].y == (None,)
    labels["machine"].value = "this machine"
    assert shown.figure.data[1].y == (20, 30)
    labels["sequences"].value = 2
    assert shown.figure.data[1].y == (None,)
    labels["models"].value = "both"
    assert len(shown.figure.data[2].y) == 3
