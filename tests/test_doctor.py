"""The doctor: it finds what is wrong on purpose here, and nothing can make it fall over."""

from __future__ import annotations

import importlib.metadata as metadata
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace

import huggingface_hub
import psutil
import pytest
import torch

from speclib import cost, doctor

CHECKED = ["Python", "Packages", "Device", "Precision", "Memory speed", "Target", "Draft", "JupyterLab"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No test here needs the memory timed for real but the one that says so."""
    monkeypatch.setattr(cost, "bandwidth", lambda device=None: 50e9)


def named(found: list[doctor.Finding], name: str) -> list[doctor.Finding]:
    return [finding for finding in found if finding.name == name]


def test_this_machine_is_fine():
    found = doctor.findings("smol")
    assert list(dict.fromkeys(finding.name for finding in found)) == CHECKED
    assert not [finding for finding in found if finding.status == "FAIL"]
    assert named(found, "Packages")[0].status == "OK"
    assert "50 GB/s" in named(found, "Memory speed")[0].detail
    # Why this precision: the reason follows the colon.
    assert named(found, "Precision")[0].detail.split(": ")[1]


def test_the_command_prints_a_line_per_finding_and_exits_0():
    command = [sys.executable, "-m", "speclib.cli", "doctor", "--pair", "smol"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) >= len(CHECKED)
    assert all(line.split()[0] in ("OK", "WARN", "FAIL") for line in lines)


def test_another_version_is_a_warning_with_both_versions(monkeypatch):
    pins = {**doctor._pins(), "transformers": "4.57.0"}
    monkeypatch.setattr(doctor, "_pins", lambda: pins)
    (finding,) = named(doctor.findings(), "Packages")
    assert finding.status == "WARN" and finding.remedy
    assert "4.57.0" in finding.detail and metadata.version("transformers") in finding.detail


@pytest.mark.parametrize(("package", "status"), [("kaleido", "FAIL"), ("hypothesis", "WARN")])
def test_a_missing_package_is_named(monkeypatch, package, status):
    real = metadata.version

    def version(name):
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    (finding,) = named(doctor.findings(), "Packages")
    assert finding.status == status and package in finding.detail and finding.remedy
    assert doctor.report() == (status == "FAIL")


def test_without_the_constraints_file_the_versions_are_unchecked(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "CONSTRAINTS", tmp_path / "constraints.txt")
    (finding,) = named(doctor.findings(), "Packages")
    assert finding.status == "WARN" and "constraints.txt" in finding.detail and finding.remedy


def test_an_old_python_fails(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    (finding,) = doctor._python()
    assert finding.status == "FAIL" and "3.10.4" in finding.detail and finding.remedy


def test_no_weights_fails_and_names_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECLIB_CACHE", str(tmp_path))
    (finding,) = named(doctor.findings(), "Target")
    assert finding.status == "FAIL" and "speclib fetch smol" in finding.remedy
    assert not list(tmp_path.iterdir())
    assert doctor.report() == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize("pair", ["/nowhere,/nowhere2", "qwen", "nobody/nothing,/nowhere", "smol"])
def test_whatever_is_not_ok_has_a_remedy_that_fits(monkeypatch, tmp_path, pair):
    monkeypatch.setenv("SPECLIB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    wrong = [f for f in doctor.findings(pair) if f.status != "OK"]
    assert wrong and all(f.remedy for f in wrong)
    for finding in wrong:
        assert finding.name in ("Target", "Draft")
        # No command brings a folder that is not there.
        fetched = "/nowhere" not in finding.detail.removeprefix(f"{pair}: ")
        assert f"speclib fetch {pair}`" in finding.remedy if fetched else "give a folder" in finding.remedy
        assert "run `" not in finding.detail


def test_a_pair_that_does_not_exist_is_refused_before_anything_is_checked(monkeypatch):
    monkeypatch.setattr(doctor, "_python", lambda: pytest.fail("a check ran"))
    with pytest.raises(ValueError, match="smoll"):
        doctor.findings("smoll")


def test_pairs_that_cannot_be_imported_are_findings(monkeypatch):
    monkeypatch.setitem(sys.modules, "speclib.pairs", None)
    monkeypatch.delattr("speclib.pairs", raising=False)
    failed = [finding.name for finding in doctor.findings() if finding.status == "FAIL"]
    assert failed == ["Precision", "Pair"]


def test_an_impossible_precision_is_named(monkeypatch):
    monkeypatch.setenv("SPECLIB_DTYPE", "fp8")
    (finding,) = named(doctor.findings(), "Precision")
    assert finding.status == "FAIL" and "fp8" in finding.detail and "SPECLIB_DTYPE" in finding.remedy


def fake_gpu(monkeypatch, *, integrated: bool) -> None:
    def mem_get_info(_):
        assert not integrated, "CUDA's count is wrong on unified memory"
        return 60 * 10**9, 80 * 10**9

    gpu = SimpleNamespace(name="NVIDIA GB10", is_integrated=integrated)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    memory = namedtuple("memory", "total available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(128 * 10**9, 100 * 10**9))


@pytest.mark.parametrize(("integrated", "sizes"), [(True, "100.0 of 128.0"), (False, "60.0 of 80.0")])
def test_unified_memory_is_counted_by_the_system(monkeypatch, integrated, sizes):
    fake_gpu(monkeypatch, integrated=integrated)
    (finding,) = named(doctor.findings(), "Device")
    assert finding.status == "OK" and f"{sizes} GB" in finding.detail
    assert ("unified memory" in finding.detail) == integrated


def test_a_gpu_that_pytorch_cannot_use_is_a_warning(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    (finding,) = doctor._device()
    assert finding.status == "WARN" and "sees no GPU" in finding.detail and finding.remedy


def test_little_memory_is_a_warning(monkeypatch):
    memory = namedtuple("memory", "total available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(8 * 10**9, 10**9))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    (finding,) = doctor._device()
    assert finding.status == "WARN" and "1.0 of 8.0 GB" in finding.detail and finding.remedy


def test_missing_extensions_of_jupyterlab_fail(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = doctor._jupyter()
    assert len(found) == 3 and all(finding.status == "FAIL" and finding.remedy for finding in found)


CHECKS = ["_python", "_packages", "_device", "_precision", "_memory_speed", "_pair", "_jupyter"]


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_breaks_is_a_finding_and_stops_no_other(monkeypatch, check):
    def broken(*_):
        raise RuntimeError("the floor\ngave way")

    whole = len(doctor.findings())
    monkeypatch.setattr(doctor, check, broken)
    found = doctor.findings()
    (failed,) = [finding for finding in found if finding.status == "FAIL"]
    assert "RuntimeError: the floor gave way" in failed.detail and failed.remedy
    assert whole - 2 <= len(found) <= whole


def test_the_memory_is_timed_for_real(monkeypatch):
    monkeypatch.undo()
    measured = cost.bandwidth(device="cpu", seconds=0.1, size=128 * cost.MIB)
    assert measured > 0


@pytest.mark.parametrize("bad", [{"seconds": 0}, {"size": 0}, {"size": -1}])
def test_bandwidth_refuses_nonsense(monkeypatch, bad):
    monkeypatch.undo()
    with pytest.raises(ValueError, match="must be positive"):
        cost.bandwidth(**bad)
