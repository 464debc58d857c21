"""Fork-safe, re-entrant locks: they are unlocked in a forked child and open to signal handlers.

A child has only the thread that forked, so that an ordinary lock held by another thread would stay
locked in it forever. A signal handler that calls a fusion while its thread compiles one would wait
for itself. Data protected by these locks is complete, or is looked up again.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType


class Lock:
    """Re-entrant mutex that is replaced by a new one in a forked child."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock = threading.RLock()
            self._process = os.getpid()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
