"""Cyclic garbage is not looked for while a program is planned and written.

Plans and kernels are many small objects that live until the program is done, hardly any of them in
cycles. Python's collector would go through all of them, and through those of torch and Thunder,
again and again: about a quarter of the time that a program of thousands of operations takes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_depth = 0
_was_enabled = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector, in all threads, until whatever asks for that is done.

    Also a decorator. A collector that was off before stays off.
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
            _depth -= 1
            if not _depth and _was_enabled:
                gc.enable()
