"""What this machine has, what it lacks for the course, and what to do about it."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["OK", "WARN", "FAIL"]
CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
REINSTALL = "run `make setup`, or `pip install -c constraints.txt -e '.[dev]'` in the repository"
GB = 1e9


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, how it stands, and the remedy where there is one."""

    status: Status
    name: str
    detail: str
    remedy: str = ""


def findings(pair: str = "smol") -> list[Finding]:
    """Everything the doctor looks at, in order; a check that breaks is itself a FAIL and stops no other.

    pair: a preset's name or TARGET,DRAFT, as `speclib fetch` takes it. Loads no model and downloads nothing;
    takes a few seconds, most of them importing PyTorch and timing the memory. ValueError: no such pair.
    """
    _refuse_unknown(pair)
    checks: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("Python", _python),
        ("Packages", _packages),
        ("Device", _device),
        ("Precision", _precision),
        ("Memory speed", _memory_speed),
        ("Pair", lambda: _pair(pair)),
        ("JupyterLab", _jupyter),
    ]
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check()
        except Exception as error:
            sentence = " ".join(str(error).split()) or "no further word"
            found.append(Finding("FAIL", name, f"the check broke: {type(error).__name__}: {sentence}", REINSTALL))
    return found


def _refuse_unknown(pair: str) -> None:
    try:
        from speclib import pairs
    except Exception:
        return  # the checks that need it say what is wrong
    pairs.status(pair)


def report(pair: str = "smol") -> int:
    """Print the findings, one to a line, and return the exit status: 1 when any is a FAIL, else 0.

    pair: as for `findings`.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    colours = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
    found = findings(pair)
    for finding in found:
        line = Text.assemble((f"{finding.status:<5}", colours[finding.status]), f"{finding.name}: {finding.detail}")
        if finding.remedy:
            line.append(f" → {finding.remedy}", style="bold")
        # Soft wrap keeps a finding on one line of a file or a pipe.
        console.print(line, soft_wrap=True)
    return int(any(finding.status == "FAIL" for finding in found))


def _python() -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] < (3, 15):
        return [Finding("OK", "Python", f"{version} on {platform.machine()}")]
    remedy = "install one of these and run `make clean setup PYTHON=/path/to/it`"
    return [Finding("FAIL", "Python", f"{version}, and the pinned packages need 3.11 to 3.14", remedy)]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normal(name): version.strip() for name, version in pairs}


def _direct() -> dict[str, bool]:
    """Each package that speclib asks for by name, and whether only its tests do."""
    wanted = {}
    for requirement in metadata.requires("speclib") or []:
        name, _, marker = requirement.partition(";")
        wanted[_normal(re.match(r"[\w.-]+", name.strip())[0])] = "extra" in marker
    return wanted


def _packages() -> list[Finding]:
    if not CONSTRAINTS.exists():
        remedy = "install from a clone of the repository: pip install -c constraints.txt -e '.[dev]'"
        return [Finding("WARN", "Packages", "constraints.txt is not beside the source: versions unchecked", remedy)]
    pins, direct = _pins(), _direct()
    found = []
    for name in sorted(pins.keys() | direct.keys()):
        try:
            # A local label such as +cpu names the build, not another version.
            installed = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            if name in direct:
                status = "WARN" if direct[name] else "FAIL"
                use = "only the tests need it" if direct[name] else "the course needs it"
                found.append(Finding(status, "Packages", f"{name} is not installed ({use})", REINSTALL))
            continue
        if name in pins and installed != pins[name]:
            detail = f"{name} is {installed}, the course was tested with {pins[name]}"
            found.append(Finding("WARN", "Packages", detail, REINSTALL))
    versions = f"torch {metadata.version('torch')}, transformers {metadata.version('transformers')}"
    return found or [Finding("OK", "Packages", f"as pinned in constraints.txt ({versions})")]


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _device() -> list[Finding]:
    import psutil
    import torch

    memory = psutil.virtual_memory()
    if not torch.cuda.is_available():
        sizes = f"{memory.available / GB:.1f} of {memory.total / GB:.1f} GB"
        detail = f"CPU, {os.cpu_count()} cores, {sizes} available"
        # The tool comes with the driver: there is a GPU, and PyTorch cannot use it.
        if shutil.which("nvidia-smi"):
            build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
            remedy = "reinstall torch without a CPU index, or update the NVIDIA driver"
            return [
                Finding(
                    "WARN",
                    "Device",
                    f"{detail}; an NVIDIA driver is here, but PyTorch ({build}) sees no GPU",
                    remedy,
                )
            ]
        return [_enough("Device", detail, memory.available)]
    found = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        if gpu.is_integrated:
            free, total = memory.available, memory.total
            note = " (unified memory: the system's own count is taken, as CUDA's calls the page cache used)"
        else:
            (free, total), note = torch.cuda.mem_get_info(index), ""
        detail = f"cuda:{index} {gpu.name}, {free / GB:.1f} of {total / GB:.1f} GB available{note}"
        found.append(_enough("Device", detail, free))
    return found


def _enough(name: str, detail: str, free: int) -> Finding:
    # The default pair with its caches, a kernel and a browser stay below this.
    if free < 2 * GB:
        return Finding("WARN", name, f"{detail}: less than 2 GB", "close other programs, or other notebooks' kernels")
    return Finding("OK", name, detail)


def _precision() -> list[Finding]:
    from speclib import pairs

    try:
        dtype, reason = pairs.default_dtype(_default_device())
    except ValueError as error:
        return [Finding("FAIL", "Precision", str(error), "unset SPECLIB_DTYPE, or give it one of these")]
    return [Finding("OK", "Precision", f"{str(dtype).removeprefix('torch.')}: {reason}")]


def _memory_speed() -> list[Finding]:
    from speclib import cost

    device = _default_device()
    return [Finding("OK", "Memory speed", f"{cost.bandwidth(device) / GB:.0f} GB/s read on {device}, as measured now")]


def _pair(pair: str) -> list[Finding]:
    from speclib import pairs

    status = pairs.status(pair)
    found = []
    if status.target_ready:
        found.append(Finding("OK", "Target", f"{pair}: {status.target_detail}"))
    else:
        found.append(Finding("FAIL", "Target", f"{pair}: {status.target_detail}", status.target_remedy))
    if status.draft_ready:
        found.append(Finding("OK", "Draft", f"{pair}: {status.draft_detail}"))
    else:
        found.append(Finding("WARN", "Draft", f"{pair}: {status.draft_detail}", status.draft_remedy))
    return found


def _jupyter() -> list[Finding]:
    found = []
    extensions = Path(sys.prefix, "share", "jupyter", "labextensions")
    for name, folder in [
        ("jupyterlab", ""),
        ("anywidget", "anywidget"),
        ("ipywidgets", "@jupyter-widgets/jupyterlab-manager"),
    ]:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(Finding("FAIL", "JupyterLab", f"{name} is not installed", REINSTALL))
            continue
        if not (extensions / folder).is_dir():
            detail = f"{name} {version} is installed, but its JupyterLab extension is not in {extensions}"
            found.append(Finding("FAIL", "JupyterLab", detail, REINSTALL))
        else:
            found.append(Finding("OK", "JupyterLab", f"{name} {version}"))
    return found
