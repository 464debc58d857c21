"""Fork-safe locks: a forked child finds them free.

A child has one thread, the one that forked; a lock that another thread held stays locked in it for
ever. What the lock protects is either finished or is looked up again.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType


class Lock:
    """A mutex of one process: after a fork the child has its own."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock = threading.Lock()
            self._process = os.getpid()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
