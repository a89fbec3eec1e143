"""The calculator, the growing sweep and the acceptance figures show the numbers they are given, at every control."""

from __future__ import annotations

import html
import math
import re
import time

import numpy as np
import plotly.graph_objects as go
import pytest
from boards import accepted, controls

from speclib import speedup as formulas
from speclib.adaptive import Heuristic, oracle, replay
from speclib.decode import Round, Stats
from speclib.distributions import Rng
from speclib.figures import acceptance, calculator_live
from speclib.figures.calculator import ALPHAS, CS, MOST_C, MOST_K, Point, best_ks, calculator_figure
from speclib.figures.calculator_board import Calculator
from speclib.rows import Run, table

BREAK_EVEN, CEILING, FREE, CURVE, BEST, POINTS, MAP, LOST, LABELS, RING = range(10)  # traces of the calculator
FLAT = (1.0,) * 17
MEASURED = [1.0, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3]
MINE = [Point(1, 1.3, 1.1, 1.5), Point(4, 1.5, 1.2, 1.7), Point(6, 1.4, 1.2, 1.6)]


def figure(alpha=0.7, c=0.1, v=FLAT, points=(), **more):
    fig = calculator_figure(alpha, c, v, points, **more)
    go.Figure(fig)  # every property is one that plotly has
    return fig


def words(fig):
    return [a["text"] for a in fig["layout"]["annotations"]]


def tops(fig):
    return fig["layout"]["yaxis"]["range"][1]


@pytest.mark.parametrize(
    ("alpha", "c", "K", "times"),
    [(0.7, 0.05, 6, "2.35"), (0.7, 0.1, 4, "1.98"), (0.7, 0.25, 2, "1.46"), (0.7, 0.3, 2, "1.37"),
     (0.7, 0.15, 3, "1.75"), (0.5, 0.05, 3, "1.63")],
)  # fmt: skip
def test_the_lessons_numbers(alpha, c, K, times):
    fig = figure(alpha, c)
    assert fig["data"][BEST]["x"] == [K] and f"{fig['data'][BEST]['y'][0]:.2f}" == times
    assert f"<b>{K}</b>" in words(fig)[0] and f"<b>{times} ×</b>" in words(fig)[0]
    assert words(fig)[4] == f"K = {K}"
    assert fig["data"][CURVE]["y"] == pytest.approx([formulas.speedup(alpha, k, c) for k in range(17)])


def test_ceiling_break_even_and_free_drafts():
    fig = figure()
    assert fig["data"][CEILING]["y"] == pytest.approx([1 / 0.3] * 2) and set(fig["data"][BREAK_EVEN]["y"]) == {1}
    free = fig["data"][FREE]["y"]
    assert free == pytest.approx([formulas.expected_tokens(0.7, k) for k in range(17)])
    assert free[-1] < 1 / 0.3 < tops(fig) and "= 3.33" in words(fig)[1]
    assert "It breaks even up to c = 0.70." in words(fig)[0]


def test_where_plain_decoding_wins_it_says_so():
    fig = figure(0.2, 0.4)
    assert fig["data"][BEST]["x"] == [0] and "plain decoding wins" in words(fig)[0]
    assert "Not even free drafts" in words(figure(0.1, 0.0, [1 + 0.3 * k for k in range(9)]))[0]


def test_a_ceiling_that_is_off_the_figure_is_told():
    for alpha, says in ((0.98, "= 50.00 off the figure"), (1.0, "= ∞ off the figure")):
        fig = figure(alpha, 0.3)
        assert says in words(fig)[1] and fig["layout"]["annotations"][1]["y"] == tops(fig)
        assert max(fig["data"][FREE]["y"]) < tops(fig)
    assert " or more: " in words(figure(0.95, 0.0))[0]


