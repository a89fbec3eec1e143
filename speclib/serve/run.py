"""A server's life: bound, started, and surely stopped, in the foreground or beside a notebook."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from typing import Any

import uvicorn

from speclib.pairs import Pair
from speclib.serve.app import create_app
from speclib.serve.engine import Engine

GRACE = 3.0  # seconds that the running request has left when the server is stopped


class _Server(uvicorn.Server):
    """uvicorn's server, which ends the work before it waits for the connections."""

    grace = GRACE

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.engine.close(self.grace)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Ctrl-C or a polite kill: finish; a second one: stop at the end of the round."""
        if self.should_exit:
            # In a thread, since this one may hold the lock that is needed.
            threading.Thread(target=self.config.app.state.engine.close, daemon=True).start()
        self.should_exit = True


def _server(pair: Pair, host: str, port: int, settings: dict[str, Any]) -> tuple[_Server, socket.socket]:
    taken = bind(host, port)  # before the weights are loaded
    try:
        app = create_app(pair, **settings)
    except BaseException:
        taken.close()
        raise
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="error",
        log_config=None,  # a notebook's own logging stays as it is
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(2 * GRACE),
    )
    return _Server(config), taken


def bind(host: str, port: int) -> socket.socket:
    """A socket of that address; port 0 is any free one. ValueError: it cannot be had."""
    if not 0 <= port <= 65535:
        raise ValueError(f"there is no port {port}: give another, or 0 for any that is free")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends at once (TCP_NODELAY) only where a socket names its protocol. Otherwise a chunk waits for the
        # client's word on the one before, some 40 ms.
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"there is no address {host}:{port} to bind to ({error}): give another host") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except OSError as error:
        bound.close()
        word = f"cannot bind to port {port} of {host} ({error.strerror}): give another port, or 0 for any"
        raise ValueError(word) from None


def url(bound: socket.socket) -> str:
    """http://HOST:PORT of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(pair: Pair, host: str = "127.0.0.1", port: int = 8000, **settings: Any) -> None:
    """Serve until Ctrl-C or SIGTERM; requests that run have a few seconds to finish. settings: as `create_app`."""
    server, bound = _server(pair, host, port, settings)
    print(f"{pair.labels[0]} at {url(bound)}/v1 — stop with Ctrl-C", flush=True)
    server.run(sockets=[bound])
    print("stopped", flush=True)


class Background:
    """A server that runs beside this program, in a thread of it, so that a pair which is loaded is not loaded twice.

    It is stopped by `stop`, at the end of a `with` block, when nothing refers to it any more (a cell that is run again
    replaces it), and when the program ends; a thread cannot outlive its kernel, as a process of its own could.
    url: http://127.0.0.1:PORT. base_url: what the openai client wants, with /v1. model: the model's name.
    """

    def __init__(self, pair: Pair, host: str, port: int, settings: dict[str, Any]):
        server, bound = _server(pair, host, port, settings)
        server.grace = 0.0
        self.url, self.model = url(bound), pair.labels[0]
        self.base_url = self.url + "/v1"
        thread = threading.Thread(target=server.run, args=([bound],), name="speclib-serve", daemon=True)
        self._thread = thread
        self._finalizer = weakref.finalize(self, _stop, server, thread)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                self.stop()
                raise RuntimeError("the server did not start; its log says why")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop, and wait for the end: the running request ends with its round. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def _stop(server: _Server, thread: threading.Thread) -> None:
    server.should_exit = True
    engine: Engine = server.config.app.state.engine
    if thread is not threading.current_thread():
        with contextlib.suppress(RuntimeError):  # it was never started
            thread.join()
        engine.close()
        engine.join()


def background(pair: Pair, *, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> Background:
    """Start a server beside this program: `with background(pair, drafter="lookup") as server: …`.

    pair: as `pairs.load`. port: 0 for any free one. settings: as `create_app`.
    """
    return Background(pair, host, port, settings)
