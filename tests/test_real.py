"""The loop on the default target, with real weights: identity, near ties, and the joint distribution of tokens."""

import json
from pathlib import Path

import pytest
import torch

from speclib import pairs, wrong
from speclib.context import Context
from speclib.decode import Stats, decode
from speclib.distributions import Rng, Sampling
from speclib.drafters import LookupDrafter, ModelDrafter
from speclib.exactness import (
    LEVEL,
    MemoLM,
    chi_square,
    draws_needed,
    largest_difference,
    reachable_ids,
    sequence_distribution,
    target_distribution,
)
from speclib.stopping import Stop

PROMPTS = [
    json.loads(line)["prompt"]
    for line in (Path(__file__).parent.parent / "prompts" / "short.jsonl").read_text(encoding="utf-8").splitlines()
]
TOP_4 = Sampling(top_k=4)
pytestmark = pytest.mark.usefixtures("all_threads")


@pytest.fixture(scope="module")
def pair():
    return pairs.load("smol", dtype=torch.float32)


def greedy(context, drafter, prompt, max_new):
    stats = Stats(list(decode(context, drafter, prompt, k=4, stop=Stop(max_new))))
    return stats.tokens, stats.rounds


def test_in_fp32_greedy_text_is_the_argmax_at_every_place(pair):
    """20 prompts × 64 tokens with lookup. One pass over prompt and answer, with no cache, gives every argmax.

    That each token is the argmax of what stands before it is what plain greedy decoding does, step by step.
    """
    context, outcomes = Context(pair.target), {"none": 0, "some": 0, "all": 0}
    assert len(PROMPTS) == 20
    for prompt in PROMPTS:
        ids = pair.chat_ids(prompt)
        tokens, rounds = greedy(context, LookupDrafter(), ids, 64)
        with torch.no_grad():
            logits = pair.target(torch.tensor([ids + tokens[:-1]]), use_cache=False).logits[0, len(ids) - 1 :]
        assert tokens == logits.argmax(-1).tolist(), prompt
        for r in rounds:
            if r.drafted:
                outcomes["none" if r.accepted == 0 else "all" if r.accepted == r.drafted else "some"] += 1
    assert min(outcomes.values()) >= 10, outcomes


def test_in_fp32_greedy_text_is_that_of_plain_decoding_and_of_transformers(pair):
    context = Context(pair.target)
    for prompt in PROMPTS[::10]:
        ids = pair.chat_ids(prompt)
        tokens, _ = greedy(context, LookupDrafter(), ids, 32)
        assert tokens == greedy(context, None, ids, 32)[0]
        out = pair.target.generate(
            torch.tensor([ids]), max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert tokens == out[0, len(ids) :].tolist()


def test_in_bf16_texts_part_only_at_near_ties(record_property):
    """One pass over K + 1 rounds otherwise than one over 1: where the first difference falls, the top two tie."""
    bf16 = pairs.load("smol", dtype=torch.bfloat16)
    context, parted = Context(bf16.target), 0
    for prompt in PROMPTS[::5]:
        ids = bf16.chat_ids(prompt)
        plain, spec = greedy(context, None, ids, 48)[0], greedy(context, LookupDrafter(), ids, 48)[0]
        first = next((i for i, (a, b) in enumerate(zip(plain, spec, strict=True)) if a != b), None)
        if first is not None:
            parted += 1
            context.rollback(0)
            top = context.feed(ids + plain[:first], rows=1)[0].topk(2).values
            assert float(top[0] - top[1]) <= 1.0, (prompt, first)
    record_property("texts that parted, of 4", parted)
    print(f"\nbf16: {parted} of 4 texts parted from plain greedy within 48 tokens, each at a near tie")


# --- the joint distribution of three tokens -----------------------------------------------------------------


class Blunt(Context):
    """The same weights at twice the temperature: a draft that is often, but not always, right."""

    def feed(self, ids, rows=None):
        return super().feed(ids, rows) / 2


@pytest.fixture(scope="module")
def models(pair):
    return Context(pair.target), Blunt(pair.target), pair.chat_ids("Tell me a story.")


@pytest.fixture(scope="module")
def real(models):
    """Target and draft over the few ids that can come up: real logits, each text computed once."""
    target, draft, prompt = models
    ids = reachable_ids([target, draft], prompt, TOP_4, 3)
    return MemoLM(target, prompt, ids), MemoLM(draft, prompt, ids), ids


def three_tokens(target, draft, prompt, rng):
    rounds = decode(target, ModelDrafter(draft), prompt, k=2, sampling=TOP_4, stop=Stop(3), rng=rng)
    return tuple(t for r in rounds for t in r.tokens)


def test_on_real_logits_every_outcome_adds_up_to_p(real):
    target, draft, _ = real
    wanted = target_distribution(target, [0], TOP_4, 3)
    assert len(wanted) == 4**3
    output = sequence_distribution(lambda rng: three_tokens(target, draft, [0], rng))
    assert largest_difference(output, wanted) < 1e-6  # fp32


def test_the_joint_of_three_tokens_passes_chi_square_and_mistakes_do_not(real, record_property):
    """The enumerator gives the mistake's real distribution, so the draws needed to notice it are computed."""
    target, draft, _ = real
    wanted = target_distribution(target, [0], TOP_4, 3)
    cells, n = sorted(wanted), 6_000
    p = [wanted[c] for c in cells]

    def p_value():
        counts = dict.fromkeys(cells, 0)
        for seed in range(n):
            counts[three_tokens(target, draft, [0], Rng(seed))] += 1
        return chi_square([counts[c] for c in cells], p).p_value

    assert p_value() > LEVEL
    resample = next(m for m in wrong.BIASED if m.name == "a rejection draws from p")
    with resample.patch():
        biased = sequence_distribution(lambda rng: three_tokens(target, draft, [0], rng))
        needed = draws_needed([biased.get(c, 0.0) for c in cells], p)
        record_property("draws needed", needed)
        assert needed < n
        assert p_value() < LEVEL


@pytest.mark.parametrize(("runs", "draft_has_a_cache"), [(180, False), (20, True)])
def test_runs_with_real_caches_equal_the_memoised_ones_under_the_same_seeds(models, real, runs, draft_has_a_cache):
    target, draft, prompt = models
    ids = real[2]
    draft = draft if draft_has_a_cache else MemoLM(draft)
    for seed in range(runs):
        with_caches = three_tokens(target, draft, prompt, Rng(seed))
        assert with_caches == tuple(ids[t] for t in three_tokens(*real[:2], [0], Rng(seed))), seed
