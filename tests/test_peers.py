"""transformers' own ways beside ours: the same texts, K drafts where K are asked for, and nothing left changed."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from tiny import tiny_llama
from transformers import LlamaForCausalLM

from speclib import peers as module
from speclib import rows
from speclib.context import Context
from speclib.decode import decode
from speclib.distributions import Sampling
from speclib.draft import DraftConfig, DraftForCausalLM
from speclib.drafters import LookupDrafter, ModelDrafter
from speclib.peers import peers
from speclib.stopping import Stop
from speclib.sweep import race, table, ways

TEXT = "say it again, say it again, say"
NEW = 24


class Pair:
    """A random target, and a draft that says often the same: it is its copy with some noise."""

    eos_ids = frozenset()

    def __init__(self, eos=()):
        self.target = tiny_llama()
        self.draft = LlamaForCausalLM(self.target.config).eval().requires_grad_(False)
        generator = torch.Generator().manual_seed(1)
        noise = {
            name: w + 0.1 * w.std() * torch.randn(w.shape, generator=generator)
            for name, w in self.target.state_dict().items()
        }
        self.draft.load_state_dict(noise)
        self.eos_ids = frozenset(eos)

    def chat_ids(self, text):
        return [ord(c) % 64 for c in text]

    def plain(self, new=NEW):
        rounds = decode(Context(self.target), None, self.chat_ids(TEXT), stop=Stop(new, eos=self.eos_ids))
        return [t for r in rounds for t in r.tokens]


@pytest.fixture(scope="module")
def pair():
    return Pair()


class Passes:
    """Notes how many ids each pass of a model is fed."""

    def __init__(self, monkeypatch, **models):
        self.seen = []
        for name, model in models.items():
            monkeypatch.setattr(model, "forward", self._noting(name, model.forward))

    def _noting(self, name, forward):
        @functools.wraps(forward)  # generate asks for its signature
        def noted(input_ids=None, **more):
            self.seen.append((name, input_ids.shape[1]))
            return forward(input_ids=input_ids, **more)

        return noted


@pytest.mark.parametrize("name", ["plain", "model", "lookup"])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_greedy_texts_are_those_of_plain_decoding(pair, name, k):
    stats = peers(pair, ("model", "lookup"))[f"transformers {name}"](pair.chat_ids(TEXT), k, NEW)
    text = pair.plain()
    first = NEW - len(stats.tokens)  # what the round that read the prompt brought is not counted
    assert 1 <= first <= k + 1 and stats.tokens == text[first:]
    assert all(1 <= len(r.tokens) <= k + 1 and r.seconds_verify > 0 for r in stats.rounds)
    if name == "plain":
        assert first == 1 and all(len(r.tokens) == 1 for r in stats.rounds)
    else:
        assert max(len(r.tokens) for r in stats.rounds) > 1


@pytest.mark.parametrize("k", [1, 3, 6])
def test_k_is_k(monkeypatch, pair, k):
    """In each round the draft makes k passes and the target one over k + 1 tokens, as long as the text may go on."""
    passes = Passes(monkeypatch, target=pair.target, draft=pair.draft)
    stats = peers(pair, ("model",))["transformers model"](pair.chat_ids(TEXT), k, NEW)
    left = NEW - (NEW - len(stats.tokens))
    at = [i for i, (name, _) in enumerate(passes.seen) if name == "target"]
    assert len(at) == len(stats.rounds) + 1
    for start, end, r in zip(at, at[1:], stats.rounds, strict=False):
        drafts = min(k, left - 1)
        assert [name for name, _ in passes.seen[start + 1 : end]] == ["draft"] * drafts
        assert passes.seen[end] == ("target", drafts + 1)
        left -= len(r.tokens)
    assert left == 0
    assert passes.seen[at[0]] == ("target", len(TEXT) + k)  # the prompt and the first drafts in one: why it is left out


def test_it_drafts_as_ours_does(pair):
    """The same pair and K: as many tokens in as many rounds, but for the first round."""
    theirs = peers(pair, ("model",))["transformers model"](pair.chat_ids(TEXT), 3, NEW)
    found = list(decode(Context(pair.target), ModelDrafter(pair.draft), pair.chat_ids(TEXT), k=3, stop=Stop(NEW)))
    assert [r.tokens for r in theirs.rounds] == [r.tokens for r in found[1:]]


def test_lookups_draft_at_most_k(monkeypatch, pair):
    passes = Passes(monkeypatch, target=pair.target)
    peers(pair, ("lookup",))["transformers lookup"](pair.chat_ids(TEXT), 4, NEW)
    assert {n for _, n in passes.seen[1:]} <= {1, 2, 3, 4, 5} and max(n for _, n in passes.seen[1:]) == 5


def test_the_distilled_drafts_class_serves_as_its_assistant():
    """A draft whose output matrix covers half of the tokens; its logits are −inf for the others."""
    whole = tiny_llama(seed=2)
    config = DraftConfig(**{k: v for k, v in whole.config.to_dict().items() if k != "model_type"}, head_size=32)
    pair = Pair()
    pair.draft = DraftForCausalLM(config).eval().requires_grad_(False)
    for sampling in (Sampling(0.0), Sampling(0.7)):
        stats = peers(pair, ("model",), sampling)["transformers model"](pair.chat_ids(TEXT), 3, NEW)
        assert NEW - 4 <= len(stats.tokens) < NEW and set(stats.tokens) - set(range(32))
        if sampling.temperature == 0:
            assert stats.tokens == pair.plain()[NEW - len(stats.tokens) :]


def test_an_eos_ends_it():
    free = Pair().plain()
    pair = Pair(eos=[free[9]])
    wanted = free[: free.index(free[9]) + 1]
    assert pair.plain() == wanted
    for name, generate in peers(pair, ("model", "lookup")).items():
        tokens = generate(pair.chat_ids(TEXT), 2, NEW).tokens
        assert tokens == wanted[len(wanted) - len(tokens) :], name
        assert len(tokens) >= len(wanted) - 3


def test_a_seed_gives_the_same_draws_and_disturbs_no_others(pair):
    torch.manual_seed(5)
    expected = torch.rand(2)
    for name, generate in peers(pair, ("model", "lookup"), Sampling(0.9, top_k=8), seed=4).items():
        first = generate(pair.chat_ids(TEXT), 2, NEW).tokens
        torch.manual_seed(5)
        assert generate(pair.chat_ids(TEXT), 2, NEW).tokens == first, name
        assert torch.equal(torch.rand(2), expected)


def test_sampling_follows_the_settings_given_and_not_the_models_own(pair, monkeypatch):
    """top_k = 1 is greedy; a model's own settings, which ours never reads, would make another text of it."""
    monkeypatch.setattr(pair.target.generation_config, "repetition_penalty", 5.0)
    monkeypatch.setattr(pair.target.generation_config, "top_k", 1)
    text = pair.plain()
    for generate in peers(pair, ("model",), Sampling(0.7, top_k=1)).values():
        tokens = generate(pair.chat_ids(TEXT), 2, NEW).tokens
        assert tokens == text[NEW - len(tokens) :]
    free = [generate(pair.chat_ids(TEXT), 2, NEW).tokens for generate in peers(pair, (), Sampling(1.0)).values()]
    assert free[0] != text[1:]


