"""Passes over a few tokens, recorded once as CUDA graphs and replayed: one call instead of a thousand small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

if TYPE_CHECKING:
    from speclib.lean import Cache, Lean

MOST = 16  # tokens of a pass that is recorded: a prompt comes once, in whatever length
ROOM = 2048  # positions at first: a recorded pass reads all of them, a few hundredths of an 8B's weights

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]


class Graphs:
    """`Lean.__call__` for one cache of one row, by passes that are recorded for each number of tokens.

    A recording holds addresses and shapes, so it reads the whole buffer under a mask, and the place to write at
    is a tensor. Stale entries lie behind the mask. Where the buffer has to grow, recordings are made anew.
    capture: records a function and returns what runs it again, and the tensor that it writes; on CUDA `record`.
    """

    def __init__(self, lean: Lean, cache: Cache, capture: Capture | None = None):
        self.lean, self.cache, self.capture = lean, cache, capture or record
        self.recorded: dict[tuple[int, int | None], tuple[Tensor, Tensor, Callable[[], object], Tensor]] = {}
        self.recordings = 0
        # What was never written must be finite: a masked 0 times NaN is NaN.
        self._grow(max(ROOM, cache.positions))

    @torch.inference_mode()
    def __call__(self, ids: Tensor, cache: Cache, rows: int | None = None) -> Tensor:
        n, end = ids.shape[1], cache.length + ids.shape[1]
        if end > cache.positions:
            self._grow(max(end, 2 * cache.positions))
        # What watches each operation (`parts.OpClock`) would see none of those that are replayed.
        if n > MOST or is_in_torch_dispatch_mode():
            return self.lean(ids, cache, rows)
        if (n, rows) not in self.recorded:
            self.recorded[n, rows] = self._record(n, rows)
        into, at, run, logits = self.recorded[n, rows]
        into.copy_(ids)
        at.copy_(self._places[cache.length : end])
        run()
        cache.length = end
        return logits

    def _record(self, n: int, rows: int | None) -> tuple[Tensor, Tensor, Callable[[], object], Tensor]:
        # Recorded where the next tokens will be written anyway.
        at = self._places[self.cache.length : self.cache.length + n].clone()
        into = torch.zeros(1, n, dtype=torch.long, device=at.device)

        def work() -> Tensor:
            mask = self._places[None] <= at[:, None]
            cos, sin = self.cache.cos[at], self.cache.sin[at]
            return self.lean.run(into, cos, sin, self.cache.held, at, mask, rows)

        self.recordings += 1
        return into, at, *self.capture(work)

    def _grow(self, positions: int) -> None:
        self.recorded.clear()
        self.cache.reserve(positions)
        self.cache.held[..., self.cache.length :, :] = 0
        self._places = torch.arange(positions, device=self.cache.held.device)


def record(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record a function of fixed tensors as a CUDA graph; what runs it again, and where its answer appears."""
    # Outside of the recording at first: kernels are chosen and workspaces taken then.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = work()
    return graph.replay, answer
