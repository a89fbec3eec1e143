"""The command line and the import: quick to start, and one line for a bad input."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

import speclib
from speclib import cli


def quickest(command: list[str], tries: int = 5) -> float:
    """Seconds of the processor in the quickest try: a busy machine makes a process wait, and hardly work more."""
    seconds = []
    for _ in range(tries):
        before = os.times()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    return min(seconds)


def run_main(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["speclib", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_import_is_quick_and_leaves_torch_alone():
    assert quickest([sys.executable, "-c", "import speclib"]) < 0.3
    code = "import speclib, sys; dir(speclib); assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_is_quick_and_names_the_commands():
    command = [sys.executable, "-m", "speclib.cli", "--help"]
    assert quickest(command) < 0.5
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "fetch" in shown and "doctor" in shown
    code = "from speclib import cli; import sys; sys.argv[1:] = ['--help']\ntry: cli.main()\nexcept SystemExit: pass\n"
    code += "assert not {'rich', 'torch'} & set(sys.modules), 'this takes longer than everything else together'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_public_name_is_where_it_is_said_to_be():
    for name in speclib.__all__:
        assert getattr(speclib, name) is not None, name
        assert name in dir(speclib)


def test_an_unknown_name_is_refused_with_those_that_exist():
    with pytest.raises(AttributeError, match=r"no 'wrap'; it offers .*warp"):
        _ = speclib.wrap


def test_a_submodule_that_lacks_a_package_says_which():
    # In a process of its own: here the module may be loaded already.
    code = "import sys, speclib; sys.modules['psutil'] = None; speclib.cost"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1 and "psutil" in ended.stderr.splitlines()[-1]


def test_version(monkeypatch, capsys):
    assert run_main(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.strip() == importlib.metadata.version("speclib")


def test_no_command_shows_the_help(monkeypatch, capsys):
    assert run_main(monkeypatch) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nope"], ["doctor", "--nope"], ["fetch", "smol", "more"]])
def test_a_wrong_command_is_one_line_and_status_2(monkeypatch, capsys, arguments):
    assert run_main(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("speclib: ") and err.count("\n") == 1


def test_a_bad_pair_is_one_line_and_status_2_without_a_traceback():
    environment = {**os.environ, "SPECLIB_PAIR": "smoll"}
    environment.pop("SPECLIB_DEBUG", None)
    command = [sys.executable, "-m", "speclib.cli", "fetch"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.startswith("speclib: ") and ended.stderr.count("\n") == 1
    assert "smoll" in ended.stderr


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_the_librarys_errors_become_one_line(monkeypatch, capsys, kind):
    pairs = pytest.importorskip("speclib.pairs")

    def broken(_):
        raise kind("first\nsecond")

    monkeypatch.setattr(pairs, "fetch", broken)
    monkeypatch.delenv("SPECLIB_DEBUG", raising=False)
    assert run_main(monkeypatch, "fetch") == 2
    assert capsys.readouterr().err == "speclib: first second\n"
    monkeypatch.setenv("SPECLIB_DEBUG", "1")
    with pytest.raises(kind):
        cli.main()


def test_a_pair_error_becomes_one_line_and_a_bug_keeps_its_traceback(monkeypatch, capsys):
    from speclib import pairs

    def raising(error):
        def raise_it(_):
            raise error

        return raise_it

    monkeypatch.delenv("SPECLIB_DEBUG", raising=False)
    monkeypatch.setattr(pairs, "fetch", raising(pairs.PairError("the model is gated")))
    assert run_main(monkeypatch, "fetch", "llama") == 2
    assert capsys.readouterr().err == "speclib: the model is gated\n"
    monkeypatch.setattr(pairs, "fetch", raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_the_pair_comes_from_the_argument_then_the_environment_then_smol(monkeypatch, capsys):
    from speclib import pairs

    asked = []
    monkeypatch.setattr(pairs, "fetch", lambda pair: asked.append(pair) or ("/target", None))
    monkeypatch.delenv("SPECLIB_PAIR", raising=False)
    run_main(monkeypatch, "fetch")
    monkeypatch.setenv("SPECLIB_PAIR", "llama")
    run_main(monkeypatch, "fetch")
    run_main(monkeypatch, "fetch", "qwen")
    assert asked == ["smol", "llama", "qwen"]
    assert capsys.readouterr().out == "/target\n" * 3
