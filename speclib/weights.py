"""Where a model's weights come from, and how they are loaded.

A source answers `ready()`: is it here (no download, no loading)? and `fetch()`: bring it, and say where.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class PairError(RuntimeError):
    """What a pair needs is not here (weights, network, access, disk, memory): one sentence, with remedy."""


def command(line: str) -> str:
    """A command that came with the course, in backticks; with its folder where the reader's shell would not find it."""
    name = line.split()[0]
    script = Path(sys.executable).with_name(name)
    if shutil.which(name) or not script.is_file():
        return f"`{line}`"
    with contextlib.suppress(ValueError):
        script = script.relative_to(Path.cwd())
    return f"`{script}{line.removeprefix(name)}`"


def fetching(pair: str = "") -> str:
    """The remedy for weights that are not here. pair: its name, where the one who asks knows it."""
    return f"run {command(f'speclib fetch {pair}'.strip())}"


def cache_dir() -> Path:
    """The folder for converted weights: `SPECLIB_CACHE`, else speclib in the user's cache; may not exist."""
    if chosen := os.environ.get("SPECLIB_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "speclib"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, log lines or warnings from transformers inside; its settings are put back after."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_silent = are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
            if hub_silent:  # transformers switches the hub's bars on with its own
                disable_progress_bars()


def missing(folder: Path) -> str | None:
    """What a model folder lacks, in words, or None when config, tokenizer and every weight file are there."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not (folder / "config.json").is_file():
        return f"there is no config.json in {folder}"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return f"there is no tokenizer in {folder}"
    files = weight_files(folder)
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        return f"there is no {absent[0] if absent else 'model.safetensors'} in {folder}"
    return None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that a model folder loads: those that its index names; without an index there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        with contextlib.suppress(ValueError, LookupError):  # a damaged index names nothing
            return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        return []
    return [folder / "model.safetensors"]


def parameters(folder: Path) -> int:
    """How many numbers a folder's weights hold, by the files' headers; an error if a file is cut short."""
    from safetensors import safe_open

    count = 0
    for file in weight_files(folder):
        with safe_open(file, "pt") as f:
            count += sum(math.prod(f.get_slice(name).get_shape()) for name in f.keys())  # noqa: SIM118
    return count


def first_line(error: object) -> str:
    """The first line of what an exception or a program says, for a one-sentence message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def disk_trouble(error: object, where: Path | str, variable: str, need: str) -> str | None:
    """One sentence when an exception, or a program's output, is about a disk that is full or read-only."""
    number = getattr(error, "errno", None)
    # Libraries written in Rust, and pip, tell of a full disk in words only.
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return f"the disk of {where} is full: make room for {need}, or set {variable} to another disk"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return f"{where} cannot be written to: set {variable} to a folder that can"
    return None


@dataclass(frozen=True)
class Folder:
    """A model folder on this disk, taken as it is."""

    path: Path
    label: str
    remedy = "give a folder that `save_pretrained` wrote, or a hub name"

    def ready(self) -> tuple[bool, str]:
        lack = missing(self.path)
        return lack is None, lack or str(self.path)

    def fetch(self) -> Path:
        if lack := missing(self.path):
            raise PairError(f"{lack}: {self.remedy}")
        return self.path


@dataclass(frozen=True)
class Absent:
    """A model that does not exist yet; `why` is one sentence with what one can do meanwhile."""

    label: str
    why: str
    remedy = "choose another pair, or name a draft of your own: TARGET,DRAFT"

    def ready(self) -> tuple[bool, str]:
        return False, self.why

    def fetch(self) -> Path:
        raise PairError(self.why)


@dataclass(frozen=True)
class Hub:
    """A model on the Hugging Face Hub, by its name there; kept in that library's own cache."""

    label: str
    remedy = ""  # it can be fetched

    def _folder(self) -> Path | None:
        import huggingface_hub

        config = huggingface_hub.try_to_load_from_cache(self.label, "config.json")
        return Path(config).parent if isinstance(config, str) else None

    def ready(self) -> tuple[bool, str]:
        folder = self._folder()
        if folder is None or missing(folder):
            return False, f"{self.label} is not fetched, or not wholly"
        return True, str(folder)

    def fetch(self) -> Path:
        import huggingface_hub

        if self.ready()[0]:  # no question to the network about what is here
            return self._folder()
        try:
            # Many repositories hold the weights again in other formats, in folders or as consolidated*.
            got = huggingface_hub.snapshot_download(
                self.label,
                allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"],
                ignore_patterns=["*/*", "consolidated*"],
            )
        except Exception as error:  # the hub's client raises from several libraries
            raise PairError(self._sentence(error)) from error
        if lack := missing(Path(got)):
            raise PairError(f"{lack}: choose a model that has its weights as safetensors, and a tokenizer")
        return Path(got)

    def _sentence(self, error: Exception) -> str:
        from huggingface_hub import constants, errors

        told = (error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None) or error
        status = getattr(getattr(told, "response", None), "status_code", None)
        login = command("hf auth login")
        if trouble := disk_trouble(told, constants.HF_HUB_CACHE, "HF_HOME", self.label):
            return trouble
        if isinstance(told, errors.GatedRepoError):
            return f"{self.label} is gated: ask for access on its model page, then run {login}"
        if isinstance(told, errors.RepositoryNotFoundError):
            return f"the Hub has no public {self.label}: check the spelling, or run {login}"
        if isinstance(told, errors.OfflineModeIsEnabled):
            return f"{self.label} is not on this machine and HF_HUB_OFFLINE is set: unset it, then {fetching()} again"
        if status:
            return f"the Hub answered {self.label} with HTTP {status}: wait a little, then {fetching()} again"
        if isinstance(told, OSError | errors.HTTPError):
            return f"the Hub is out of reach for {self.label}: check network and proxy, then {fetching()} again"
        return f"{self.label} could not be downloaded ({first_line(told)}): {fetching()} again"


def load_tokenizer(folder: Path, label: str) -> Any:
    """The tokenizer of a model folder, loaded quietly. PairError: it cannot be read."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # what is damaged surfaces as many types
        raise _unreadable(f"the tokenizer of {label}", folder, error) from error


def _unreadable(what: str, folder: Path, error: object) -> PairError:
    return PairError(f"{what} cannot be loaded from {folder} ({first_line(error)}): save or fetch it anew")


def load_model(folder: Path, label: str, dtype: torch.dtype, device: torch.device) -> Any:
    """A model folder's causal LM, loaded quietly; eval mode, no gradients. PairError: damaged, memory."""
    import psutil
    import torch
    from transformers import AutoModelForCausalLM

    try:
        need = parameters(folder) * dtype.itemsize
    except Exception as error:
        raise _unreadable(label, folder, error) from error
    own_memory = device.type == "cuda" and not torch.cuda.get_device_properties(device).is_integrated
    free = torch.cuda.mem_get_info(device)[0] if own_memory else psutil.virtual_memory().available
    if need > free:
        short = f"needs {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {device}"
        remedy = "close other programs, or choose a smaller pair (SPECLIB_PAIR=smol)"
        raise PairError(f"{label} in {str(dtype).removeprefix('torch.')} {short}: {remedy}")
    # To a GPU file by file, without a whole copy in the host's memory first.
    where = {"device_map": {"": device}} if device.type == "cuda" else {}
    try:
        with quiet():
            model, found = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, output_loading_info=True, **where
            )
    except Exception as error:
        raise _unreadable(label, folder, error) from error
    # transformers only warns of these, and fills them with random numbers.
    if lost := sorted(found["missing_keys"]) or sorted(found["mismatched_keys"]):
        raise _unreadable(label, folder, f"no weights for {lost[0]}")
    return model.to(device).eval().requires_grad_(False)
