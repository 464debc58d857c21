"""LRU cache of programs, for placements and sizes that change between calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from thunder_fuser.runtime.fork import Lock

Made = TypeVar("Made")

LIMIT = 16
"""Most kinds of inputs whose programs are kept. A training loop has one or two."""


class Recent(Generic[Made]):
    """A thread-safe LRU cache of at most `limit` entries."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._made: OrderedDict[Hashable, Made] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the entry of a key; make it if missing, only once for all threads."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
                if len(self._made) > self._limit:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]

    def __len__(self) -> int:
        return len(self._made)
