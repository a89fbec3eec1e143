"""The set-up: one place of pins, a set-up that is done once, and a JupyterLab that answers."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from conftest import chromium_path

REPOSITORY = Path(__file__).parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(
    line.split("==")
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
DIRECT = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def environment(**more: str) -> dict[str, str]:
    """This process's environment less what `make test` passed on to it, which would change a second make."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return {**kept, **more}


@pytest.fixture
def set_up() -> None:
    """For tests that call make: only where make's own environment runs them, lest they build one."""
    if Path(sys.prefix) != REPOSITORY / ".venv" or not (REPOSITORY / ".venv" / "ready").exists():
        word = "the tests do not run in the .venv that `make setup` makes"
        if os.environ.get("CI"):
            pytest.fail(word)
        pytest.skip(word)


def test_every_direct_dependency_has_a_pin_and_no_version_of_its_own():
    names = {normal(name) for name in PINS}
    for name in DIRECT:
        assert re.fullmatch(r"[\w.-]+", name), f"{name!r} in pyproject.toml: versions live in constraints.txt"
        assert normal(name) in names, f"{name} has no pin in constraints.txt"
    assert len(names) == len(PINS), "a package is pinned twice"


def test_every_pin_is_exact_and_without_a_build_label():
    for name, version in PINS.items():
        assert re.fullmatch(r"\d[\w.]*", version), f"{name}=={version}"


def test_the_installed_versions_are_the_pinned_ones():
    for name in DIRECT:
        assert metadata.version(name).partition("+")[0] == {normal(n): v for n, v in PINS.items()}[normal(name)]


def test_nothing_is_pinned_that_nothing_here_requires():
    wanted, queue = set(), [normal(name) for name in DIRECT]
    while queue:
        name = queue.pop()
        if name in wanted:
            continue
        wanted.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        # Extras count as wanted: jsonschema[format] and its kind bring packages that are really installed.
        queue += [normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements]
    assert not {normal(name) for name in PINS} - wanted


