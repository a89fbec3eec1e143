"""The distilled draft: transformers and the lean context say the same; the cut vocabulary costs no exactness."""

from functools import lru_cache

import pytest
import torch
from tiny import tiny_llama
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from speclib import pairs
from speclib.context import as_context
from speclib.decode import decode, spec_greedy
from speclib.distributions import Sampling
from speclib.draft import DraftConfig, DraftForCausalLM, as_llama
from speclib.drafters import ModelDrafter
from speclib.exactness import largest_difference, sequence_distribution, target_distribution
from speclib.lean import LeanContext
from speclib.stopping import Stop
from speclib.toy import TableLM

KEPT = [1, 3, *range(5, 43)]


@lru_cache
def tiny_draft(vocab=64, kept=tuple(KEPT), kv_heads=2):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = DraftConfig(
            vocab_size=vocab,
            head_size=len(kept),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            max_position_embeddings=600,
            initializer_range=0.4,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = DraftForCausalLM(config).eval().requires_grad_(False)
        model.lm_head.kept.copy_(torch.tensor(kept))
    return model


def fresh(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float()


@pytest.mark.parametrize("model", [tiny_draft(), tiny_draft(kept=(2, 9, 63), kv_heads=4)])
def test_as_a_plain_llama_it_says_the_same_and_never_what_has_no_row(model):
    llama = as_llama(model)
    assert type(llama) is LlamaForCausalLM
    kept = model.lm_head.kept
    for text in ([5], [5, 6, 7], list(range(64))):
        logits, plain = fresh(model, text), fresh(llama, text)
        assert torch.allclose(plain[kept], logits[kept], atol=1e-3)
        assert (plain[~torch.isfinite(logits)] < -1e4).all()
        assert torch.allclose(plain.softmax(-1), logits.softmax(-1), atol=1e-4)


def test_what_has_no_row_is_impossible_and_nothing_else():
    logits = fresh(tiny_draft(), [5, 6, 7])
    assert torch.isfinite(logits).nonzero()[:, 0].tolist() == KEPT


def test_a_folder_gives_the_same_draft_back(tmp_path):
    tiny_draft().save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, DraftForCausalLM)
    assert torch.equal(fresh(again, [1, 2, 3]), fresh(tiny_draft(), [1, 2, 3]))


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.6, top_k=3), Sampling(0.0)], ids=["T=1", "top-k", "greedy"]
)
@pytest.mark.parametrize("k", [1, 2])
def test_a_cut_vocabulary_leaves_the_output_exact(k, sampling):
    draft, target = tiny_draft(vocab=4, kept=(0, 2)), TableLM(4, seed=1)

    def run(rng):
        target.rollback(0)
        rounds = decode(target, ModelDrafter(draft), [0, 1], k=k, sampling=sampling, stop=Stop(3), rng=rng)
        return [t for r in rounds for t in r.tokens]

    output, wanted = sequence_distribution(run), target_distribution(target, [0, 1], sampling, 3)
    assert largest_difference(output, wanted) < 1e-6
    if sampling.temperature:
        assert any({1, 3} & set(text) for text in output)  # said though the draft cannot


def test_a_draft_in_bf16_runs_on_a_cpu_that_lays_out_no_bf16_weights(monkeypatch):
    def refused(*args):
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs avx512bw, avx512vl and avx512dq")

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refused)
    model = DraftForCausalLM(tiny_draft().config).eval().requires_grad_(False)
    model.load_state_dict(tiny_draft().state_dict())
    rows = as_context(model.bfloat16()).feed([5, 6, 7])
    assert torch.isfinite(rows[-1]).nonzero()[:, 0].tolist() == KEPT
    assert torch.allclose(rows[-1].softmax(-1), fresh(tiny_draft(), [5, 6, 7]).softmax(-1), atol=0.05)


def test_transformers_assisted_generation_takes_it():
    target, prompt = tiny_llama(), torch.tensor([[1, 2, 3, 4]])
    plain = target.generate(prompt, max_new_tokens=12, do_sample=False)
    assisted = target.generate(prompt, max_new_tokens=12, do_sample=False, assistant_model=tiny_draft())
    assert torch.equal(plain, assisted)


# --- the draft that ships -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smol():
    return pairs.load("smol", dtype=torch.float32)


def test_the_shipped_draft_loads_and_is_small(smol):
    assert isinstance(as_context(smol.draft), LeanContext)
    size = {f.name: f.stat().st_size for f in smol.folders[1].iterdir()}
    assert {"config.json", "model.safetensors", "README.md", "tokenizer.json"} <= set(size)
    size.pop("ngram.safetensors", None)  # written beside a draft that is distilled here, and not shipped
    assert sum(size.values()) <= 40_000_000
    assert not any(word in (smol.folders[1] / "README.md").read_text() for word in ("/work", "/home", "/tmp"))


@pytest.mark.parametrize("text", ["Why is the sky blue?", "Write a haiku about rain."])
def test_in_fp32_the_smol_pair_says_what_its_target_says(smol, text):
    ids = smol.chat_ids(text)
    tokens, stats = spec_greedy(smol.target, smol.draft, ids, max_new=32, K=3)
    plain = smol.target.generate(
        torch.tensor([ids]), max_new_tokens=32, do_sample=False, eos_token_id=-1, attention_mask=torch.ones(1, len(ids))
    )
    assert tokens == plain[0, len(ids) :].tolist()
    assert sum(r.accepted for r in stats.rounds) > 0