def test_measured_points_lie_where_they_were_measured():
    fig = figure(0.5, 0.05, MEASURED, MINE)
    at = fig["data"][POINTS]
    assert (at["x"], at["y"]) == ([1, 4, 6], [1.3, 1.5, 1.4])
    assert at["error_y"]["array"] == pytest.approx([0.2, 0.2, 0.2])
    assert at["error_y"]["arrayminus"] == pytest.approx([0.2, 0.3, 0.2])
    assert figure()["data"][POINTS]["x"] == [None]
    assert tops(figure(points=[Point(2, 7.0, 6.0, 7.9)])) > 7.9


def test_the_curve_is_that_of_the_formula_it_is_given():
    fig = figure(formula=lambda a, k, c, v: 1 + k)
    assert fig["data"][CURVE]["y"] == [1 + k for k in range(17)] and fig["data"][BEST]["x"] == [16]


@pytest.mark.parametrize("v", [FLAT, tuple(MEASURED), tuple(1 + 0.1 * k for k in range(33))])
def test_the_map_is_the_best_k_everywhere(v):
    best = best_ks(v)
    assert best.shape == (len(CS), len(ALPHAS)) and CS[-1] == MOST_C
    for row, column in zip(*np.unravel_index(np.arange(0, best.size, 997), best.shape), strict=True):
        assert best[row, column] == formulas.best_k(ALPHAS[column], CS[row], list(v), k_max=len(v) - 1)
    assert (np.diff(best, axis=0) <= 0).all()  # a dearer draft never wants more


def test_the_red_corner_is_where_plain_decoding_wins():
    fig = figure()
    edge = dict(zip(fig["data"][LOST]["x"], fig["data"][LOST]["y"], strict=True))
    for a in (0.2, 0.4, 0.5):
        assert edge[a] == pytest.approx(formulas.break_even_c(a), abs=1.01 * CS[1])


@pytest.mark.parametrize("v", [FLAT, tuple(MEASURED)])
def test_each_label_of_the_map_stands_in_its_own_region(v):
    labels = figure(v=v)["data"][LABELS]
    seen = []
    for x, y, text in zip(labels["x"], labels["y"], labels["text"], strict=True):
        k = int(re.search(r"\d+", text)[0])
        assert best_ks(v)[list(CS).index(y), list(ALPHAS).index(x)] == k
        seen.append(k)
    assert {0, 1, 2, 3, len(v) - 1} <= set(seen)


def test_every_control_moves_the_figure_from_end_to_end_in_place():
    board = Calculator()
    labels, plot = controls(board), board.plot
    assert set(labels) == {"α", "c", "v per draft", "K up to", "v as measured (none is, yet)"}
    for name in ("α", "c", "v per draft", "K up to"):
        widget, seen = labels[name], []
        start = widget.value
        for value in (widget.min, widget.max):
            widget.value = value
            assert accepted(board)
            curve, ring = board.shown["data"][CURVE], board.shown["data"][RING]
            seen.append((curve["y"], ring["x"], ring["y"]))
        assert seen[0] != seen[1], name
        widget.value = start
        assert widget.tooltip
    assert board.plot is plot


def test_the_ring_follows_alpha_and_c_and_the_map_follows_v():
    board = Calculator()
    before = board.shown["data"][MAP]["z"]
    board.alpha.value, board.c.value = 0.35, 0.2
    assert (board.shown["data"][RING]["x"], board.shown["data"][RING]["y"]) == ([0.35], [0.2])
    assert np.array_equal(board.shown["data"][MAP]["z"], before)
    board.slope.value = 0.1
    assert not np.array_equal(board.shown["data"][MAP]["z"], before)


