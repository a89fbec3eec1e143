"""What several test files share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
import torch

# Tiny models run faster on one thread than on two that wait for each other; on a busy machine, many times so.
ALL_THREADS = torch.get_num_threads()
torch.set_num_threads(1)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser that the browser tests drive; without one they fail in CI and skip elsewhere."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    word = "no Chromium or Chrome on the PATH: install one (Debian, Ubuntu: apt install chromium)"
    if os.environ.get("CI"):
        pytest.fail(word)
    pytest.skip(word)


@pytest.fixture(scope="module")
def all_threads() -> Iterator[None]:
    """For modules that run the real model."""
    torch.set_num_threads(ALL_THREADS)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pair or precision the shell of who runs the tests has chosen."""
    for name in ("SPECLIB_PAIR", "SPECLIB_DTYPE"):
        monkeypatch.delenv(name, raising=False)
