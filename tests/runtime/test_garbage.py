"""The collector is paused while programs are planned, and is on again afterwards."""

from __future__ import annotations

import contextlib
import gc
import os
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


def test_it_is_on_in_a_child_forked_while_it_was_paused() -> None:
    """Whoever paused it is not in the child."""
    with uncollected():
        child = os.fork()
        if not child:
            with uncollected():
                paused = not gc.isenabled()
            os._exit(0 if paused and gc.isenabled() else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert gc.isenabled()