def test_points_are_laid_with_alpha_c_and_v_as_measured():
    assert Calculator().measured.disabled
    board = Calculator(formulas.speedup, 0.473, 0.052, MINE, MEASURED)
    assert board.slope.disabled and board.most.max == 6
    assert not board.measured.disabled and board.measured.value
    assert board.v == MEASURED and board.shown["data"][POINTS]["x"] == [1, 4, 6]
    assert board.alpha.value == pytest.approx(0.473) and board.c.value == pytest.approx(0.052)
    wanted = [formulas.speedup(0.473, k, 0.052, MEASURED) for k in range(7)]
    assert list(board.shown["data"][CURVE]["y"]) == pytest.approx(wanted)
    board.most.value = 3
    assert board.shown["data"][POINTS]["x"] == [1] and len(board.shown["data"][CURVE]["y"]) == 4
    board.measured.value = False
    assert not board.slope.disabled and board.most.max == MOST_K
    assert list(board.shown["data"][CURVE]["y"]) == pytest.approx([formulas.speedup(0.473, k, 0.052) for k in range(4)])
    slow = Calculator(formulas.speedup, 0.5, 1.4, [Point(1, 0.4, 0.3, 0.5)], [1.0, 1.1])
    assert slow.c.value == MOST_C and slow.error.value == ""


def test_a_drag_takes_no_heavy_work():
    board = Calculator()
    steps = []
    for i in range(30):
        start = time.process_time()
        board.alpha.value = 0.2 + 0.02 * i
        steps.append(time.process_time() - start)
    assert sorted(steps)[15] < 0.1  # processor time: what else the machine does is not counted


# --- the sweep ----------------------------------------------------------------------------------------------


def run(prompt, k, kept=(), plain=0.02, c=0.05, v=1.1):
    """A run with a step of 20 ms. kept: of k drafts, a round each."""
    rounds = [Round([0] * (n + 1), k, n, None, "", k * c * plain, v * plain) for n in kept]
    rounds = rounds or [Round([0], 0, 0, None, "", 0.0, plain)] * 8
    return Run(prompt, "chat" if prompt == "a" else "code", "model" if k else "plain", k, Stats(rounds))


RUNS = [run("a", 0), run("a", 1, [1, 0, 1, 1]), run("a", 2, [2, 1, 2]), run("b", 0), run("b", 1, [0, 0, 1, 1])]
RUNS.append(run("b", 2, [0, 2, 0]))


def test_the_sweep_figure_has_measured_predicted_and_recorded():
    rows = table(RUNS)
    fig = calculator_live.race_figure(rows, (1, 2), rows[1:], "so far")
    go.Figure(fig)
    by_k = {row.K: row for row in rows}
    assert fig["data"][2]["y"] == [by_k[1].speedup, by_k[2].speedup]
    assert fig["data"][3]["y"] == [by_k[1].predicted, by_k[2].predicted]
    assert fig["data"][1]["y"] == fig["data"][2]["y"] and fig["data"][1]["showlegend"]
    assert fig["layout"]["xaxis"]["ticktext"] == ["1", "2"]
    alone = calculator_live.race_figure(rows, (1, 2, 5))
    assert alone["data"][1]["y"] == [None] and not alone["data"][1]["showlegend"]
    assert alone["layout"]["xaxis"]["ticktext"] == ["1", "2", "5"]
    go.Figure(calculator_live.race_figure([], (1, 2)))


def shown_sentences(monkeypatch):
    """What the figure says after every run."""
    said = []
    original = calculator_live.race_figure

    def spy(rows, ks, recorded=(), sentence=""):
        said.append(sentence)
        return original(rows, ks, recorded, sentence)

    monkeypatch.setattr(calculator_live, "race_figure", spy)
    return said


def test_the_live_sweep_grows_and_returns_its_runs(monkeypatch):
    said = shown_sentences(monkeypatch)
    assert calculator_live.live_sweep(iter(RUNS), 6, (1, 2)) == RUNS
    assert said[0] == "Nothing is measured yet." and "· 4 of 6 runs" in said[4]
    assert said[-1].startswith("fastest: <b>K = ") and "runs" not in said[-1]


