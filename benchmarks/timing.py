"""Times of calls, compared: rounds of one run each, so that noise affects all alike.

On the host a call's time is the wall time of all its threads, or the CPU time of its only one.  On
a GPU it is the time between two events, with a cold L2, while the host runs ahead: kernels, not
dispatch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
Clock = Callable[[Call], float]
"""Runs a call and says how many seconds it took."""

_WARMUPS = 3
_FLUSH_BYTES = 256 << 20
_COPY_BYTES = 1 << 30


def host_clock(call: Call) -> float:
    """Wall time of a call."""
    return _seconds(call, time.perf_counter)


def thread_clock(call: Call) -> float:
    """CPU time of this thread: exact on a busy machine, for work that has no other threads."""
    return _seconds(call, time.thread_time)


def _seconds(call: Call, now: Callable[[], float]) -> float:
    start = now()
    results = call()
    seconds = now() - start
    del results  # releasing them does not count
    return seconds


def dispatch_clock(call: Call, repeats: int = 200) -> float:
    """Host time of a call that does next to nothing; work that it gives a GPU is not waited for."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    seconds = (time.perf_counter() - start) / repeats
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return seconds


class CudaClock:
    """Time between events on the current stream of the current device."""

    # About a millisecond of flushing: long enough for the host to enqueue the call meanwhile.
    _FLUSHES = 16

    def __init__(self) -> None:
        self._buffer = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def __call__(self, call: Call) -> float:
        for _ in range(self._FLUSHES):
            self._buffer.zero_()
        self._start.record()
        results = call()
        self._end.record()
        self._end.synchronize()
        del results
        return float(self._start.elapsed_time(self._end)) * 1e-3


def clock_for(device: torch.device) -> Clock:
    if device.type == "cuda":
        return CudaClock()
    return thread_clock if torch.get_num_threads() == 1 else host_clock


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one contender, round by round, and the figure that stands for all of them."""

    rounds: tuple[float, ...]
    percentile: int = 50

    @property
    def seconds(self) -> float:
        """What `percentile` percent of the rounds stayed below."""
        return statistics.quantiles(self.rounds, n=100, method="inclusive")[self.percentile - 1]

    @property
    def spread(self) -> float:
        """Between the quartiles, relative to the figure: what differs by less may not differ."""
        low, _, high = statistics.quantiles(self.rounds, n=4)
        return (high - low) / self.seconds

    def over(self, other: Timing) -> float:
        return self.seconds / other.seconds


def interleaved(calls: Mapping[str, Call], clock: Clock, seconds: float) -> dict[str, Timing]:
    """Every call timed once a round, in at least five rounds and until `seconds` have passed.

    A GPU's figure is the median.  A CPU is shared with other work, which only ever adds time, so
    that its figure is the tenth percentile.
    """
    percentile = 50 if isinstance(clock, CudaClock) else 10
    for call in calls.values():
        for _ in range(_WARMUPS):
            clock(call)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    done = 0
    while done < 5 or time.perf_counter() < end:
        for name, call in calls.items():
            rounds[name].append(clock(call))
        done += 1
    return {name: Timing(tuple(found), percentile) for name, found in rounds.items()}


def copy_rate(device: torch.device, seconds: float = 1.0) -> float:
    """Bytes a second, read plus written, of a copy that is too large for any cache."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device).random_()
    copy = torch.empty_like(source)
    timings = interleaved({"copy": lambda: copy.copy_(source)}, clock_for(device), seconds)
    return 2 * _COPY_BYTES / timings["copy"].seconds
