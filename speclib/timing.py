"""Timing what runs on a device: medians with their spread, in turn; the memory's speed and the multipliers'."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from speclib.roofline import free_memory

MIB = 1 << 20
Timer = Callable[[Callable[[], object]], float]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds of each pass, in the order measured, and what is told of them: the median and the middle half.

    Taught in notebook 02_verify_cost, section 'Time one pass'.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the passes took longer. A pass that was disturbed moves a mean and hardly moves this."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles: half of the passes lie between these two."""
        if len(self.seconds) == 1:
            return self.seconds * 2
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class WallTimer:
    """Seconds of a call by the clock on the wall, from the device being idle to its being idle again.

    Taught in notebook 02_verify_cost, section 'Time one pass'.
    """

    device: torch.device
    clock: Callable[[], float] = time.perf_counter

    def __call__(self, work: Callable[[], object]) -> float:
        _wait(self.device)
        start = self.clock()
        work()
        _wait(self.device)
        return self.clock() - start


@dataclass(frozen=True)
class EventTimer:
    """Seconds of a call by the GPU's own clock, between two marks that it passes while it works.

    Taught in notebook 02_verify_cost, section 'Time one pass'.
    """

    device: torch.device

    def __call__(self, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _wait(self.device)
        stream = torch.cuda.current_stream(self.device)
        start.record(stream)
        work()
        end.record(stream)
        _wait(self.device)
        return start.elapsed_time(end) / 1000


def interleave(
    jobs: Mapping[Key, tuple[Callable[[], object], Callable[[], object]]], trials: int, timer: Timer
) -> Iterator[tuple[Key, Timing]]:
    """Time jobs in turn, `trials` times each; yields a job's key and its Timing so far after every pass.

    jobs: what is timed, and what puts things back behind it, untimed. Each runs once before, uncounted: a first
    call allocates, chooses kernels and fills caches. ValueError: trials below 1.
    Taught in notebook 02_verify_cost, section 'Measure'.
    """
    at_least_one(trials=trials)
    for work, undo in jobs.values():
        timer(work)
        undo()
    seconds: dict[Key, tuple[float, ...]] = dict.fromkeys(jobs, ())
    for _ in range(trials):
        for key, (work, undo) in jobs.items():
            seconds[key] += (timer(work),)
            undo()
            yield key, Timing(seconds[key])


def at_least_one(**numbers: int) -> None:
    """ValueError, naming the first of the numbers that is below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")


def existing(device: str | torch.device) -> torch.device:
    """The device of that name, to be measured on. ValueError: no such kind of device, or this machine has none."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}: give cpu or cuda") from error
    if found.type != "cpu" and (found.type != "cuda" or (found.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"there is no {found} on this machine: give cpu, or leave the device out")
    return found


def bandwidth(device: str | torch.device | None = None, seconds: float = 0.5, size: int = 512 * MIB) -> float:
    """Bytes per second that this machine reads from its memory, as measured now.

    device: where to measure; None for the first GPU, or the CPU without one. seconds: how long to measure,
    after a first pass that is not counted. size: bytes of the buffer that is read over and over; it must be
    larger than the last cache, or the cache is measured (it is cut to a quarter of the memory that is free).
    Returns the median over the passes. ValueError: seconds or size not positive, no such device.
    Taught in notebook 02_verify_cost, section 'This machine'.
    """
    if seconds <= 0 or size <= 0:
        raise ValueError(f"seconds and size must be positive, not {seconds} and {size}")
    device = _device(device)
    size = min(size, free_memory(device) // 4)
    # Written once, so that every page is really there: fresh zero pages are one page read many times.
    buffer = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    # A fast GPU reads the buffer in less time than it takes to ask for it; several readings in a row hide that.
    readings = 8 if device.type == "cuda" else 1

    def read() -> None:
        for _ in range(readings):
            # A plain sum keeps up with the memory on all threads; a matrix-vector product reached half of it.
            buffer.sum()

    return readings * buffer.numel() * buffer.element_size() / _median(read, device, seconds)


def peak_flops(dtype: torch.dtype, device: str | torch.device | None = None, seconds: float = 0.5) -> float:
    """FLOP per second that this machine reaches in a large square matrix product, as measured now.

    A lower bound of what it could do, and the most that a pass of a model can hope for. device, seconds: as
    `bandwidth`. ValueError: seconds not positive, no such device.
    Taught in notebook 02_verify_cost, section 'This machine'.
    """
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, not {seconds}")
    device = _device(device)
    size = 8192 if device.type == "cuda" else 2048
    a = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / _median(lambda: a @ a, device, seconds)


def _median(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    timer = WallTimer(device)
    timer(work)
    passes = [timer(work) for _ in range(3)]
    while sum(passes) < seconds:
        passes.append(timer(work))
    return statistics.median(passes)


def _device(device: str | torch.device | None) -> torch.device:
    return existing(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _wait(device: torch.device) -> None:
    # A GPU only notes the work down; without waiting, the noting down would be timed.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