def test_where_it_loses_the_live_sweep_says_so(monkeypatch):
    said = shown_sentences(monkeypatch)
    calculator_live.live_sweep(iter([run("a", 0), run("a", 1, [0, 0, 0], v=1.4)]), 2, (1,))
    assert said[-1].startswith("plain decoding is the fastest here")


def interrupted(runs):
    yield from runs
    raise KeyboardInterrupt


def test_an_interruption_keeps_what_there_is_if_every_k_had_its_turn(capsys):
    assert calculator_live.live_sweep(interrupted(RUNS[:3]), 6, (1, 2)) == RUNS[:3]
    assert "Interrupted" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        calculator_live.live_sweep(interrupted(RUNS[:2]), 6, (1, 2))


# --- acceptance ---------------------------------------------------------------------------------------------

ROUNDS = [
    Round([1, 2, 3], 4, 2, None, "", 0.0, 0.0),
    Round([4, 5], 1, 1, None, "", 0.0, 0.0),
    Round([6], 0, 0, None, "", 0.0, 0.0),
    Round([7, 8], 2, 2, "stop", "", 0.0, 0.0),
]


def test_the_strip_says_what_each_token_was():
    assert [acceptance.roles(r) for r in ROUNDS] == [
        ["kept", "kept", "fix"], ["kept", "bonus"], ["plain"], ["kept", "kept"],
    ]  # fmt: skip
    page = acceptance.strip_html(ROUNDS, lambda t: " <b>&" if t == 1 else f" w{t}")
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.S))
    assert "✓ a kept draft: 5" in text and "+ the fix, where a draft was rejected: 1" in text
    assert "★ the bonus, after all were kept: 1" in text and "· a plain step: 1" in text
    assert page.count("<i ") == page.count("<small>") == 8 and page.count("<span title=") == 4
    assert "&lt;b&gt;&amp;" in page and 'title="round 1: 2 of 4 drafts kept"' in page
    assert "a plain step:" not in acceptance.strip_html(ROUNDS[:2], str)


def test_acceptance_by_position_stands_beside_powers_of_alpha():
    fig = acceptance.by_position([0.6, 0.4, 0.3], [0.6, 0.67, 0.75], 0.65)
    go.Figure(fig)
    assert fig["data"][0]["y"] == [0.6, 0.4, 0.3]
    assert fig["data"][1]["y"] == pytest.approx([0.65, 0.65**2, 0.65**3])
    assert fig["data"][2]["y"] == [0.6, 0.67, 0.75] and fig["data"][3]["y"] == [0.65, 0.65]


def test_alphas_have_whiskers_and_say_of_how_many():
    fig = acceptance.alphas({"chat": (0.5, 100), "code": (0.75, 12), "none": (math.nan, 0)}, "α̂ by kind")
    go.Figure(fig)
    assert fig["data"][0]["error_x"]["array"] == pytest.approx([0.1, 0.25, 0])
    assert [t.strip() for t in fig["data"][1]["text"]] == ["0.50 of 100 checked", "0.75 of 12 checked", "none checked"]


def test_schedules_show_kept_and_wasted_drafts_along_the_text():
    agrees = (Rng(1).uniform(60) < 0.6).tolist()
    runs = {"K = 2 always": replay(agrees, 2, 0.1).rounds, "heuristic": replay(agrees, Heuristic(), 0.1).rounds}
    runs["oracle"] = oracle(agrees, 0.1).rounds
    fig = acceptance.schedules(runs)
    go.Figure(fig)
    for i, rounds in enumerate(runs.values()):
        kept, wasted = fig["data"][2 * i]["y"], fig["data"][2 * i + 1]["y"]
        assert [x or 0 for x in kept] == [r.accepted for r in rounds]
        assert [-(x or 0) for x in wasted] == [r.drafted - r.accepted for r in rounds]
        assert f"{len(rounds)} rounds" in words(fig)[i]
    assert not any(fig["data"][5]["y"])  # the oracle drafts nothing in vain
