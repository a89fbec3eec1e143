"""The toy figure shows the lesson's numbers, draws what the rule draws, and its controls do what they say."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor

import plotly.graph_objects as go
import pytest
import torch
from boards import controls

from speclib import accept
from speclib.decode import decode
from speclib.distributions import Rng, Sampling, overlap
from speclib.drafters import ModelDrafter
from speclib.exactness import LEVEL, chi_square, sequence_distribution, target_distribution
from speclib.figures import counting, proof, toy, toy_draws, tree
from speclib.figures.toy_board import Proof, toy_board
from speclib.stopping import Stop
from speclib.toy import WORDS, P, Q, TableLM

NOTHING = torch.zeros(2, 6, dtype=torch.int64)
BUGGED = [0.32, 0.325, 0.145, 0.08, 0.078, 0.052]


def figure(p=P, q=Q, counts=NOTHING, bug=False, last=None):
    fig = toy.toy_figure(WORDS, p, q, counts, bug, last)
    go.Figure(fig)  # every property is one that plotly has
    return fig


def heights(fig, *traces):
    return [sum(x or 0 for x in column) for column in zip(*(fig["data"][i]["y"] for i in traces), strict=True)]


def heads(fig):
    return [a["text"] for a in fig["layout"]["annotations"]]


def test_the_lessons_numbers():
    fig = figure()
    assert heights(fig, 0, 1) == pytest.approx(Q.tolist())
    assert heights(fig, 2, 3) == pytest.approx(P.tolist())
    assert heights(fig, 0) == heights(fig, 2) == pytest.approx(torch.minimum(P, Q).tolist())
    assert heights(fig, 4) == pytest.approx([2 / 3, 0, 1 / 6, 1 / 6, 0, 0])
    assert fig["data"][9]["marker"]["symbol"] == "line-ew" and fig["data"][9]["y"] == P.tolist()
    assert "<b>0.70</b>" in heads(fig)[0] and "<b>0.30</b>" in heads(fig)[2] and "nothing drawn" in heads(fig)[3]


def test_with_q_equal_to_p_nothing_is_left():
    fig = figure(q=P)
    assert "<b>1.00</b>" in heads(fig)[0] and "empty" in heads(fig)[2]
    assert heights(fig, 4) == [0] * 6


def test_the_bug_is_drawn_as_itself():
    counts = torch.tensor([[120, 75, 45, 30, 18, 12], [200, 250, 100, 50, 60, 40]])
    fig = figure(counts=counts, bug=True)
    assert heights(fig, 4) == [0] * 6 and heights(fig, 5) == pytest.approx(P.tolist())
    assert heights(fig, 6, 8) == pytest.approx(BUGGED) and fig["data"][9]["y"] == P.tolist()
    assert fig["data"][8]["marker"]["pattern"]["shape"] == "/"
    assert "✕ above 11.07, 5 degrees of freedom" in heads(fig)[3]


def test_chi_square_is_that_of_the_counts():
    counts = toy_draws.many_draws(toy_draws.law(accept.accept_or_fix, P, Q), 10_000, Rng(0))
    value = float(re.search(r"χ² = <b>([\d.]+)", heads(figure(counts=counts))[3])[1])
    assert value == pytest.approx(chi_square(counts.sum(0).tolist(), P.tolist()).statistic, abs=0.06)
    few = NOTHING.clone()
    few[1, 0] = 3
    assert "draw more" in heads(figure(counts=few))[3]


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
        fig = figure(last=draw)
        (x,), (y,) = fig["data"][14]["x"], fig["data"][14]["y"]
        assert x == draw.d and draw.kept == (y < float(torch.minimum(P, Q)[draw.d]))  # the dart hits solid blue
        assert fig["data"][15]["x"] == [None if draw.kept else draw.token]
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
    board._one(None)
    assert int(board.counts.sum()) == 1 and "The draft says" in board.trace.value
    board._many(None)
    assert int(board.counts.sum()) == 10_001 and "10,000 more" in board.trace.value
    board._reset(None)
    assert int(board.counts.sum()) == 0 and "Press" in board.trace.value
    assert board.shown["data"][6]["y"] == [None] * 6


def test_ten_thousand_are_added_in_no_time(board):
    board._many(None)
    times = []
    for _ in range(5):  # the quickest, since something else may run beside
        started = time.perf_counter()
        board._many(None)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.15  # 3 ms on an idle machine


@pytest.mark.parametrize("change", ["draft", "toward", "bug", "own"])
def test_the_tally_begins_anew_when_q_or_the_rule_changes(board, change):
    board.drafts.value = "my own"
    board._many(None)
    if change == "own":
        board.own[4].value = 0.9
    else:
        {"draft": board.drafts, "toward": board.toward, "bug": board.bug}[change].value = {
            "draft": "uniform", "toward": 0.5, "bug": True}[change]  # fmt: skip
    assert int(board.counts.sum()) == 0
    assert "nothing drawn" in board.shown["layout"]["annotations"][3]["text"]
    board._many(None)
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
    board._many(None)
    assert (board.counts.sum(0).double() / 10_000).tolist() == pytest.approx(BUGGED, abs=0.02)


def test_the_readers_own_residual_is_what_is_drawn():
    board = toy_board(residual=lambda p, q: [0.5, 0, 0, 0, 0, 0.5])
    assert heights(board.shown, 4) == [0.5, 0, 0, 0, 0, 0.5]


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


def ways_and_wanted():
    target, draft = TableLM(2, seed=1), TableLM(2, seed=2)

    def run(rng):
        target.rollback(0)
        draft.rollback(0)
        rounds = decode(target, ModelDrafter(draft), [0], k=2, sampling=Sampling(), stop=Stop(3), rng=rng)
        return [(tuple(r.tokens), r.drafted, r.accepted) for r in rounds]

    return sequence_distribution(run), target_distribution(target, [0], Sampling(), 3)


def test_the_tree_holds_every_way_and_its_leaves_are_p():
    ways, wanted = ways_and_wanted()
    flows = tree.edges_of(ways)
    assert sum(v for (start, *_), v in flows.items() if start == ()) == pytest.approx(1)
    for text in {e[1] for e in flows if len(e[1]) < 3}:  # what flows into a text flows out of it
        into = sum(v for e, v in flows.items() if e[1] == text)
        assert into == pytest.approx(sum(v for e, v in flows.items() if e[0] == text))
    fig = tree.outcome_tree(ways, wanted, ("A", "B"))
    go.Figure(fig)
    bars = [t for t in fig["data"] if t["type"] == "bar"]
    assert [sum(x) for x in zip(*(b["x"] for b in bars), strict=True)] == pytest.approx(
        list(dict(sorted(wanted.items())).values())
    )
    assert "the sums at the leaves are p" in fig["layout"]["annotations"][0]["text"]
    (ticks,) = (t for t in fig["data"] if t.get("marker", {}).get("symbol") == "line-ns")
    assert dict(zip(ticks["y"], ticks["x"], strict=True)) == {7 - i: wanted[t] for i, t in enumerate(sorted(wanted))}
    off = {**wanted, (0, 0, 0): wanted[0, 0, 0] + 0.1}
    assert (
        "differ from p by up to 0.100" in tree.outcome_tree(ways, off, ("A", "B"))["layout"]["annotations"][0]["text"]
    )


def test_counts_beside_p_show_the_likeliest_and_pool_the_rest():
    p = torch.arange(1, 31).double() / 465
    counts = torch.tensor([10 * i for i in range(1, 31)])
    fig = counting.counts_figure([f"w{i}" for i in range(30)], counts, p, most=10)
    go.Figure(fig)
    assert sum(fig["data"][0]["y"]) == pytest.approx(1) == sum(fig["data"][1]["y"])
    assert fig["layout"]["xaxis"]["ticktext"][0] == "w29" and fig["layout"]["xaxis"]["ticktext"][-1] == "20 others"
    assert "χ² = <b>0.0</b> ✓" in fig["layout"]["annotations"][0]["text"]
    assert (
        "too few"
        in counting.counts_figure(["a", "b"], torch.tensor([1, 0]), p[:2] / p[:2].sum(), 2)["layout"]["annotations"][0][
            "text"
        ]
    )


def without_a_loop(test):
    """Run in a thread of its own: the browser tests, in the same process, leave an event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(test).result()


