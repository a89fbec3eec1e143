"""vLLM and speclib behind the same bench on this machine: plain, n-gram lookup and the draft model of `smol`.

vLLM lives in an environment of its own (CONTRIBUTING.md says how); `VLLM=/path/to/its/bin make vllm-check` names it.
Each server is started, benched and stopped in turn; the rows go to results/ and SCOREBOARD.md, whoever wins.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Annotated

import typer

SPECLIB = [sys.executable, "-m", "speclib.cli"]
VLLM = {"none": ("plain", "plain"), "lookup": ("lookup", "n-gram"), "model": ("model", "the draft model, greedy")}
PORT = 8123


@contextlib.contextmanager
def serving(words: list[str], env: dict[str, str], seconds: float = 600) -> Iterator[str]:
    """A server in a process group of its own, ready; its address up to /v1. RuntimeError: it ended, or is not ready."""
    server = subprocess.Popen([*SPECLIB, "serve", "--port", str(PORT), *words], env=env, start_new_session=True)
    try:
        end = time.monotonic() + seconds
        while True:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not get ready: {' '.join(words)}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5)
                break
            time.sleep(1)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def main(
    name: Annotated[str | None, typer.Option(help="What the records call this machine.")] = None,
    k: Annotated[int, typer.Option(help="Drafts per round.")] = 2,
    n: Annotated[int, typer.Option(help="Requests of each row at each concurrency.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 64,
    concurrency: Annotated[str, typer.Option(help="Numbers of users.")] = "1,4",
    only: Annotated[str, typer.Option(help="Which of vLLM's rows, with commas.")] = "none,lookup,model",
) -> None:
    """Start vLLM in each way, bench it, stop it."""
    places = os.pathsep.join(filter(None, [os.environ.get("VLLM"), os.environ.get("PATH")]))
    env = os.environ | {"PATH": places, "VLLM_CPU_KVCACHE_SPACE": "2"}
    settings = ["--n", n, "--max-tokens", max_tokens, "--concurrency", concurrency, *(["--name", name] if name else [])]
    for drafter in only.split(","):
        label, change = VLLM[drafter]
        with serving(["--engine", "vllm", "--drafter", drafter, "--k", str(max(k, 1))], env) as address:
            row = ["--target", f"vllm-{label}", "--base-url", address, "--change", f"vLLM, {change}"]
            row += [] if drafter == "none" else ["--served-with", f"{drafter}:{k}"]
            subprocess.run([*SPECLIB, "bench", *row, *map(str, settings)], check=True)


if __name__ == "__main__":
    typer.run(main)
