"""The verify curve grows and can be interrupted, the roofline moves at every control, and both show what is so."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import nbformat
import plotly.graph_objects as go
import pytest
import torch
from boards import accepted, controls
from tiny import tiny_llama

from speclib import cost, records, shapes
from speclib.checks.cost import Simulated
from speclib.context import Context
from speclib.cost import SIZES, Timing
from speclib.figures import cost_live
from speclib.figures.cost import roofline_figure, verify_figure
from speclib.figures.machines import machines_figure
from speclib.verify_cost import medians

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
    row = {"machine": {"host": "a <b>"}, "what": "smol", "dtype": "bfloat16", "device": "cuda", "context": 512}
    row["models"] = {"target": {"verify": [{"n": 1, "median": 0.02}, {"n": 8, "median": 0.03}]}}
    fig = machines_figure([row] * 3)
    assert fig["data"][0]["y"] == pytest.approx([1, 1.5])
    assert fig["data"][0]["name"] == "a &lt;b&gt;, smol, bfloat16, cuda, 512 tokens cached, 20.0 ms for 1"
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
    sim = Sim(stop_at=1 + 1 + 7 + 7 + 3)  # the prompt, uncounted passes, one of each, three more
    found = cost_live.live_curve({"target": sim}, PROMPT, trials=4, timer=sim.timer)
    assert [len(t.seconds) for t in found["target"].values()] == [2, 2, 2, 1, 1, 1, 1]
    assert drawn == [7, "updated"]
    assert capsys.readouterr().out.startswith("Interrupted:")


def test_an_interruption_before_every_size_was_there_goes_on(drawn):
    sim = Sim(stop_at=10)
    with pytest.raises(KeyboardInterrupt):
        cost_live.live_curve({"target": sim}, PROMPT, trials=4, timer=sim.timer)


HERE = cost.Machine("this machine", 17.3e9, 0.41e12, "measured")


def board(bits=16, machines=(cost.SPARK, cost.H200, HERE)):
    pairs = {"both": LLAMA, "alone": {"target": facts("smol")}}
    measured = {"alone": {"target": {1: 0.02, 8: 0.03}}}
    return cost_live.roofline_board(pairs, machines, measured, bits)


def test_every_control_moves_the_roofline_in_place():
    shown = board()
    plot, labels = shown.plot, controls(shown)
    assert set(labels) == {"models", "machine", "GB/s", "TFLOP/s", "weights", "sequences"}
    for name in ("GB/s", "TFLOP/s", "weights", "sequences"):
        widget, seen = labels[name], []
        start = widget.value
        for value in (widget.options[0], widget.options[-1]):
            widget.value = value[1] if isinstance(value, tuple) else value
            seen.append(tuple(shown.shown["data"][0]["y"]) + tuple(shown.shown["data"][0]["x"]))
            assert accepted(shown)
        assert seen[0] != seen[1], name
        widget.value = start
    assert shown.plot is plot


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
    assert len(shown.shown["data"]) == 3 and "c from bytes" not in sentence(shown.shown)
    assert shown.shown["data"][1]["y"] == [None]
    labels["machine"].value = "this machine"
    assert shown.shown["data"][1]["y"] == [20, 30]
    labels["sequences"].value = 2
    assert shown.shown["data"][1]["y"] == [None]
    labels["models"].value = "both"
    assert len(shown.shown["data"][2]["y"]) == 3


def test_the_weights_are_those_of_the_measurement_where_this_machine_is_chosen():
    shown = board(32)
    labels = controls(shown)
    labels["models"].value = "alone"
    assert labels["weights"].value == 16
    labels["machine"].value = "this machine"
    assert labels["weights"].value == 32 and shown.shown["data"][1]["y"] == [20, 30]
    labels["machine"].value = "H200"
    assert labels["weights"].value == 16 and shown.shown["data"][1]["y"] == [None]
    at_once = board(32, [HERE])
    assert controls(at_once)["weights"].value == 32
    controls(at_once)["models"].value = "alone"
    assert at_once.shown["data"][1]["y"] == [20, 30]
    assert not any("bf16" in widget.tooltip for widget in labels.values() if getattr(widget, "tooltip", None))


# --- what the notebook says in words ------------------------------------------------------------------------

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "02_verify_cost.ipynb"


def test_a_loop_in_the_forward_makes_a_pass_of_each_token():
    """The planted mistake, counted in forwards of the notebook's own cell, with its switch on and off."""
    source = next(c.source for c in nbformat.read(NOTEBOOK, 4).cells if "LOOP = True" in c.source)
    model, fed = tiny_llama(), []
    hook = model.register_forward_hook(lambda _, a, kw, out: fed.append(kw["input_ids"].shape[1]), with_kwargs=True)
    try:
        for switch, passes in (("True", [1] * 8), ("False", [8])):
            names = {"torch": torch, "Context": Context, "pair": SimpleNamespace(target=model), "ids": [1] * 4}
            exec(source.replace("LOOP = True", f"LOOP = {switch}"), names)
            looped = names["Looped"](model)
            fed.clear()
            assert looped.feed([1] * 8).shape == (8, 64) and fed == passes
    finally:
        hook.remove()


def recorded(name):
    return records.read(records.RESULTS / f"verify-cost-zen5-smol{name}.json", "verify-cost")


def test_the_numbers_that_stand_in_the_notebooks_words_are_those_of_the_records():
    text = " ".join("\n".join(c.source for c in nbformat.read(NOTEBOOK, 4).cells if c.cell_type == "markdown").split())
    eager, compiled, full = (recorded(n) for n in ("-bfloat16", "-compiled-bfloat16", "-float32"))
    one = {name: medians(r)[1] for name, r in (("eager", eager), ("compiled", compiled))}
    assert "about half as long" in text and 0.45 < one["compiled"] / one["eager"] < 0.55
    assert compiled["c"]["measured"] > eager["c"]["measured"]
    # One token is dearer than two in bf16, and two are dearer than eight in fp32.
    assert medians(eager)[2] < medians(eager)[1]
    v = {n: seconds / medians(full)[1] for n, seconds in medians(full).items()}
    assert f"{v[2]:.2f}" in text and f"{v[8]:.2f}" in text and v[4] < v[2] > v[8] > 1
    target = full["models"]["target"]
    ridge = cost.ridge_point(full["bandwidth"], full["peak"]) * target["bytes_per_pass"] / target["flops_per_token"]
    assert f"lies at about {ridge:.0f} tokens" in text
    devices = {record["device"] for record in records.read_all("verify-cost")}
    assert ("A record of a GPU is missing" in text) == (devices == {"cpu"})


def test_c_lies_above_the_quotient_of_bytes_where_the_draft_reaches_fewer_bytes_per_second():
    """What notebook 02 says of it, on every record that is there."""
    for record in records.read_all("verify-cost"):
        if c := record.get("c"):
            speeds = [
                record["models"][role]["bytes_per_pass"] / c[f"{role}_step"]["median"] for role in ("target", "draft")
            ]
            assert c["measured"] / c["from_bytes"] == pytest.approx(speeds[0] / speeds[1])
