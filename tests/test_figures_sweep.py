"""The growing sweep and the acceptance figures show the numbers they are given, and say where plain decoding wins."""

from __future__ import annotations

import html
import math
import re

import plotly.graph_objects as go
import pytest

from speclib.adaptive import Heuristic, oracle, replay
from speclib.decode import Round, Stats
from speclib.distributions import Rng
from speclib.figures import acceptance, calculator_live
from speclib.rows import Run, table


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
        assert f"{len(rounds)} rounds" in fig["layout"]["annotations"][i]["text"]
    assert not any(fig["data"][5]["y"])  # the oracle drafts nothing in vain
