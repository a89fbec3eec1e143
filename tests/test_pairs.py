"""The two models: presets, loading, and one tokenizer or a clear refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import transformers
from tiny import MERGES, save, tiny_llama, tiny_tokenizer
from tokenizers import AddedToken, normalizers

from speclib import pairs, weights
from speclib.pairs import PRESETS, PairError, check_tokenizers

pytestmark = pytest.mark.usefixtures("plain_environment")


# Names


def test_presets_are_those_of_the_design():
    assert list(PRESETS) == ["smol", "llama", "qwen"]
    assert PRESETS["llama"].target.label == "meta-llama/Llama-3.1-8B-Instruct"
    assert PRESETS["llama"].draft.label == "meta-llama/Llama-3.2-1B-Instruct"
    assert PRESETS["qwen"].target.label == "Qwen/Qwen2.5-7B-Instruct"
    assert PRESETS["qwen"].draft.label == "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.mark.parametrize("name", ["smoll", "a,b,c", "a,", ",b", " , ", "Qwen/Qwen2.5-7B-Instruct"])
@pytest.mark.parametrize("call", [pairs.load, pairs.fetch, pairs.status])
def test_a_bad_preset_is_one_sentence_with_the_choices(call, name):
    with pytest.raises(ValueError, match=r"there is no pair .*: choose smol, llama, qwen, .*TARGET,DRAFT") as e:
        call(name)
    assert "\n" not in str(e.value)


def test_a_bad_name_in_the_environment_is_the_same_sentence(monkeypatch):
    monkeypatch.setenv("SPECLIB_PAIR", "smoll")
    with pytest.raises(ValueError, match="there is no pair 'smoll'"):
        pairs.load()


def test_what_is_no_name_is_refused():
    with pytest.raises(TypeError, match="not int"):
        pairs.load(3)
    with pytest.raises(ValueError, match="neither a folder nor a hub name"):
        pairs.status("what is this?,Qwen/Qwen2.5-0.5B-Instruct")


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("SPECLIB_CACHE", "/some/where")
    assert pairs.cache_dir() == Path("/some/where")
    monkeypatch.delenv("SPECLIB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert pairs.cache_dir() == Path("/xdg/speclib")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert pairs.cache_dir() == Path.home() / ".cache" / "speclib"


# Loading two folders


def test_two_folders_load_as_a_pair(tmp_path, capfd):
    name = f"{save(tmp_path / 'big', seed=1)},{save(tmp_path / 'small', layers=1)}"
    verbosity = transformers.logging.get_verbosity()
    pair = pairs.load(name, dtype=torch.float32, device="cpu")
    assert (pair.name, pair.dtype, pair.device) == (name, torch.float32, torch.device("cpu"))
    assert "target" not in vars(pair) and "draft" not in vars(pair), "weights wait until they are asked for"
    assert pair.target is pair.target and pair.draft is not pair.target
    for model, layers in ((pair.target, 2), (pair.draft, 1)):
        assert model.config.num_hidden_layers == layers
        assert model.dtype == torch.float32 and not model.training
        assert not any(p.requires_grad for p in model.parameters())
    assert torch.equal(pair.target.lm_head.weight, tiny_llama(1, vocab=320).lm_head.weight)
    assert pair.chat_ids("hi") == pair.tokenizer.encode("<s>hi</s>")
    assert capfd.readouterr() == ("", ""), "a notebook's output must not depend on loading"
    assert transformers.logging.get_verbosity() == verbosity
    assert transformers.logging.is_progress_bar_enabled()
    state = pairs.status(name)
    assert state.target_ready and state.draft_ready and state.target_detail == str(tmp_path / "big")


def test_quiet_leaves_a_users_settings_alone():
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_info()
    try:
        with weights.quiet():
            assert transformers.logging.get_verbosity() == transformers.logging.ERROR
        assert transformers.logging.get_verbosity() == transformers.logging.INFO
        assert not transformers.logging.is_progress_bar_enabled()
    finally:
        transformers.logging.enable_progress_bar()
        transformers.logging.set_verbosity_warning()


def test_one_folder_as_both_is_one_model(tmp_path):
    folder = save(tmp_path / "m")
    pair = pairs.load(f"{folder},{folder}", dtype=torch.float32)
    assert pair.draft is pair.target


def test_embeddings_of_unequal_width_pass(tmp_path):
    name = f"{save(tmp_path / 'a', vocab=320)},{save(tmp_path / 'b', vocab=288)}"
    pair = pairs.load(name, dtype=torch.float32)
    assert (pair.target.config.vocab_size, pair.draft.config.vocab_size) == (320, 288)


def test_a_folder_that_is_not_there_or_not_whole_is_named(tmp_path):
    good = save(tmp_path / "good")
    with pytest.raises(PairError, match=f"there is no folder {tmp_path}/none"):
        pairs.load(f"{good},{tmp_path}/none")
    assert not pairs.status(f"{good},{tmp_path}/none").draft_ready
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        broken = Path(save(tmp_path / f"no-{name}"))
        (broken / name).unlink()
        with pytest.raises(PairError, match=f"there is no {name.removesuffix('.json')}"):
            pairs.load(f"{good},{broken}")


def test_an_absent_shard_is_named(tmp_path):
    folder = Path(save(tmp_path / "m"))
    (folder / "model.safetensors").unlink()
    tiny_llama(vocab=320).save_pretrained(folder, max_shard_size="20KB")
    assert weights.missing(folder) is None and len(weights.weight_files(folder)) > 1
    weights.weight_files(folder)[1].unlink()
    assert "there is no model-00002-of" in weights.missing(folder)


def test_a_download_that_broke_off_before_its_index_is_begun_again(tmp_path, monkeypatch):
    folder, calls = Path(save(tmp_path / "m")), []
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert "there is no model.safetensors" in weights.missing(folder)

    def download(repo, **kwargs):
        calls.append(repo)
        return save(tmp_path / "whole")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, name: str(folder / name))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert not weights.Hub("a/b").ready()[0]
    assert weights.Hub("a/b").fetch() == tmp_path / "whole" and calls == ["a/b"]


def test_a_command_is_named_as_the_readers_shell_finds_it(tmp_path, monkeypatch):
    folder = tmp_path / "here" / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "speclib").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    assert weights.fetching("qwen") == "run `.venv/bin/speclib fetch qwen`"
    assert weights.command("hf auth login") == "`hf auth login`", "it is not there either"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert weights.fetching() == f"run `{folder}/speclib fetch`"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{folder}")
    assert weights.fetching() == "run `speclib fetch`"


def test_a_cut_weight_file_is_one_sentence(tmp_path):
    folder = Path(save(tmp_path / "m"))
    data = (folder / "model.safetensors").read_bytes()
    for keep in (len(data) - 100, 50, 4):
        (folder / "model.safetensors").write_bytes(data[:keep])
        with pytest.raises(PairError, match=r"cannot be loaded from .*: save or fetch it anew") as e:
            _ = pairs.load(f"{folder},{folder}").target
        assert "\n" not in str(e.value)


def test_weights_that_lack_a_tensor_are_refused_not_filled_at_random(tmp_path):
    folder = Path(save(tmp_path / "m"))
    state = {k: v for k, v in tiny_llama(vocab=320).state_dict().items() if "layers.1.mlp.up" not in k}
    tiny_llama(vocab=320).save_pretrained(folder, state_dict=state)
    with pytest.raises(PairError, match=r"no weights for model.layers.1.mlp.up_proj.weight"):
        _ = pairs.load(f"{folder},{folder}").target


def test_a_model_larger_than_the_free_memory_is_refused_before_loading(tmp_path, monkeypatch):
    folder = save(tmp_path / "m")
    count = sum(p.numel() for p in tiny_llama(vocab=320).parameters())
    assert weights.parameters(Path(folder)) == count
    import psutil

    free = 4 * count - 1
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    with pytest.raises(PairError, match=r"in float32 needs 0\.0 GB, and 0\.0 GB are free on cpu: .*smol"):
        _ = pairs.load(f"{folder},{folder}", dtype=torch.float32).target
    assert pairs.load(f"{folder},{folder}", dtype=torch.bfloat16).target.dtype == torch.bfloat16


def test_a_bad_device_or_dtype_is_refused(tmp_path):
    folder = save(tmp_path / "m")
    for device in ("gpu", "cuda:99"):
        with pytest.raises(ValueError, match="there is no "):
            pairs.load(f"{folder},{folder}", device=device)
    for dtype in ("float32", torch.int8):
        with pytest.raises(TypeError, match=r"floating torch.dtype"):
            pairs.load(f"{folder},{folder}", dtype=dtype)


# One tokenizer


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"swap": True}, "id 10 is '(.)' in the first, '(.)' in the second"),
        ({"merges": (*MERGES, ("a", "z"))}, "id \\d+ is "),
        ({"added": ["<tool>"]}, "id \\d+ is 'absent' in the first, '<tool>' in the second"),
        ({"added": [AddedToken("<s>", special=True, rstrip=True)]}, "added token 1 is "),
        ({"eos_token": "<s>"}, "special token eos_token is '</s>' in the first, '<s>' in the second"),
        ({"bos_token": "</s>"}, "special token bos_token is '<s>' in the first, '</s>' in the second"),
        ({"pad_token": "</s>"}, "special token pad_token is 'absent' in the first"),
        ({"merges": (MERGES[3], *MERGES[:3])}, "probe text, token \\d+ is"),
        ({"normalizer": normalizers.Lowercase()}, "probe text, token \\d+ is"),
    ],
    ids=["swapped", "token more", "added", "flags", "eos", "bos", "pad", "merges", "normaliser"],
)
def test_different_tokenizers_are_refused_by_name(tmp_path, other, difference):
    a, b = save(tmp_path / "a"), save(tmp_path / "b", tiny_tokenizer(**other))
    match = f"{a} and {b} have different tokenizers: {difference}.*choose a draft with the target's tokenizer"
    with pytest.raises(ValueError, match=match) as e:
        pairs.load(f"{a},{b}")
    assert "\n" not in str(e.value)


def test_the_same_tokenizer_passes_and_names_can_be_given():
    check_tokenizers(tiny_tokenizer(), tiny_tokenizer(template=None))
    with pytest.raises(ValueError, match=r"^big and small have different tokenizers"):
        check_tokenizers(tiny_tokenizer(), tiny_tokenizer(swap=True), names=("big", "small"))
    with pytest.raises(ValueError, match=r"^the target and the draft have different tokenizers"):
        check_tokenizers(tiny_tokenizer(), tiny_tokenizer(swap=True))


# chat_ids


@pytest.fixture
def tiny_pair(tmp_path):
    folder = save(tmp_path / "m")
    return pairs.load(f"{folder},{folder}", dtype=torch.float32)


def test_chat_ids_with_a_mapping_and_with_a_list(tiny_pair, monkeypatch):
    want = tiny_pair.tokenizer.encode("<s>hi there</s>")
    assert tiny_pair.chat_ids("hi there") == want
    for answer in ({"input_ids": want, "attention_mask": [1] * len(want)}, want, torch.tensor(want)):
        monkeypatch.setattr(tiny_pair.tokenizer, "apply_chat_template", lambda *a, _r=answer, **k: _r)
        got = tiny_pair.chat_ids("hi there")
        assert got == want and all(type(i) is int for i in got)


def test_chat_ids_refuses_what_is_no_text(tiny_pair):
    for text in (None, 3, ["hi"], b"hi"):
        with pytest.raises(TypeError, match="as a str, not"):
            tiny_pair.chat_ids(text)
    for text in ("", "  \n"):
        with pytest.raises(ValueError, match="not empty"):
            tiny_pair.chat_ids(text)
    tiny_pair.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        tiny_pair.chat_ids("hi")


# Precision


@pytest.mark.parametrize(
    ("flags", "dtype", "reason"),
    [
        (
            {"avx2": True, "amx_bf16": True, "avx512_bf16": True},
            torch.bfloat16,
            "bf16 instructions (amx_bf16)",
        ),
        ({"avx2": True, "avx512_bf16": True}, torch.bfloat16, "bf16 instructions (avx512_bf16)"),
        ({"avx512_f": True, "amx_bf16": False, "avx512_bf16": False}, torch.float32, "no bf16 instructions"),
        ({"neon": True, "bf16": True}, torch.bfloat16, "bf16 instructions (bf16)"),
        ({"neon": True, "bf16": False}, torch.float32, "no bf16 instructions"),
    ],
)
def test_precision_follows_the_cpus_instructions(monkeypatch, flags, dtype, reason):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    got, why = pairs.default_dtype(torch.device("cpu"))
    assert got == dtype and reason in why


def test_precision_on_other_devices_and_by_force(monkeypatch):
    assert pairs.default_dtype(torch.device("cuda")) == (torch.bfloat16, "a CUDA device")
    assert pairs.default_dtype("mps")[0] == torch.float32
    monkeypatch.setenv("SPECLIB_DTYPE", "float32")
    assert pairs.default_dtype("cuda") == (torch.float32, "SPECLIB_DTYPE=float32")
    monkeypatch.setenv("SPECLIB_DTYPE", "bfloat16")
    assert pairs.default_dtype("cpu")[0] == torch.bfloat16
    monkeypatch.setenv("SPECLIB_DTYPE", "half")
    with pytest.raises(ValueError, match="SPECLIB_DTYPE is 'half': set it to float32 or bfloat16"):
        pairs.default_dtype("cpu")


def test_the_default_device_is_one_that_works():
    assert torch.zeros(1, device=pairs.default_device()).item() == 0


# smol, the real one: from the user's own cache, so that it is converted once per machine


def test_smol_has_its_draft_with_it():
    state = pairs.status("smol")
    assert state.draft_ready and state.draft_detail == str(pairs.PRESETS["smol"].draft.path)
    assert pairs.PRESETS["smol"].target.size == 92_871_040


@pytest.fixture(scope="module")
def smol():
    return pairs.load("smol", device="cpu")


def test_smol_is_fetched_once_and_loads(smol, capfd):
    assert pairs.fetch("smol") == smol.folders
    fresh = pairs.load("smol", device="cpu")
    start = time.perf_counter()
    _ = fresh.target
    seconds = time.perf_counter() - start
    assert capfd.readouterr() == ("", "")
    with capfd.disabled():  # the course says about one second; a busy machine must not fail here
        print(f"\nsmol's target loaded in {seconds:.1f} s")
    state = pairs.status()
    assert state.target_ready and "4-bit Q4_1, dequantised to bf16" in state.target_detail
    config = json.loads((smol.folders[0] / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["vocab_size"] == 49_152
    assert len(smol.tokenizer) == 49_152
    assert sum(p.numel() for p in smol.target.parameters()) == 134_515_008
    assert state.draft_ready and smol.draft.config.vocab_size == 49_152


def test_smol_speaks_chat_and_knows_paris(smol):
    ids = smol.chat_ids("hi")
    assert smol.tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        smol.tokenizer.decode(smol.tokenizer.encode("Numbers 12345,  naïve 東京\n\n"))
        == "Numbers 12345,  naïve 東京\n\n"
    )
    prompt = torch.tensor([smol.tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        p = smol.target(prompt).logits[0, -1].float().softmax(-1)
    assert smol.tokenizer.decode(p.argmax()) == " Paris"
    assert p.max().item() == pytest.approx(0.76, abs=0.03)


def test_importing_pairs_and_asking_for_the_status_loads_no_torch():
    code = "import sys; from speclib import pairs; pairs.status(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": ""})
