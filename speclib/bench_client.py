"""The bench's side of the wire: one streamed request to an OpenAI-compatible address, and many in a closed loop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from speclib.bench_trace import Chunk, Trace

Job = TypeVar("Job")
# A server that answers one request at a time lets the last of many wait long before its first byte.
TIMEOUT = httpx.Timeout(10.0, read=600.0, pool=None)
COUNTERS = {"drafted": "spec_decode_num_draft_tokens_total", "accepted": "spec_decode_num_accepted_tokens_total"}


@dataclass(frozen=True)
class Server:
    """Where to send requests: the address that ends in /v1, the model's name there, and the key if it wants one.

    transport: what carries requests in place of the network; clock: seconds. Both are for tests.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    transport: httpx.AsyncBaseTransport | None = None
    clock: Callable[[], float] = time.perf_counter

    @property
    def url(self) -> httpx.URL:
        """The address, read. ValueError when it is none."""
        try:
            url = httpx.URL(self.base_url.rstrip("/"))
        except (httpx.InvalidURL, TypeError) as error:
            raise ValueError(f"{self.base_url!r} is no address: give one such as http://localhost:8000/v1") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"{self.base_url!r} is no address: give one such as http://localhost:8000/v1")
        return url

    @property
    def local(self) -> bool:
        """Whether the address is this machine's own."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.url.host).is_loopback
        return self.url.host == "localhost"

    def client(self) -> httpx.AsyncClient:
        """A client for it; as many connections as there are requests, and no proxy to reach this machine itself."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(
            headers=headers,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=self.transport,
            trust_env=not self.local,
        )


async def ask(client: httpx.AsyncClient, server: Server, body: Mapping[str, Any], prompt: str, kind: str) -> Trace:
    """Send one request and watch its stream; whatever fails is told in the trace and tried only once.

    body: the JSON, which must ask for a stream. prompt, kind: noted in the trace.
    Taught in notebook 07_serve_and_bench, section 'The trace of one request'.
    """
    chunks: list[Chunk] = []
    usage, finished, silent = None, False, 0
    error, detail = None, ""
    sent = server.clock()
    try:
        async with client.stream("POST", f"{server.url}/chat/completions", json=body) as response:
            if response.status_code != 200:
                said = (await response.aread()).decode(errors="replace")
                raise _Failed(f"HTTP {response.status_code}", said)
            # Read to its end, so that the connection serves the next request, too.
            async for at, event in _events(response, server.clock):
                if event is None:
                    finished = True
                    continue
                if "error" in event:
                    raise _Failed("error in the stream", json.dumps(event["error"]))
                # The last chunk has usage and no choices; some servers send both in one.
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    finished = finished or choice.get("finish_reason") is not None
                    text, told = _text(choice.get("delta") or {}), choice.get("speculation")
                    # speclib's server names the tokens of a chunk. Those without a text come with the next one.
                    silent += len(told["tokens"]) if told else 0
                    chunks.append(Chunk(at, text, silent or None if text else None))
                    silent = 0 if text else silent
        if not finished:
            raise _Failed("cut off", "the stream ended without a finish_reason or [DONE]")
        if not any(c.text for c in chunks):
            raise _Failed("empty", "the stream brought no text")
    except _Failed as failed:
        error, detail = failed.args
    except httpx.HTTPError as failed:
        if not finished:
            error, detail = _kind(failed), str(failed) or type(failed).__name__
    except (ValueError, LookupError, AttributeError, TypeError) as failed:
        error, detail = "not understood", f"{type(failed).__name__}: {failed}"
    return Trace(prompt, kind, sent, tuple(chunks), usage, server.clock(), error, " ".join(detail.split())[:300])


async def closed_loop(
    send: Callable[[Job], Awaitable[Trace]], jobs: Iterable[Job], concurrency: int, done: Callable[[Job, Trace], None]
) -> None:
    """Keep `concurrency` requests under way until the jobs are used up: each answer lets the next request go.

    Taught in notebook 07_serve_and_bench, section 'Many requests'.
    """
    waiting = iter(jobs)

    async def user() -> None:
        for job in waiting:
            done(job, await send(job))

    async with asyncio.TaskGroup() as users:
        for _ in range(concurrency):
            users.create_task(user())


def told_by_metrics(server: Server) -> dict[str, int]:
    """Drafts made and kept since the server started, from vLLM's counters at /metrics; {} where there are none.

    vLLM's rounds leave out those without drafts, and drafts behind a rejection are not told apart: neither AL nor α̂
    follows from them, only the acceptance rate.
    """
    if server.transport is not None:
        return {}
    address = server.url.copy_with(path=re.sub(r"/v1$", "", server.url.path) + "/metrics")
    try:
        found = httpx.get(address, timeout=5.0, trust_env=not server.local)
    except httpx.HTTPError:
        return {}
    return read_counters(found.text) if found.status_code == 200 else {}


def read_counters(text: str) -> dict[str, int]:
    """The two counters of vLLM in a page of metrics, each summed over its labels; {} unless both are there."""
    found = {}
    for name, counter in COUNTERS.items():
        values = re.findall(rf"^vllm:{counter}(?:\{{[^}}]*\}})? ([0-9.eE+]+)$", text, re.MULTILINE)
        if values:
            found[name] = round(sum(float(v) for v in values))
    return found if len(found) == len(COUNTERS) else {}


class _Failed(Exception):
    """A request that failed: what kind of failure, and what was said."""


async def _events(
    response: httpx.Response, clock: Callable[[], float]
) -> AsyncIterator[tuple[float, dict[str, Any] | None]]:
    """When each event came, and what it says; None for [DONE].

    Lines end at line feeds alone: httpx would also cut at a paragraph separator inside a text.
    """
    rest = b""
    async for piece in response.aiter_bytes():
        at = clock()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                yield at, None if data == b"[DONE]" else json.loads(data)


def _text(delta: Mapping[str, Any]) -> str:
    # Models that think aloud send that under other names; it is generated and counted in usage all the same.
    return "".join(delta.get(name) or "" for name in ("reasoning_content", "reasoning", "content"))


def _kind(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.ConnectError):
        return "no connection"
    return "cut off" if isinstance(error, httpx.TransportError) else type(error).__name__
