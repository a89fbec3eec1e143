"""The toy figure shows the lesson's numbers, draws what the rule draws, and its controls do what they say."""

from __future__ import annotations

import re
import time
from collections import defaultdict

import pytest
import torch

from speclib import accept
from speclib.distributions import Rng, overlap
from speclib.exactness import LEVEL, chi_square
from speclib.figures import proof, toy, toy_draws
from speclib.figures.toy_board import Proof, toy_board
from speclib.toy import WORDS, P, Q

NOTHING = torch.zeros(2, 6, dtype=torch.int64)
MARK = r'<i class="([\w ]+)" style="bottom:([\d.]+)%(?:;height:([\d.]+)%)?'
BUGGED = [0.32, 0.325, 0.145, 0.08, 0.078, 0.052]


def page(p=P, q=Q, counts=NOTHING, bug=False, last=None):
    return toy.toy_html(WORDS, p, q, counts, bug, last)


def panels(html):
    """What is drawn in each panel: for each kind of mark and each word, how high it is or stands."""
    found = []
    for panel in html.split('class="plot"')[1:]:
        place, top = re.findall(r'class="line" style="bottom:([\d.]+)%"><small>([\d.]+)', panel)[-1]
        one = float(place) / float(top)  # how far up a probability of 1 is
        marks = defaultdict(lambda: dict.fromkeys(WORDS, 0.0))
        for word, column in zip(WORDS, panel.split('class="word"')[1:], strict=True):
            assert f"<b>{word}</b>" in column
            for kind, low, high in re.findall(MARK, column):
                marks[kind][word] = float(high or low) / one
        found.append({kind: list(heights.values()) for kind, heights in marks.items()})
    return found


def heads(html):
    return re.findall(r'class="head"><span>(.*?)</span>', html)


def near(values):
    return pytest.approx([float(v) for v in values], abs=2e-5)


def test_the_lessons_numbers():
    in_q, in_p, residual, tally = panels(page())
    assert in_q["both"] == in_p["both"] == near(torch.minimum(P, Q))
    assert [a + b for a, b in zip(in_q["both"], in_q["over"], strict=True)] == near(Q)
    assert [a + b for a, b in zip(in_p["both"], in_p["refill"], strict=True)] == near(P)
    assert residual == {"refill": near([2 / 3, 0, 1 / 6, 1 / 6, 0, 0])}
    assert tally == {"p": near(P)}
    in_q, _, residual, tally = heads(page())
    assert "<b>0.70</b>" in in_q and "<b>0.30</b>" in residual and "nothing drawn" in tally


def test_a_bar_stands_on_the_one_below_and_says_what_it_is():
    (a,) = re.findall(r"<b>A</b>(.*?)</div>", page().split('class="plot"')[1])
    assert 'class="both" style="bottom:0.000%;height:41.667%" title="A, min(p, q): drafted and kept: 0.2500"' in a
    assert 'class="over" style="bottom:41.667%;height:33.333%" title="A, q above p: rejected: 0.2000"' in a
    assert '<small style="bottom:calc(75.000% + 1px)">0.45</small>' in a


def test_with_q_equal_to_p_nothing_is_left():
    html = page(q=P)
    assert "<b>1.00</b>" in heads(html)[0] and "empty" in heads(html)[2]
    assert panels(html)[2] == {}


def test_the_bug_is_drawn_as_itself():
    html = page(counts=torch.tensor([[120, 75, 45, 30, 18, 12], [200, 250, 100, 50, 60, 40]]), bug=True)
    _, _, residual, tally = panels(html)
    assert residual == {"bug": near(P)} and tally["p"] == near(P) and "refill" not in tally
    assert [a + b for a, b in zip(tally["both"], tally["bug"], strict=True)] == near(BUGGED)
    assert "✕ above 11.07, 5 degrees of freedom" in heads(html)[3]


def test_chi_square_is_that_of_the_counts():
    counts = toy_draws.many_draws(toy_draws.law(accept.accept_or_fix, P, Q), 10_000, Rng(0))
    value = float(re.search(r"χ² = <b>([\d.]+)", heads(page(counts=counts))[3])[1])
    assert value == pytest.approx(chi_square(counts.sum(0).tolist(), P.tolist()).statistic, abs=0.06)
    few = NOTHING.clone()
    few[1, 0] = 3
    assert "draw more" in heads(page(counts=few))[3]


