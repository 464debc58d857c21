"""Python's cyclic garbage collector is paused during planning and code generation.

Plans and kernels are many small, long-lived objects, hardly any of them in cycles. The collector
would traverse them, and the objects of torch and Thunder, repeatedly: about a quarter of the time
for a program of thousands of operations.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a signal handler may compile, too
_depth = 0
_was_enabled = False


def _after_fork_in_child() -> None:
    """A child process has only the thread that forked: a pause by another one never ends there."""
    global _lock, _depth
    _lock = threading.RLock()
    if _depth:
        _depth = 0
        if _was_enabled:
            gc.enable()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, in all threads, until the last such context ends.

    Also a decorator. A collector that was disabled before stays disabled.
    """
    global _depth, _was_enabled
    with _lock:
        if not _depth:
            _was_enabled = gc.isenabled()
            gc.disable()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            # 0 in a child that was forked inside of the block.
            _depth = max(_depth - 1, 0)
            if not _depth and _was_enabled:
                gc.enable()