def test_the_drafts_own_settings_are_put_back(pair, monkeypatch):
    own = pair.draft.generation_config
    before = own.to_dict()

    def broken(*_, **__):
        raise RuntimeError("out of memory")

    peers(pair, ("model",))["transformers model"](pair.chat_ids(TEXT), 2, 4)
    monkeypatch.setattr(pair.target, "generate", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        peers(pair, ("model",))["transformers model"](pair.chat_ids(TEXT), 2, 4)
    assert pair.draft.generation_config is own and own.to_dict() == before


def test_the_first_round_and_its_seconds_are_left_out(monkeypatch):
    clock = module._Clock()
    times = iter([10.0, 11.5, 12.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(times))
    for length in (7, 10, 11):
        assert not clock(torch.arange(length)[None], None).any()
    stats = clock.stats()
    assert [r.tokens for r in stats.rounds] == [[7, 8, 9], [10]]
    assert [(r.seconds_draft, r.seconds_verify) for r in stats.rounds] == [(0.0, 1.5), (0.0, 0.5)]
    assert stats.mean_accepted_length == 2.0


def test_they_run_in_the_same_turns(pair):
    asked = [{"id": str(i), "kind": "toy", "prompt": TEXT[i:]} for i in range(2)]
    drafters = {"model": ModelDrafter(pair.draft), "lookup": LookupDrafter()}
    theirs = peers(pair, ("model", "lookup"))
    order = ways(drafters, (2,), theirs)
    assert order[-3:] == [("transformers plain", 0), ("transformers model", 2), ("transformers lookup", 2)]
    found = list(race(pair, asked, drafters, (2,), new=12, peers=theirs))
    assert [(one.drafter, one.K) for one in found] == order + order[1:] + order[:1]
    of = {row.drafter: row for row in table(found)}
    assert math.isnan(of["transformers model"].alpha_hat) and of["transformers model"].speedup > 0
    assert of["transformers plain"].K == 0 and of["transformers plain"].mean_accepted_length == 1.0
    assert set(of["transformers lookup"].ratios) == {"0", "1"} and of["transformers lookup"].drafter.startswith(
        rows.PEER
    )


@pytest.mark.parametrize(
    ("names", "sampling", "says"),
    [
        (("ngram",), Sampling(0.0), "no way 'ngram'"),
        (("model",), Sampling(0.0, repetition=1.2), "penalties in another way"),
        ((), Sampling(1.0, banned=(3,)), "penalties in another way"),
    ],
)
def test_what_could_not_be_compared_is_refused(pair, names, sampling, says):
    with pytest.raises(ValueError, match=says):
        peers(pair, names, sampling)