def test_counting_draws_as_many_as_asked_for():
    def run():
        board = counting.Counting(lambda rng: rng.draw(P), WORDS, P, rng=Rng(1))
        board.n.value = 500
        board._go(None)
        board._go(None)
        assert int(board.counts.sum()) == 1_000 and board.progress.value == 500

    without_a_loop(run)


def test_counting_goes_on_after_an_interrupt_of_the_kernel():
    async def run():
        board = counting.Counting(lambda rng: rng.draw(P), WORDS, P, rng=Rng(1))
        board.n.value = 500
        board._go(None)
        board.task.cancel()
        await asyncio.wait([board.task])
        assert board.left == 500
        board._go(None)
        await board.task
        assert int(board.counts.sum()) == 500 and board.left == 0

    without_a_loop(lambda: asyncio.run(run()))


def test_every_control_of_the_counts_has_a_label_and_a_hint():
    found = controls(counting.Counting(lambda rng: 0, WORDS, P))
    assert set(found) == {"draws", "Draw", "Stop", "drawn"} and all(w.tooltip for w in found.values())


def test_counting_can_be_stopped_and_shows_an_error():
    calls = 0

    def slow(rng):
        nonlocal calls
        calls += 1
        time.sleep(0.002)
        if calls > 400:
            raise RuntimeError("no more")
        return 0

    async def run():
        board = counting.Counting(slow, WORDS, P, rng=Rng(1))
        board._go(None)
        await asyncio.sleep(0.3)
        board._stop(None)
        await board.task
        stopped = int(board.counts.sum())
        assert 0 < stopped < 400
        board._go(None)
        await board.task
        assert "no more" in board.error.value and board.left == 0

    without_a_loop(lambda: asyncio.run(run()))
