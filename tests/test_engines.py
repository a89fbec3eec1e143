"""The commands that start other servers with matching speculation; vLLM itself is run only where it is installed."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from test_draft import KEPT, fresh, tiny_draft
from tiny import save
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from speclib import cli, engines, pairs
from speclib.engines import plain_draft


@pytest.fixture
def names(tmp_path):
    return save(tmp_path / "target"), save(tmp_path / "draft", seed=1)


def command(engine, pair, drafter, k=4):
    return engines.command(engine, pair, drafter, k, "127.0.0.1", 8000)


def config(words):
    return json.loads(words[words.index("--speculative-config") + 1])


def option(words, name):
    return words[words.index(name) + 1]


def test_vllm_gets_the_same_models_and_the_same_k(names):
    pair = ",".join(names)
    words = command("vllm", pair, "model", 5)
    assert words[:3] == ["vllm", "serve", names[0]] and option(words, "--port") == "8000"
    assert config(words) == {"method": "draft_model", "model": names[1], "num_speculative_tokens": 5}
    assert config(command("vllm", pair, "lookup", 3)) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    assert "--speculative-config" not in command("vllm", pair, "none", 0)


def test_sglang_drafts_a_chain_of_k(names):
    words = command("sglang", ",".join(names), "model", 5)
    assert option(words, "--model-path") == names[0] and option(words, "--speculative-algorithm") == "STANDALONE"
    assert option(words, "--speculative-draft-model-path") == names[1]
    chain = [option(words, f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert chain == ["5", "1", "6"]
    assert option(command("sglang", ",".join(names), "lookup"), "--speculative-algorithm") == "NGRAM"
    assert not any("speculative" in word for word in command("sglang", ",".join(names), "none"))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_model_is_called_what_speclib_calls_it(engine, names):
    """A folder's path would put the rows of one model into two tables of the scoreboard."""
    assert option(command(engine, "smol", "none"), "--served-model-name") == "SmolLM2-135M-Instruct"
    assert option(command(engine, "llama", "none"), "--served-model-name") == "meta-llama/Llama-3.1-8B-Instruct"
    assert option(command(engine, ",".join(names), "none"), "--served-model-name") == names[0]


def test_presets_go_by_their_names_on_the_hub():
    words = command("vllm", "llama", "model")
    assert (
        words[2] == "meta-llama/Llama-3.1-8B-Instruct" and config(words)["model"] == "meta-llama/Llama-3.2-1B-Instruct"
    )
    assert config(command("vllm", "llama", "eagle"))["method"] == "eagle3"
    assert option(command("sglang", "llama", "eagle"), "--speculative-algorithm") == "EAGLE3"
    assert command("vllm", "smol", "lookup")[2] == str(pairs.fetch("smol")[0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tgi", "llama", "model"), "no engine 'tgi': choose speclib, vllm, sglang"),
        (("vllm", "llama", "lookup+model"), "vllm has no drafter 'lookup.model'"),
        (("vllm", "qwen", "eagle"), "no EAGLE head is known for the pair qwen"),
        (("vllm", "llama", "model", 0), "at least one draft"),
        (("vllm", "smoll", "model"), "no pair 'smoll'"),
    ],
)
def test_what_does_not_go_is_one_sentence(arguments, says):
    with pytest.raises(ValueError, match=says):
        command(*arguments)


def test_a_cut_draft_is_handed_over_as_a_plain_llama(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECLIB_CACHE", str(tmp_path / "cache"))
    tiny_draft().save_pretrained(tmp_path / "draft")
    made = [plain_draft(str(tmp_path / "draft")) for _ in range(2)]
    assert made[0] == made[1] and [str(f) for f in (tmp_path / "cache").iterdir()] == made[:1]
    model = AutoModelForCausalLM.from_pretrained(made[0])
    assert type(model) is LlamaForCausalLM
    assert torch.allclose(fresh(model, [5, 6, 7])[KEPT], fresh(tiny_draft(), [5, 6, 7])[KEPT], atol=1e-3)
    assert plain_draft("meta-llama/Llama-3.2-1B-Instruct") == "meta-llama/Llama-3.2-1B-Instruct"


def test_a_target_that_is_not_here_is_to_be_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECLIB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"run `\S*speclib fetch smol`"):
        command("vllm", "smol", "lookup")


def program(folder, text):
    file = folder / "vllm"
    file.write_text(f"#!{sys.executable}\n{text}\n")
    file.chmod(0o755)


def run(monkeypatch, capfd, *arguments):
    monkeypatch.setattr(sys, "argv", ["speclib", "serve", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capfd.readouterr().out


def test_the_command_line_runs_vllm_where_it_is_and_prints_the_command_where_it_is_not(
    names, monkeypatch, capfd, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engines.sys, "executable", str(tmp_path / "python"))
    arguments = ("--pair", ",".join(names), "--engine", "vllm", "--drafter", "lookup", "--k", "2", "--port", "9")
    status, out = run(monkeypatch, capfd, *arguments)
    assert status == 0 and out.startswith(f"vllm serve {names[0]} ") and "not installed" in out
    assert " --host 127.0.0.1 --port 9 " in out
    status, out = run(monkeypatch, capfd, *arguments, "--engine", "sglang")
    assert status == 0 and "sglang.launch_server" in out and "not run" in out

    monkeypatch.undo()
    program(tmp_path, "import sys; print('ran', sys.argv[1:3]); sys.exit(7)")
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    status, out = run(monkeypatch, capfd, *arguments)
    assert status == 7 and f"ran ['serve', '{Path(names[0])}']" in out
