"""A server whose chunks come when a script says, on a clock that is wound forward instead of waited for."""

from __future__ import annotations

import asyncio
import json
import selectors

import httpx


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            return super().select(None)
        self.now += max(0.0, timeout)
        return super().select(0)


class Wound(asyncio.SelectorEventLoop):
    """An event loop in which sleeping takes no time but moves the clock: exact to the last digit."""

    def __init__(self):
        super().__init__(_Selector())

    def time(self):
        return self._selector.now


def clock():
    """Seconds of the loop that is running."""
    return asyncio.get_running_loop().time()


def sse(event):
    """An event of a stream as bytes."""
    return b"data: " + (event if isinstance(event, bytes) else json.dumps(event, ensure_ascii=False).encode()) + b"\n\n"


def delta(text, finish=None, **more):
    """A chunk of an answer."""
    return sse({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}]})


ROLE = sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
DONE = sse(b"[DONE]")


def usage(tokens, prompt=50, **more):
    """The last chunk: no choices, and the counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens, **more}
    return sse({"choices": [], "usage": counts})


def answer(chunks, each=1, first=0.5, gap=0.1, role=0.2, counts=True, speculation=None):
    """(delay, bytes) of a good answer: the role, then `chunks` chunks of `each` tokens (words), then the usage."""
    words = "word " * each
    pieces = [(role, ROLE), (first - role, delta(words)), *((gap, delta(words)) for _ in range(chunks - 1))]
    told = {"speculation": speculation} if speculation else {}
    return [*pieces, (0.0, delta("", "stop")), *([(0.0, usage(chunks * each, **told))] if counts else []), (0.0, DONE)]


class Scripted(httpx.AsyncBaseTransport):
    """In place of the network: every request gets what script(body, number) says, and is noted.

    script: pieces for a stream, a pair (status, text), or an exception. Warm-up requests are answered on their own and
    not numbered. at_once: how many answers the server writes at a time; the other requests wait.
    """

    def __init__(self, script, at_once=1000):
        self.script, self.at_once = script, at_once
        self.asked, self.headers, self.warm_ups = [], [], 0
        self.under_way = self.most = 0

    async def handle_async_request(self, request):
        body = json.loads(request.content)
        self.headers.append(request.headers)
        if body["messages"][0]["content"] == "Say hello.":
            self.warm_ups += 1
            told = None if "speculation" not in body else dict.fromkeys(("drafted", "checked", "accepted", "rounds"), 1)
            return httpx.Response(200, stream=_Stream(self, answer(1, speculation=told)))
        self.asked.append(body)
        found = self.script(body, len(self.asked) - 1)
        if isinstance(found, Exception):
            raise found
        if isinstance(found, tuple):
            return httpx.Response(found[0], text=found[1])
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return httpx.Response(200, stream=_Stream(self, found, counted=True))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, server, pieces, counted=False):
        self.server, self.pieces, self.counted = server, pieces, counted

    async def __aiter__(self):
        while self.counted and self.server.at_once == 0:
            await asyncio.sleep(0.001)
        self.server.at_once -= self.counted
        for delay, piece in self.pieces:
            await asyncio.sleep(delay)
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self):
        self.server.at_once += self.counted
        self.server.under_way -= self.counted
