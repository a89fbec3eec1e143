"""`speclib distill`: the whole chain at sizes that teach nothing; resumption; data and loss that do what they say."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_llama
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from speclib import cli, pairs
from speclib.decode import spec_sample
from speclib.distill import corpus, seeds, train
from speclib.distill.loss import distance
from speclib.distill.train import Recipe
from speclib.draft import DraftForCausalLM

PROMPTS = Path(__file__).parent.parent / "prompts" / "short.jsonl"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A random Llama with the default target's tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("target")
    tokenizer = pairs.load("smol").tokenizer
    tiny_llama(vocab=len(tokenizer), hidden=64).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def distil(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["speclib", "distill", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_the_quick_chain_makes_a_draft_that_loads(monkeypatch, target, tmp_path):
    out = tmp_path / "draft"
    given = ("--target", target, "--out", out, "--work", tmp_path, "--quick", "--prompts", PROMPTS)
    assert distil(monkeypatch, *given) == 0
    pair = pairs.load(f"{target},{out}", dtype=torch.float32)
    assert isinstance(pair.draft, DraftForCausalLM)
    tokens, _ = spec_sample(pair.target, pair.draft, [1, 2, 3], 8, K=2)
    assert len(tokens) == 8
    facts = json.loads((out / "figures.json").read_text())
    assert facts["corpus"]["tokens"] == 1024 and len(facts["corpus"]["sha256"]) == 64
    assert len(facts["held_out"]["kept_at"]) == 8 and facts["curve"]
    assert [race["temperature"] for race in facts["races"]] == [0.0, 0.7]
    for race in facts["races"]:
        assert [row["drafter"] for row in race["rows"]] == ["plain", "distilled", "n-gram"] and "host" not in race[
            "machine"
        ]
    text = (out / "README.md").read_text()
    assert text.count("| distilled | 2 |") == text.count("| n-gram | 2 |") == 2
    assert "license: apache-2.0" in text and "speclib distill --target" in text and "α̂" in text
    # What is there is used: the second run only reads, and comes to the same draft.
    before = load_file(out / "model.safetensors")
    assert distil(monkeypatch, *given) == 0
    assert all(torch.equal(x, before[name]) for name, x in load_file(out / "model.safetensors").items())


def test_a_full_head_is_the_same_draft_as_a_plain_llama(monkeypatch, target, tmp_path):
    given = ("--target", target, "--work", tmp_path, "--quick")
    assert distil(monkeypatch, *given, "--out", tmp_path / "cut") == 0
    assert distil(monkeypatch, *given, "--out", tmp_path / "full", "--full-head") == 0
    cut, full = (AutoModelForCausalLM.from_pretrained(tmp_path / x, dtype=torch.float32) for x in ("cut", "full"))
    assert type(full) is LlamaForCausalLM and full.config.model_type == "llama"
    assert full.lm_head.weight.shape[0] == full.config.vocab_size
    ids = torch.tensor([[1, 2, 3]])
    q, same = (model(ids).logits.softmax(-1) for model in (cut, full))
    assert torch.allclose(q, same, atol=1e-2)  # bf16 weights, and norms that average over more channels


def test_a_draft_for_another_tokenizer_is_refused(monkeypatch, target, tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tiny_llama().save_pretrained(tmp_path / "other")
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"different tokenizers: .*choose a draft with the target's tokenizer"):
        pairs.load(f"{tmp_path / 'other'},{target}")
    assert (
        distil(monkeypatch, "--target", tmp_path / "other", "--out", tmp_path / "d", "--work", tmp_path, "--quick") == 2
    )
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("bad", [("--hidden", "100"), ("--hidden", "9984"), ("--prompts", "nowhere.jsonl")])
def test_bad_settings_are_refused_in_one_line(monkeypatch, capsys, target, tmp_path, bad):
    assert (
        distil(monkeypatch, "--target", target, "--out", tmp_path / "d", "--work", tmp_path, "--tokens", "1", *bad) == 2
    )
    assert capsys.readouterr().err.strip().count("\n") == 0 and not (tmp_path / "d").exists()


# --- the corpus ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(target):
    pair = pairs.load(f"{target},{target}", dtype=torch.float32)
    return pair.target, pair.tokenizer


def test_a_generator_that_was_killed_goes_on_and_comes_to_the_same(monkeypatch, parts, tmp_path):
    corpus.grow(*parts, tmp_path / "a", range(3), seed=5, rows=3, length=48)

    def killed(*args, made=[]):  # noqa: B006
        made.append(args)
        if len(made) == 2:
            raise KeyboardInterrupt
        return make(*args)

    make = corpus.make_shard
    monkeypatch.setattr(corpus, "make_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        corpus.grow(*parts, tmp_path / "b", range(3), seed=5, rows=3, length=48)
    assert corpus.shard_path(tmp_path / "b", 0).is_file() and not corpus.shard_path(tmp_path / "b", 1).is_file()
    monkeypatch.setattr(corpus, "make_shard", make)
    corpus.grow(*parts, tmp_path / "b", range(3), seed=5, rows=3, length=48)
    assert corpus.record(tmp_path / "a", 3) == corpus.record(tmp_path / "b", 3)
    with pytest.raises(ValueError, match=r"corpus of other settings.*choose another folder"):
        corpus.grow(*parts, tmp_path / "b", range(3), seed=6, rows=3, length=48)


def test_what_is_stored_is_what_the_target_says(parts):
    model, tokenizer = parts
    shard = corpus.make_shard(model, tokenizer, 7, 0, 4, 64)
    head = len(corpus.Template.of(tokenizer).head) - 1
    logits = model(shard["tokens"].long()).logits.float()
    wanted = logits.softmax(-1).gather(-1, shard["ids"].long())
    assert torch.allclose(shard["p"][:, head:].float(), wanted[:, head:], atol=2e-3)
    said = shard["mode"][:, 1:] == corpus.GREEDY
    assert said.any() and torch.equal(shard["tokens"][:, 1:][said], shard["ids"][:, :-1, 0][said])


def test_another_architecture_takes_the_slow_way(parts, monkeypatch):
    """The lean forward knows plain Llamas; whatever else goes through transformers must come to the same."""
    lean = corpus.make_shard(*parts, 7, 0, 3, 48)
    monkeypatch.setattr(corpus, "LlamaForCausalLM", type(None))
    slow = corpus.make_shard(*parts, 7, 0, 3, 48)
    assert torch.equal(lean["tokens"], slow["tokens"]) and torch.allclose(lean["p"], slow["p"], atol=2e-3)


def test_a_template_is_cut_where_the_chat_is(parts):
    tokenizer = pairs.load("smol").tokenizer
    cut, text = corpus.Template.of(tokenizer), "Explain how glass is made."
    ids = cut.head + tokenizer.encode(text, add_special_tokens=False) + cut.answer
    assert ids == pairs.load("smol").chat_ids(text)
    with pytest.raises(ValueError, match="no chat template"):
        corpus.Template.of(type("Bare", (), {"chat_template": None}))


def test_the_questions_leave_out_what_drafts_are_measured_on():
    asked = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    rng = random.Random(0)
    made = {seeds.question(rng)[0] for _ in range(20_000)}
    assert not made & set(asked) and len(made) > 5_000
    topics = "rainbow|leap year|virus|refrigerator|inflation|palindrome|fibonacci|csv|salar|duplicate|ocean|sleep"
    topics = f"{topics}|south america|snack|birthday|job interview|lonely".split("|")
    assert not [t for t in topics if any(t in m.lower() for m in made)]
    assert {seeds.question(rng)[1] for _ in range(500)} == set(seeds.KINDS)


# --- loss and training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tv", [False, True])
def test_the_loss_and_its_gradient_are_those_of_the_formula(tv):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 8, generator=generator).requires_grad_()
    head = torch.randn(20, 8, generator=generator).requires_grad_()
    p = torch.randn(300, 6, generator=generator).softmax(-1)
    slots = torch.stack([torch.randperm(20, generator=generator)[:6] for _ in range(300)]).int()
    slots[:, 5] = -1
    weight = torch.rand(300, generator=generator)
    loss, alpha = distance(hidden, head, slots, p, weight, tv)
    got = torch.autograd.grad(loss, (hidden, head))
    has = slots >= 0
    logs = (hidden @ head.T).log_softmax(-1).gather(1, slots.clamp(min=0).long())
    kept = (torch.minimum(p, logs.exp()) * has).sum(-1)
    r = p * has / (p * has).sum(-1, keepdim=True)
    wanted = (1 - kept) if tv else (torch.where(has, r * (r.clamp(min=1e-9).log() - logs), 0.0)).sum(-1)
    wanted = (wanted * weight).sum() / weight.sum()
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-5)
    assert alpha.item() == pytest.approx(((kept * weight).sum() / weight.sum()).item(), abs=1e-5)
    for a, b in zip(got, torch.autograd.grad(wanted, (hidden, head)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_training_that_was_stopped_goes_on_and_comes_to_the_same(parts, tmp_path, monkeypatch):
    model, tokenizer = parts
    corpus.grow(model, tokenizer, tmp_path, range(2), seed=1, rows=4, length=48)
    learnt, held = (train.read(tmp_path, 2, held_out) for held_out in (False, True))
    vocab, recipe = model.config.vocab_size, Recipe(hidden=64, layers=1, vocab_top=256, passes=12, batch=96)
    kept = train.frequent(learnt, vocab, 256)
    data, held_out = (train.by_length(s, kept, vocab) for s in (learnt, held))

    def fresh_draft():
        return train.new_draft(recipe, model.get_input_embeddings().weight, kept, 512)

    whole, curve = fresh_draft(), None
    curve = train.train(whole, data, held_out, recipe, tmp_path / "whole.pt")
    seen, evaluate = [], train.evaluate

    def killed(*args):
        seen.append(args)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return evaluate(*args)

    monkeypatch.setattr(train, "evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        train.train(fresh_draft(), data, held_out, recipe, tmp_path / "part.pt")
    monkeypatch.setattr(train, "evaluate", evaluate)
    resumed = fresh_draft()
    assert train.train(resumed, data, held_out, recipe, tmp_path / "part.pt") == curve
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