def test_the_conda_environment_takes_every_version_from_the_constraints():
    wanted = yaml.safe_load((REPOSITORY / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    python, pip, by_pip = wanted
    assert pip == "pip"
    # The same packages as `make setup` asks for, under the same constraints file.
    assert by_pip == {"pip": ["-c constraints.txt", "-e .[dev]"]}
    version = re.fullmatch(r"python=(3\.\d+)", python)[1]
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert int(low) <= int(version.split(".")[1]) < int(high)
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert "-c constraints.txt -e '.[dev]'" in makefile
    assert f"(3, {low}) <= sys.version_info < (3, {high})" in makefile


def test_no_second_pin_in_any_file_that_installs_something():
    # pip's and conda's way of writing a version, for any package that constraints.txt pins.
    names = "|".join(re.escape(name) for name in PINS)
    pin = re.compile(rf"(?<![\w-])({names})(\[[\w,]+\])?\s*(==|~=|>=|<=)\s*\d", re.IGNORECASE)
    for name in ("environment.yml", "Makefile", "README.md", "CONTRIBUTING.md", "docs/vllm.md", ".ci/run"):
        for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines():
            assert not pin.search(line), f"{name}: {line}"
    for line in DIRECT:
        assert not pin.search(line)


def test_make_alone_explains_its_targets():
    shown = subprocess.run(["make"], cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=True)
    for target in ("setup", "lab", "test", "outputs", "lint", "format", "doctor", "clean"):
        assert re.search(rf"^  make {target} +\S", shown.stdout, re.MULTILINE), target


def test_a_python_that_does_not_fit_is_refused_in_one_sentence(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ended = subprocess.run(
        ["make", "setup", f"PYTHON={old}"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert ended.returncode != 0 and not (tmp_path / ".venv").exists()
    sentence = ended.stderr.splitlines()[0]
    assert "Python 3.11 to 3.14" in sentence and "make PYTHON=" in sentence


def test_a_second_setup_has_nothing_to_do(set_up):
    before = (REPOSITORY / ".venv" / "ready").stat().st_mtime_ns
    ended = subprocess.run(["make", "setup"], cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    # Make's own word that not one command was run.
    assert re.fullmatch(r"make(\[\d+\])?: Nothing to be done for 'setup'\.", ended.stdout.strip())
    assert (REPOSITORY / ".venv" / "ready").stat().st_mtime_ns == before


def test_only_what_changed_is_work_again(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    ready, weights = tmp_path / ".venv" / "ready", tmp_path / "cache"
    ready.parent.mkdir()
    weights.mkdir()
    ready.write_text(f"{tmp_path}\n")
    (tmp_path / ".venv" / "weights").symlink_to(weights)

    def work(*more: str) -> bool:
        return bool(subprocess.run(["make", "-q", "setup", *more], cwd=tmp_path, env=environment()).returncode)

    assert not work()
    # -W: as if the file had just been changed.
    assert work("-W", "constraints.txt") and work("-W", "pyproject.toml")
    weights.rmdir()
    assert work(), "the cache was emptied"
    weights.mkdir()
    ready.write_text("/where/the/repository/was/before\n")
    assert work(), "the repository was moved"


def test_the_style_and_the_notebooks_pass_the_lint(set_up):
    ended = subprocess.run(["make", "lint"], cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS opens its browser without these variables")
@pytest.mark.parametrize("display", [None, "DISPLAY", "WAYLAND_DISPLAY"])
def test_make_lab_opens_a_browser_where_there_is_a_display(display):
    kept = {name: value for name, value in environment().items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    seen = {**kept, display: ":0"} if display else kept
    said = subprocess.run(["make", "-n", "lab"], cwd=REPOSITORY, env=seen, capture_output=True, text=True, check=True)
    (command,) = (line for line in said.stdout.splitlines() if "jupyterlab notebooks" in line)
    assert ("--no-browser" in command) == (display is None)


def test_the_licence_and_the_changelog_are_here():
    assert re.match(r"\s+Apache License\s+Version 2\.0, January 2004", (REPOSITORY / "LICENSE").read_text())
    assert PROJECT["license"] == "Apache-2.0" and metadata.metadata("speclib")["License-Expression"] == "Apache-2.0"
    newest = re.search(r"^## (\S+?),? ", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == PROJECT["version"]


def test_without_a_browser_ci_fails_and_a_reader_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    find, ends = chromium_path.__wrapped__, {"true": pytest.fail.Exception, "": pytest.skip.Exception}
    for ci, end in ends.items():
        monkeypatch.setenv("CI", ci)
        # Both are caught: a skip that went through would skip this test, too.
        with pytest.raises(tuple(ends.values()), match="no Chromium or Chrome on the PATH: install one") as told:
            find()
        assert told.type is end
    (tmp_path / "chromium").touch(mode=0o755)
    assert find() == str(tmp_path / "chromium")


def test_make_lab_serves_the_notebooks(set_up, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = f"--no-browser --port {port} --ServerApp.port_retries=0 --IdentityProvider.token=lab"
    folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    # Its own session: the server is a grandchild of this test, and is ended with make, by make's id.
    with (tmp_path / "log").open("w") as log:
        lab = subprocess.Popen(
            ["make", "lab", f"LAB_ARGS={arguments}"],
            cwd=REPOSITORY,
            env=environment(**folders),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert '"started"' in answer(lab, f"http://127.0.0.1:{port}/api/status?token=lab", tmp_path / "log")
        listing = answer(lab, f"http://127.0.0.1:{port}/api/contents?token=lab", tmp_path / "log")
        assert "01_distributions.ipynb" in listing
    finally:
        os.killpg(lab.pid, signal.SIGTERM)
        lab.wait(timeout=30)


def answer(lab: subprocess.Popen, url: str, log: Path) -> str:
    """The page at url, once the server is up."""
    for _ in range(300):
        assert lab.poll() is None, log.read_text()
        try:
            return urllib.request.urlopen(url, timeout=10).read().decode()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"no answer within a minute: {log.read_text()}")
