"""speclib and vLLM behind the same bench on this machine, in one run: plain, lookup and the draft model of `smol`.

vLLM lives in an environment of its own (docs/vllm.md says how); `VLLM=/path/to/its/bin make vllm-check` names it.
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


def rows(k: int) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Name → how a server is started, and how its rows are asked for. Only speclib's own lets each request choose."""
    longer = max(k, 3)  # lookup's drafts cost nothing to make
    model, lookup = ["--speculation", f"model:{k}"], ["--speculation", f"lookup:{longer}"]
    vllm = ["--tokenizer", "smol"]  # tells how many tokens its first chunk has
    return {
        "eager": (
            [],
            [
                ["smol-model", f"the distilled draft, K = {k}", *model, "--against-plain"],
                ["smol-lookup", f"lookup, K = {longer}", *lookup],
            ],
        ),
        "compiled": (
            ["--compile"],
            [
                ["smol-plain-compiled", "no drafts; the compiled forward", "--speculation", "none"],
                ["smol-model-compiled", f"the draft, K = {k}; the compiled forward for both", *model],
            ],
        ),
        "vllm-plain": (
            ["--engine", "vllm", "--drafter", "none"],
            [["vllm-plain", "vLLM, no drafts", "--served-with", "none", *vllm]],
        ),
        "vllm-lookup": (
            ["--engine", "vllm", "--drafter", "lookup", "--k", str(longer)],
            [["vllm-lookup", f"vLLM, n-gram, K = {longer}", "--served-with", f"lookup:{longer}", *vllm]],
        ),
        "vllm-model": (
            ["--engine", "vllm", "--drafter", "model", "--k", str(k)],
            [["vllm-model", f"vLLM, the same draft, K = {k}", "--served-with", f"model:{k}", *vllm]],
        ),
    }


def main(
    name: Annotated[str | None, typer.Option(help="What the records call this machine.")] = None,
    k: Annotated[int, typer.Option(help="Drafts per round of the draft model.")] = 2,
    n: Annotated[int, typer.Option(help="Requests of each row at each concurrency.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 64,
    concurrency: Annotated[str, typer.Option(help="Numbers of users.")] = "1,4,16",
    only: Annotated[str, typer.Option(help="Which servers, with commas.")] = ",".join(rows(2)),
) -> None:
    """Start each server, bench it, stop it."""
    places = os.pathsep.join(filter(None, [os.environ.get("VLLM"), os.environ.get("PATH")]))
    env = os.environ | {"PATH": places, "VLLM_CPU_KVCACHE_SPACE": "2"}
    settings = ["--n", n, "--max-tokens", max_tokens, "--concurrency", concurrency, *(["--name", name] if name else [])]
    for server in only.split(","):
        words, benches = rows(k)[server]
        with serving(words, env) as address:
            for target, change, *more in benches:
                row = ["--target", target, "--change", change, "--base-url", address, *more]
                subprocess.run([*SPECLIB, "bench", *row, *map(str, settings)], check=True)


if __name__ == "__main__":
    typer.run(main)
