"""Speculation in a batch fades as the roofline says, and the figure shows it at every control."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
import torch
from boards import controls

from speclib import cost, shapes
from speclib.figures.batch import MOST_K, USERS, Batch, batch_html, verify_in_batch
from speclib.speedup import expected_tokens, speedup

SPARK = (273e9, 125e12)
WEIGHTS, FLOPS = 16e9, 16e9


class Seen:
    """What a reader sees: the sentence, and by number of users what is said to who points there."""

    def __init__(self, page):
        self.root = ElementTree.fromstring(page.split("</style>")[1])
        self.sentence = "".join(self.root.find("div").itertext())
        hints = [t.text for t in self.root.iter("title")]
        assert hints[::2] == hints[1::2] and len(hints) == 2 * len(USERS)  # in both panels
        said = [re.fullmatch(r"[\d,]+ users: best K = (\d+), ([\d.]+) ×; K = \d: ([\d.]+) ×", h) for h in hints[::2]]
        self.ks = [int(m[1]) for m in said]
        self.best, self.fixed = ([float(m[i]) for m in said] for i in (2, 3))

    def heights(self, kind):
        (of,) = (p.get("points") for p in self.root.iter("polyline") if p.get("class") == kind)
        return [float(xy.split(",")[1]) for xy in of.split()]


def figure(users=1, alpha=0.7, K=4, c=0.1, cache=0):
    return Seen(batch_html(users, alpha, K, c, WEIGHTS, cache, FLOPS, *SPARK))


def test_one_user_pays_nothing_for_more_tokens_and_many_pay_for_each():
    assert verify_in_batch(1, WEIGHTS, 0, FLOPS, *SPARK) == pytest.approx([1.0] * (MOST_K + 1))
    # Far beyond the ridge a pass is arithmetic alone: K + 1 tokens cost K + 1 times one.
    assert verify_in_batch(4096, WEIGHTS, 0, FLOPS, *SPARK) == pytest.approx(range(1, MOST_K + 2))


def test_speculation_fades_with_users_and_the_best_k_with_it():
    seen = figure()
    assert seen.best[0] == seen.fixed[0] == pytest.approx(speedup(0.7, 4, 0.1), abs=0.0051) and seen.ks[0] == 4
    assert seen.best[-1] == 1.0 and seen.ks[-1] == 0 and seen.fixed[-1] < 1
    assert seen.best == sorted(seen.best, reverse=True) and seen.ks == sorted(seen.ks, reverse=True)
    assert all(b >= max(1, f) for b, f in zip(seen.best, seen.fixed, strict=True))
    assert seen.sentence == "1 user in a batch: best K = 4, 1.98 ×. With K = 4 it is 1.98 × plain."
    assert "no draft pays: K = 0" in figure(users=1024).sentence


def test_the_lines_are_what_is_said():
    seen = figure()
    for kind, values in (("tuned", seen.best), ("fixed", seen.fixed)):
        falls = [b - a for a, b in itertools.pairwise(seen.heights(kind))]  # pixels, from above
        one = 230 / (1.12 * seen.best[0])
        assert falls == pytest.approx([one * (a - b) for a, b in itertools.pairwise(values)], abs=2)
    assert len(set(seen.heights("best"))) == len(set(seen.ks))


def test_caches_that_each_user_brings_keep_a_batch_at_the_memory():
    short, long = (figure(512, cache=cache) for cache in (0, 64e6))
    assert short.fixed[-2] < 1 < long.fixed[-2]


def test_a_free_draft_in_a_full_batch_still_loses():
    assert figure(1024, 0.8, 2, 0.0).fixed[-1] == pytest.approx(expected_tokens(0.8, 2) / 3, abs=0.0051)


def test_every_control_moves_the_batch_and_has_a_label():
    model = shapes.build("smol", torch.bfloat16, "meta")
    alone = (cost.step_bytes(model) / 2, cost.cache_bytes(model, 512), cost.flops_per_token(model, 512))
    pairs = {"llama": {"target": (8e9, 64e6, 16e9), "draft": (1.2e9, 16e6, 2.4e9)}, "smol": {"target": alone}}
    board = Batch(pairs, [cost.SPARK, cost.H200])
    labels = controls(board)
    assert set(labels) == {"models", "machine", "users", "K", "α", "c"}
    assert labels["c"].value == 0.15 and USERS[-1] in labels["users"].options
    labels["users"].value = 256
    for name, widget in labels.items():
        ends = [widget.options[0], widget.options[-1]] if hasattr(widget, "options") else [widget.min, widget.max]
        start, seen = widget.value, []
        for value in ends:
            widget.value = value
            seen.append(board.page.value)
        assert seen[0] != seen[1] and board.error.value == "", name
        widget.value = start