@pytest.mark.parametrize("q", [Q, P, torch.full((6,), 1 / 6).double(), torch.eye(6).double()[0]])
def test_the_law_is_p_and_keeps_the_overlap(q):
    law = toy_draws.law(accept.accept_or_fix, P, q)
    assert torch.allclose(law.sum(0), P, atol=1e-12)
    assert float(law[1].sum()) == pytest.approx(float(overlap(P, q)))


def test_many_draws_are_distributed_as_runs_of_the_rule():
    """Both against the law, cell by cell: replaced and kept, each word."""
    law = toy_draws.law(accept.accept_or_fix, P, Q)
    assert law.flatten().tolist() == pytest.approx([0.2, 0, 0.05, 0.05, 0, 0, *torch.minimum(P, Q).tolist()])
    at_once, one_by_one, rng = toy_draws.many_draws(law, 20_000, Rng(1)), NOTHING.clone(), Rng(2)
    for _ in range(4_000):
        token, kept = accept.accept_or_fix(P, Q, d := rng.draw(Q), rng)
        assert not kept or token == d
        one_by_one[int(kept), token] += 1
    for counts in (at_once, one_by_one):
        assert chi_square(counts.flatten().tolist(), law.flatten().tolist()).p_value > LEVEL
        assert counts[law == 0].sum() == 0


def test_the_law_of_the_bug_is_the_lessons():
    assert toy_draws.law(toy_draws.sample_p_on_reject, P, Q).sum(0).tolist() == pytest.approx(BUGGED)


def test_one_draw_tells_the_number_that_decided():
    rng, kept = toy_draws.Listening(0), 0
    for _ in range(300):
        draw = toy_draws.one_draw(accept.accept_or_fix, P, Q, rng)
        assert draw.kept == (draw.u < float(P[draw.d] / Q[draw.d]))
        text = toy_draws.in_words(draw, WORDS, P, Q)
        assert f"The draft says <b>{WORDS[draw.d]}</b>" in text and f"u = <b>{draw.u:.3f}</b>" in text
        assert ("✓ kept" in text) == draw.kept and ("residual gave" in text) != draw.kept
        kept += draw.kept
        in_q, _, residual, tally = panels(page(last=draw))
        place = in_q["dart" if draw.kept else "dart missed"]
        assert place[draw.d] == pytest.approx(draw.u * float(Q[draw.d]), abs=2e-5) and sum(x > 0 for x in place) == 1
        assert draw.kept == (place[draw.d] < float(torch.minimum(P, Q)[draw.d]))  # the dart hits solid blue
        assert ("dart" in residual) != draw.kept and "dart" in tally
        assert draw.kept or residual["dart"][draw.token] == pytest.approx(residual["refill"][draw.token] / 2, abs=2e-5)
    assert 160 < kept < 260
    assert "all of p gave" in toy_draws.in_words(toy_draws.Draw(1, 0.9, False, 1), WORDS, P, Q, bug=True)


def test_listening_changes_no_answer():
    a, b = toy_draws.Listening(5), Rng(5)
    for _ in range(50):
        probabilities = torch.tensor([0.6])
        assert a.kept(probabilities) == b.kept(probabilities) and a.draw(P) == b.draw(P)


@pytest.fixture
def board():
    return toy_board(seed=1)


def test_buttons_add_and_reset(board):
    board._one()
    assert int(board.counts.sum()) == 1 and "The draft says" in board.trace.value
    board._many()
    assert int(board.counts.sum()) == 10_001 and "10,000 more" in board.trace.value
    board._anew()
    assert int(board.counts.sum()) == 0 and "Press" in board.trace.value
    assert panels(board.page.value)[3] == {"p": near(P)}


def test_ten_thousand_are_added_in_no_time(board):
    board._many()
    times = []
    for _ in range(5):  # the quickest, since something else may run beside
        started = time.perf_counter()
        board._many()
        times.append(time.perf_counter() - started)
    assert min(times) < 0.15  # 3 ms on an idle machine


