"""What was drawn beside p, and the tree of all ways a text can come out: counts are those of the rule, sums are p."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import plotly.graph_objects as go
import pytest
import torch
from boards import controls

from speclib.decode import decode
from speclib.distributions import Rng, Sampling
from speclib.drafters import ModelDrafter
from speclib.exactness import sequence_distribution, target_distribution
from speclib.figures import counting, tree
from speclib.stopping import Stop
from speclib.toy import WORDS, P, TableLM


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
