"""Hard use: 64 clients at once that send good, malformed, oversized, abandoned and slow requests, for half a minute."""

import asyncio
import gc
import json
import os
import random
import threading
import time
from collections import Counter

import httpx
import psutil
import pytest
from serving import alone, idle, metrics, server_threads, text_of, tiny_pair, user, wait_until

from speclib import serve
from speclib.context import Context
from speclib.serve.engine import Job
from speclib.serve.guard import BODY_LIMIT

CLIENTS, SECONDS = 64, float(os.environ.get("SPECLIB_HARD_SECONDS", "30"))
NEW = 12
# What is asked, and what that means to `alone`.
GOOD = [
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"seed": 1}, {"seed": 1}),
    ({"seed": 1, "temperature": 0.6, "top_p": 0.9}, {"seed": 1, "temperature": 0.6, "top_p": 0.9}),
    ({"seed": 2, "frequency_penalty": 1.0}, {"seed": 2, "frequency": 1.0}),
    ({"seed": 3, "stop": ["a", "e"]}, {"seed": 3, "strings": ["a", "e"]}),
    ({"seed": 3, "ignore_eos": True, "top_k": 5}, {"seed": 3, "eos": False, "top_k": 5}),
    ({"seed": 4, "speculation": {"drafter": "lookup", "k": 7}}, {"seed": 4, "drafter": "lookup", "k": 7}),
    ({"seed": 4, "speculation": {"drafter": "none"}}, {"seed": 4, "drafter": "none", "k": 0}),
]
MALFORMED = [b"", b"{", b"[1]", b"\xff", b'{"messages": 1}', b'{"messages": [], "tools": [{}]}', b'{"x": "\\ud800"}']


class Crowd:
    """The clients, and what they saw."""

    def __init__(self, server, pair):
        self.url = server.base_url + "/chat/completions"
        self.wanted = [text_of(alone(pair, "hi", NEW, **meant)) for _, meant in GOOD]
        self.statuses, self.kinds, self.wrong = Counter(), Counter(), []

    def run(self, seconds):
        """All clients, in a thread with a loop of its own."""
        thread = threading.Thread(target=lambda: asyncio.run(self._all(time.monotonic() + seconds)))
        thread.start()
        thread.join()

    async def _all(self, end):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
        async with httpx.AsyncClient(limits=limits, timeout=120) as http, asyncio.TaskGroup() as group:
            for i in range(CLIENTS):
                group.create_task(self._client(http, random.Random(i), end))

    async def _client(self, http, chance, end):
        kinds = [self.good, self.good, self.good, self.streamed, self.malformed, self.oversized, self.left, self.slow]
        while time.monotonic() < end:
            kind = chance.choice(kinds)
            self.kinds[kind.__name__] += 1
            await kind(http, chance)
            await asyncio.sleep(chance.random() * 0.2)

    def _good_body(self, chance, **more):
        which = chance.randrange(len(GOOD))
        return which, {"messages": user("hi"), "max_tokens": NEW} | GOOD[which][0] | more

    def _note(self, which, answer, text):
        self.statuses[answer.status_code] += 1
        if answer.status_code == 200 and text != self.wanted[which]:
            self.wrong.append((GOOD[which], text))

    async def good(self, http, chance):
        which, body = self._good_body(chance)
        answer = await http.post(self.url, json=body)
        self._note(which, answer, answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"])

    async def streamed(self, http, chance, pause=0.0):
        which, body = self._good_body(chance, stream=True)
        async with http.stream("POST", self.url, json=body) as answer:
            text = ""
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"]["content"]
                await asyncio.sleep(pause)
            self._note(which, answer, text)

    async def malformed(self, http, chance):
        answer = await http.post(
            self.url, content=chance.choice(MALFORMED), headers={"content-type": "application/json"}
        )
        self.statuses[answer.status_code] += 1
        assert answer.status_code == 400 and answer.json()["error"]["message"]

    async def oversized(self, http, chance):
        answer = await http.post(self.url, content=b" " * (BODY_LIMIT + 1))
        self.statuses[answer.status_code] += 1
        assert answer.status_code == 413

    async def left(self, http, chance):
        """It goes away in the middle: of the body, of the wait, or of the stream."""
        _, body = self._good_body(chance, stream=True, max_tokens=400, ignore_eos=True)
        try:
            async with asyncio.timeout(chance.random() * 0.5), http.stream("POST", self.url, json=body) as answer:
                self.statuses[answer.status_code] += 1
                async for _ in answer.aiter_bytes():
                    break
        except (TimeoutError, httpx.TransportError):
            pass

    async def slow(self, http, chance):
        """It sends its body in dribs and drabs, or reads like that."""
        if chance.random() < 0.5:
            return await self.streamed(http, chance, pause=0.05)
        which, body = self._good_body(chance)

        async def dribble():
            data = json.dumps(body).encode()
            for at in range(0, len(data), 40):
                yield data[at : at + 40]
                await asyncio.sleep(0.05)

        headers = {"content-type": "application/json"}
        answer = await http.post(self.url, content=dribble(), headers=headers)
        self._note(which, answer, answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"])


def living(kind):
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def memory():
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.fixture
def pair(tmp_path):
    return tiny_pair(tmp_path)


def test_hard_use(pair, record_property):
    contexts, threads = living(Context), set(threading.enumerate())
    with serve.background(pair, drafter="model", k=3) as server:
        crowd = Crowd(server, pair)
        crowd.run(SECONDS / 2)
        wait_until(lambda: idle(server), seconds=60)
        # By now allocators and pools have what they keep; the second half must add nothing to it.
        before = memory()
        crowd.run(SECONDS / 2)
        wait_until(lambda: idle(server), seconds=60)
        grown = memory() - before
        assert living(Job) == 0 and living(Context) <= contexts
        found = metrics(server)
        ended = {n.split('"')[1]: int(c) for n, c in found.items() if n.startswith("speclib:request_success_total")}
    # A str: nothing else travels between pytest's workers.
    record_property("seen", f"{crowd.statuses} {crowd.kinds} {ended}, {grown} bytes more")

    assert set(crowd.statuses) <= {200, 400, 413, 429}, crowd.statuses
    assert not crowd.wrong, crowd.wrong[:3]
    # It was hard: every kind came, the line was full at times, clients left, and good answers still came through.
    assert min(crowd.statuses[s] for s in (200, 400, 413, 429)) >= 5, crowd.statuses
    assert min(crowd.kinds.values()) >= 5 and len(crowd.kinds) == 6 and ended["abort"] >= 1, (crowd.kinds, ended)
    assert grown < 32 << 20, f"{grown / 2**20:.0f} MiB more after the second half"
    assert not server_threads() and set(threading.enumerate()) <= threads