@pytest.mark.parametrize("change", ["draft", "toward", "bug", "own"])
def test_the_tally_begins_anew_when_q_or_the_rule_changes(board, change):
    board.drafts.value = "my own"
    board._many()
    if change == "own":
        board.own[4].value = 0.9
    else:
        {"draft": board.drafts, "toward": board.toward, "bug": board.bug}[change].value = {
            "draft": "uniform", "toward": 0.5, "bug": True}[change]  # fmt: skip
    assert int(board.counts.sum()) == 0
    assert "nothing drawn" in heads(board.page.value)[3]
    board._many()
    expected = BUGGED if change == "bug" else P.tolist()
    assert (board.counts.sum(0).double() / 10_000).tolist() == pytest.approx(expected, abs=0.02)


def test_toward_p_is_a_straight_line_that_ends_in_p(board):
    for draft in ("model", "one guess", "uniform", "my own"):
        board.drafts.value, board.toward.value = draft, 0.0
        start = board.q
        assert float(start.sum()) == pytest.approx(1)
        board.toward.value = 0.25
        assert torch.allclose(board.q, 0.75 * start + 0.25 * P)
        board.toward.value = 1.0
        assert torch.equal(board.q, P) and float(overlap(P, board.q)) == pytest.approx(1)
    assert [float(x) for x in toy_board().q] == pytest.approx(Q.tolist())


def test_an_own_q_of_nothing_says_so_and_mends(board):
    board.drafts.value = "my own"
    for slider in board.own[:-1]:
        slider.value = 0
    with pytest.raises(ValueError, match="raise at least one word"):
        board.own[-1].value = 0
    assert "raise at least one word" in board.error.value
    board.own[2].value = 1
    assert board.error.value == "" and board.q.tolist() == [0, 0, 1, 0, 0, 0]


def test_the_readers_own_rule_is_what_is_counted():
    board = toy_board(toy_draws.sample_p_on_reject, seed=1)
    board._many()
    assert (board.counts.sum(0).double() / 10_000).tolist() == pytest.approx(BUGGED, abs=0.02)


def test_the_readers_own_residual_is_what_is_drawn():
    board = toy_board(residual=lambda p, q: [0.5, 0, 0, 0, 0, 0.5])
    assert panels(board.page.value)[2] == {"refill": near([0.5, 0, 0, 0, 0, 0.5])}


def test_the_picture_shows_a_tally_and_a_rejected_draft(board):
    before = board.counts, board.rng.generator.get_state()
    html = board.still()
    assert "<b>10,000</b> drawn" in heads(html)[3] and "dart missed" in panels(html)[0]
    assert before[0] is board.counts and torch.equal(before[1], board.rng.generator.get_state())


@pytest.mark.parametrize("y", range(6))
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_the_four_lines_add_up_to_p(y, t):
    q = (1 - t) * Q + t * P
    text = proof.proof_html(WORDS, P, q, y)
    first, second, third, last = (float(x) for x in re.findall(r" = <b>([\d.]+)</b>", text.split("<table")[1]))
    assert first == pytest.approx(float(torch.minimum(P, q)[y]), abs=6e-4) and second == pytest.approx(
        0.3 * (1 - t), abs=6e-4
    )
    assert third == pytest.approx(max(0.0, float(P[y] - q[y])), abs=6e-4)
    assert last == pytest.approx(float(P[y]), abs=6e-4) and f"= p({WORDS[y]}) ✓" in text


def test_the_proof_shows_where_the_bug_breaks_it():
    text = proof.proof_html(WORDS, P, Q, 1, bug=True)
    assert "0.250 + 0.075" in text and "0.325" in text and "but p(A) = 0.250 ✕" in text
    assert "✓" in proof.proof_html(WORDS, P, P, 1, bug=True)  # nothing is rejected, so nothing breaks


def test_the_proof_follows_the_board(board):
    lines = Proof(board)
    before = lines.lines.value
    board.toward.value = 0.5
    assert lines.lines.value != before and "0.350" in lines.lines.value
    lines.y.value = 0
    assert "y = <b>THE</b>" in lines.lines.value
    bundle = lines._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/html"] == lines.lines.value and data["text/plain"].startswith("The four lines")
