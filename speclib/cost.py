"""What a step costs on this machine, beginning with how fast its memory is read."""

from __future__ import annotations

import statistics
import time

import psutil
import torch

MIB = 1 << 20


def bandwidth(device: str | torch.device | None = None, seconds: float = 0.5, size: int = 512 * MIB) -> float:
    """Bytes per second that this machine reads from its memory, as measured now.

    device: where to measure; None for the first GPU, or the CPU without one. seconds: how long to measure,
    after a first pass that is not counted. size: bytes of the buffer that is read over and over; it must be
    larger than the last cache, or the cache is measured (it is cut to a quarter of the memory that is free).
    Returns the median over the passes. Raises ValueError when seconds or size is not positive.
    """
    if seconds <= 0 or size <= 0:
        raise ValueError(f"seconds and size must be positive, not {seconds} and {size}")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    size = min(size, psutil.virtual_memory().available // 4)
    # Written once, so that every page is really there: fresh zero pages are one page read many times.
    buffer = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)

    def one_pass() -> float:
        _wait(device)
        start = time.perf_counter()
        # A plain sum keeps up with the memory on all threads; a matrix-vector product reached half of it.
        buffer.sum()
        _wait(device)
        return time.perf_counter() - start

    one_pass()
    passes = [one_pass() for _ in range(3)]
    while sum(passes) < seconds:
        passes.append(one_pass())
    return buffer.numel() * buffer.element_size() / statistics.median(passes)


def _wait(device: torch.device) -> None:
    # A GPU only notes the work down; without waiting, the noting down would be timed.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
