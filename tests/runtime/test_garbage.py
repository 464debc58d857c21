"""The collector is paused while programs are planned, and is on again afterwards."""

from __future__ import annotations

import contextlib
import gc
import threading

from benchmarks.growing import cost
from thunder_fuser.garbage import uncollected


def test_planning_does_not_look_for_garbage() -> None:
    collections: list[str] = []

    def watch(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(watch)
    try:
        with uncollected():
            cost("pointwise", 100)
            seen = list(collections)
    finally:
        gc.callbacks.remove(watch)
    assert not seen
    assert gc.isenabled()


def test_it_is_on_again_when_the_last_one_is_done() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with uncollected():
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with contextlib.suppress(ZeroDivisionError), uncollected():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected(), uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
