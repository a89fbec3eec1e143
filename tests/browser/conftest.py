"""JupyterLab on a copy of the notebooks, and a browser in which a reader's moves can be made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from .lab import Lab

ROOT = Path(__file__).resolve().parents[2]
KEEP_STILLS = os.environ.get("SPECLIB_STILLS") == "1"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
SETTINGS = {
    # A question about news would cover the page; cells that are off screen would not exist.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The pictures of README and docs are made only when they are asked for: what they show is tested beside."""
    makers = [] if KEEP_STILLS else [item for item in items if item.name == "test_stills"]
    items[:] = [item for item in items if item not in makers]
    config.hook.pytest_deselected(items=makers)


@pytest.fixture(scope="session")
def stills() -> Path:
    """Where pictures of the page go: beside the README, with SPECLIB_STILLS=1."""
    return ROOT / "docs" / "stills"


@pytest.fixture(scope="session")
def lab_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab of its own: copied notebooks, solved exercises, no settings of whoever runs the test."""
    home = tmp_path_factory.mktemp("lab")
    notebooks = home / "notebooks"
    shutil.copytree(ROOT / "notebooks", notebooks, ignore=shutil.ignore_patterns(".*"))
    for name, setting in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(setting))
    env = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "SPECLIB_SOLUTIONS": "1",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--no-browser", f"--port={port}", "--ip=127.0.0.1", "--IdentityProvider.token=browser-test"]
    flags += ["--LabApp.expose_app_in_browser=True", "--ServerApp.port_retries=0", "--allow-root"]
    log = (home / "log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", str(notebooks), *flags],
        env=env,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        wait_for_server(f"http://127.0.0.1:{port}/api/status?token=browser-test", server, home / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        # The server first, so that it ends its kernels; then what may be left of its own process group.
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
        log.close()


def wait_for_server(url: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended with {server.returncode}: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"JupyterLab did not answer within {seconds:.0f} s: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    # Finer only where the pictures are kept: without a graphics card every pixel costs the processor.
    scale = 1.5 if KEEP_STILLS else 1
    context = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=scale)
    page = context.new_page()
    page.set_default_timeout(15_000)
    yield page
    context.close()


@pytest.fixture(scope="module")
def lab(page: Page, lab_address: str) -> Lab:
    """The page with what a reader does in JupyterLab, as one verb each."""
    return Lab(page, lab_address)
