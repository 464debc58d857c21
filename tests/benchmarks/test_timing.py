"""Clocks and rounds: who is timed when, and what is kept of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from benchmarks.timing import (
    Clock,
    CudaClock,
    Timing,
    clock_for,
    host_clock,
    interleaved,
    thread_clock,
)


def test_contenders_take_turns_after_a_warm_up() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}

    def clock(call: Callable[[], object]) -> float:
        call()
        return float(len(order))

    timings = interleaved(calls, clock, seconds=0)
    rounds = len(timings["a"].rounds)
    warmed = len(order) - 2 * rounds
    assert rounds >= 5
    assert Counter(order[:warmed]) == {"a": warmed // 2, "b": warmed // 2}
    assert order[warmed:] == ["a", "b"] * rounds
    assert timings["a"].rounds == tuple(range(warmed + 1, warmed + 2 * rounds, 2))


def test_rounds_go_on_for_the_time_that_is_given() -> None:
    timings = interleaved({"a": lambda: None}, host_clock, seconds=0.05)
    assert len(timings["a"].rounds) > 5
    assert timings["a"].percentile == 10


def test_figures_forget_interruptions() -> None:
    quiet, busy = Timing((2.0,) * 5), Timing((4.0, 4.0, 4.0, 4.0, 400.0))
    assert busy.seconds == 4.0
    assert quiet.over(busy) == 0.5
    assert quiet.spread == 0.0
    assert Timing((1.0, 2.0, 3.0)).spread == pytest.approx(1.0)
    # Disturbed in most rounds, as CPUs may be.
    shared = Timing((4.0, 4.0, *[9.0] * 9), percentile=10)
    assert shared.seconds == 4.0


@pytest.mark.parametrize("clock", [host_clock, thread_clock])
def test_a_clock_runs_the_call_once(clock: Clock) -> None:
    runs: list[int] = []
    assert clock(lambda: runs.append(1)) > 0
    assert runs == [1]


def test_one_thread_is_timed_without_what_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, clock in ((1, thread_clock), (2, host_clock)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert clock_for(torch.device("cpu")) is clock
    # A sleep is an interruption that can be arranged.
    assert thread_clock(lambda: time.sleep(0.05)) < 0.05 <= host_clock(lambda: time.sleep(0.05))


def test_the_cuda_clock_times_between_events_behind_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Buffer:
        def zero_(self) -> None:
            log.append("flush")

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: object) -> float:
            return 2.5

    monkeypatch.setattr(torch, "empty", lambda *_, **__: Buffer())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert CudaClock()(lambda: log.append("call")) == 2.5e-3
    assert log[-5:] == ["flush", "event", "call", "event", "wait"]
    timings = interleaved({"a": lambda: None}, CudaClock(), seconds=0)
    assert timings["a"].percentile == 50


@pytest.mark.gpu
def test_on_a_gpu_more_work_takes_longer_whatever_the_host_does() -> None:
    # A structural fact of events: the wait on the device is inside, the one on the host is not.
    clock = clock_for(torch.device("cuda"))
    small, large = (torch.ones(n, device="cuda") for n in (1 << 10, 1 << 27))
    timings = interleaved({"small": small.exp, "large": large.exp}, clock, seconds=0.1)
    assert timings["small"].over(timings["large"]) < 1
