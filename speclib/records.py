"""Records of measurements in results/: one JSON file each, with all that is needed to compare machines."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

Record = dict[str, Any]
RESULTS = Path(__file__).resolve().parent.parent / "results"
CONTEXT = 512  # tokens in the cache before a pass that is timed, where nothing else is asked for


def machine(device: torch.device, name: str | None = None) -> Record:
    """What a record says of the machine: names of host, CPU and GPU, versions, threads, and how busy it is now.

    name: what to call it; None = its host name.
    """
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "host": name or platform.node(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": gpu.name if gpu else None,
        "unified_memory": bool(gpu.is_integrated) if gpu else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "mkl_cbwr": os.environ.get("MKL_CBWR") or None,  # speclib/mkl.py
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def write(record: Record, folder: Path | str = RESULTS) -> Path:
    """Write a record as `<kind>-<host>-<what>-<dtype>.json` and return where.

    Behind the dtype stand the device unless it is the CPU, and the context length unless it is the usual one: what was
    measured in another way is another record. One of the same name is replaced, whole or not at all.
    ValueError: the folder cannot be written to.
    Taught in notebook 02_verify_cost, section 'Other machines'.
    """
    parts = [record["kind"], record["machine"]["host"], record["what"], record["dtype"]]
    if (device := record.get("device", "cpu")) != "cpu":
        parts.append(device)
    if (context := record.get("context", CONTEXT)) != CONTEXT:
        parts.append(f"context-{context}")
    path = Path(folder) / ("-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts) + ".json")
    with told(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def label(record: Record) -> str:
    """What tells the records of one kind apart, for people: machine, pair or shape, precision, device."""
    return ", ".join([record["machine"]["host"], record["what"], record["dtype"], record["device"]])


@contextlib.contextmanager
def told(folder: Path | str) -> Iterator[None]:
    """ValueError, naming the folder, in place of an OSError inside."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to ({error.strerror}): choose another folder") from error


def check_folder(folder: Path | str) -> None:
    """ValueError unless files can be written into a folder, which need not be there yet and is not made."""
    there = Path(folder).absolute()
    while not there.exists():
        there = there.parent
    with told(folder):
        tempfile.TemporaryFile(dir=there).close()


def put(path: Path, text: str) -> None:
    """Write a file whole or not at all: beside it at first, then renamed. OSError: as the system says."""
    beside = path.with_name(path.name + ".tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path | str, kind: str) -> Record:
    """One record. ValueError, naming the file, when it is missing, damaged, or of another kind.

    Taught in notebook 02_verify_cost, section 'Other machines'.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        found = record["kind"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        word = getattr(error, "strerror", None) or "it holds no record"
        raise ValueError(f"{path} cannot be read ({word}): name a file that speclib wrote into results/") from error
    if found != kind:
        raise ValueError(f"{path} is a record of {found}, not of {kind}: name another")
    return record


def read_all(kind: str, folder: Path | str = RESULTS) -> list[Record]:
    """All records of a kind in a folder, in the order of their files' names."""
    return [read(path, kind) for path in sorted(Path(folder).glob(f"{kind}-*.json"))]


def now() -> str:
    """The time as a record writes it: UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or an Arm, which does not say
        return platform.processor() or platform.machine()
