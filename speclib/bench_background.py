"""A coroutine that runs in a thread of its own, followed from another one."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

Work = Callable[[Callable[[Any], None]], Coroutine[Any, Any, None]]


class Background:
    """Runs work(hand) from the first step on, and yields, in the thread that iterates, what work gives to `hand`.

    A notebook has a loop that is running already, and its widgets want to be changed from its own thread. `close`
    cancels the work and waits for its end; so does dropping the iterator. What work raises is raised here. It is no
    generator, since an interrupt can hit one just where its `finally` does not cover.
    """

    def __init__(self, work: Work):
        self._work, self._over = work, False
        self._handed: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Background:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._thread is None:
            self._start()
        while True:
            try:
                # With a time limit, since without one an interrupt is not noticed on every system.
                what, item = self._handed.get(timeout=0.5)
            except queue.Empty:
                continue
            if what == "item":
                return item
            self.close()
            raise StopIteration if what == "end" else _first(item)

    def close(self) -> None:
        """Cancel the work if it is not over, and wait for its end."""
        self._over = True
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed when all is done
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()

    __del__ = close

    def _start(self) -> None:
        handed = self._handed
        loop = self._loop = asyncio.new_event_loop()
        task = self._task = loop.create_task(self._work(lambda item: handed.put(("item", item))))

        # It must not refer to self, or dropping the iterator would not be noticed.
        def run() -> None:
            try:
                loop.run_until_complete(task)
                handed.put(("end", None))
            except BaseException as error:  # handed on to the thread that asked
                handed.put(("error", error))
            finally:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()

        self._thread = threading.Thread(target=run, name="speclib-bench", daemon=True)
        self._thread.start()


def _first(error: BaseException) -> BaseException:
    """The error itself where a task group has wrapped it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
