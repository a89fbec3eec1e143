"""The rule on its edges: finite and right where p = q, where one is zero, where rounding rejects all the same."""

import pytest
import torch

from speclib.accept import accept_or_fix, judge, judge_greedy, residual, residual_one_hot
from speclib.distributions import Rng
from speclib.exactness import sequence_distribution
from speclib.toy import P, Q


class Reject:
    """An rng that rejects at a given draft, whatever its probability, and draws the likeliest token."""

    def __init__(self, at=0):
        self.at = at

    def kept(self, probabilities):
        self.probabilities = probabilities
        return min(self.at, len(probabilities))

    def draw(self, weights):
        return int(weights.argmax())


def v(*p, dtype=torch.float64):
    return torch.tensor(p, dtype=dtype)


def test_the_course_residual():
    assert torch.allclose(residual(P, Q), v(2 / 3, 0, 1 / 6, 1 / 6, 0, 0))
    assert torch.allclose(residual_one_hot(P, 0), v(0, 0.25, 0.15, 0.10, 0.06, 0.04) / 0.60)


EDGES = {
    "p = q": (v(0.5, 0.3, 0.2), v(0.5, 0.3, 0.2)),
    "p(d) = 0": (v(0.0, 0.7, 0.3), v(0.5, 0.5, 0.0)),
    "q has zeros where p has mass": (v(0.2, 0.3, 0.5), v(0.6, 0.4, 0.0)),
    "disjoint supports": (v(0.0, 0.0, 1.0), v(0.5, 0.5, 0.0)),
    "p has one entry 1": (v(1.0, 0.0, 0.0), v(0.1, 0.5, 0.4)),
    "q has one entry 1": (v(0.1, 0.5, 0.4), v(1.0, 0.0, 0.0)),
    "p, q both one-hot and equal": (v(0.0, 1.0, 0.0), v(0.0, 1.0, 0.0)),
    "one token": (v(1.0), v(1.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EDGES)
def test_edges_are_finite_and_exact(name, dtype):
    p, q = (x.to(dtype) for x in EDGES[name])
    output = sequence_distribution(lambda rng: [accept_or_fix(p, q, rng.draw(q), rng)[0]])
    for token, probability in enumerate(p.tolist()):
        assert output.get((token,), 0.0) == pytest.approx(probability, abs=1e-6 if dtype == torch.float32 else 1e-12)
    assert bool(torch.isfinite(residual(p, q)).all())


def test_a_residual_that_rounding_emptied_falls_back_to_p():
    p = v(0.1, 0.2, 0.7, dtype=torch.float32)
    q = torch.nextafter(p, torch.ones(3))  # q covers p everywhere, yet p/q < 1 can reject
    token, kept = accept_or_fix(p, q, 0, Reject())
    assert (token, kept) == (2, False)
    assert torch.equal(residual(p, q), p) and torch.equal(residual_one_hot(v(0, 1.0, 0), 1), v(0, 1.0, 0))


def test_the_residual_is_no_softmax_and_leaves_its_arguments_alone():
    p, q = P.clone(), Q.clone()
    r = residual(p, q)
    assert float(r.sum()) == pytest.approx(1) and r[1] == r[4] == r[5] == 0
    residual_one_hot(p, 2)
    assert torch.equal(p, P) and torch.equal(q, Q)


@pytest.mark.parametrize("rejected_at", [0, 1, 2, 3])
def test_a_block_stops_at_its_first_rejection(rejected_at):
    generator = torch.Generator().manual_seed(1)
    p = torch.rand(4, 6, generator=generator, dtype=torch.float64).softmax(-1)
    q = torch.rand(3, 6, generator=generator, dtype=torch.float64).softmax(-1)
    drafts, rng = [5, 0, 2], Reject(at=rejected_at)
    kept, weights = judge(p, q, drafts, rng)
    assert kept == rejected_at
    expected = p[3] if rejected_at == 3 else residual(p[rejected_at], q[rejected_at])
    assert torch.allclose(weights, expected)
    wanted = [min(1.0, float(p[i, d] / q[i, d])) for i, d in enumerate(drafts)]
    assert rng.probabilities.tolist() == pytest.approx(wanted)


def test_drafts_that_were_certain_are_kept_with_p():
    rng = Reject(at=1)
    kept, weights = judge(P.expand(3, 6), None, [0, 3], rng)
    assert rng.probabilities.tolist() == [0.40, 0.10]
    assert kept == 1 and torch.allclose(weights, residual_one_hot(P, 3))


def test_no_drafts_is_a_plain_step():
    for q in (None, torch.zeros(0, 6, dtype=torch.float64)):
        kept, weights = judge(P[None], q, [], Rng(0))
        assert kept == 0 and torch.equal(weights, P)


def test_token_0_is_a_token_like_any_other():
    assert accept_or_fix(v(1.0, 0.0), v(1.0, 0.0), 0, Rng(0)) == (0, True)
    assert accept_or_fix(v(1.0, 0.0), v(0.0, 1.0), 1, Rng(0)) == (0, False)


def test_a_draft_that_q_excludes_is_the_callers_error():
    with pytest.raises(ValueError, match="q must be the distribution that they were drawn from"):
        accept_or_fix(v(0.5, 0.5), v(0.0, 1.0), 0, Rng(0))


@pytest.mark.parametrize("d", [-1, 6])
def test_a_draft_that_p_has_no_entry_for_is_refused(d):
    with pytest.raises(ValueError, match="p has 6 entries and none for one of the drafts"):
        accept_or_fix(P, None, d, Rng(0))


@pytest.mark.parametrize(
    ("p", "q", "drafts"),
    [(P[None], Q[None], [0, 1]), (P.expand(4, 6), Q.expand(2, 6), [0, 1]), (P.expand(3, 6), Q[None, :5], [0, 1])],
)
def test_shapes_that_do_not_fit_are_named(p, q, drafts):
    with pytest.raises(ValueError, match="2 drafts need p with 2 or 3 rows"):
        judge(p, q, drafts, Rng(0))


def test_the_greedy_rule_keeps_what_the_argmax_says_and_no_more():
    logits = torch.eye(5)[[2, 0, 4, 1]]
    assert judge_greedy(logits, [2, 0, 4]) == (3, 1)  # all kept, then the bonus
    assert judge_greedy(logits, [2, 3, 4]) == (1, 0)  # the third would fit, but stands behind a rejection
    assert judge_greedy(logits, [1, 0, 4]) == (0, 2)
    assert judge_greedy(logits[:1], []) == (0, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_greedy_rule_refuses_rows_without_an_argmax(bad):
    for row in ([0.0, bad], [float("-inf")] * 2):
        with pytest.raises(ValueError, match="no argmax"):
            judge_greedy(torch.tensor([[0.0, 1.0], row]), [1])
