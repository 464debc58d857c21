"""LRU eviction of the executables of a process.

A fusion has one executable for each combination of shapes, strides and alignments, and each keeps a
program loaded: a loop over ever new sizes would fill the process with mappings. The limit is the
option `executables`. Running calls are not affected: a call refers to its executable, and a program
is unloaded when nothing refers to it.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from typing import Protocol

from thunder_fuser.config import current
from thunder_fuser.runtime.fork import Lock

_log = logging.getLogger(__name__)

now = itertools.count().__next__
"""Logical time of a use: a counter."""


class Resident(Protocol):
    """Evictable object; `used` is the time of its last use, by `now`."""

    used: int


class Owner(Protocol):
    """Owner of residents, which drops them on eviction."""

    name: str

    def forget(self, resident: object) -> None:
        """Drop `resident`."""


class ExecutableLru:
    """LRU list of all executables, by weak references; `evicted` counts evictions."""

    def __init__(self) -> None:
        self.evicted = 0
        self._known: list[tuple[weakref.ref[Resident], weakref.ref[Owner]]] = []
        self._lock = Lock()

    def __len__(self) -> int:
        return sum(found() is not None for found, _ in self._known)

    def admit(self, arrived: Resident, owner: Owner) -> None:
        """Add an executable and evict the least recently used ones beyond the limit."""
        with self._lock:
            self._known = [pair for pair in self._known if pair[0]() is not None]
            others = [(found(), keeper) for found, keeper in self._known]
            alive = [(found, keeper) for found, keeper in others if found is not None]
            excess = len(alive) + 1 - current().executables
            oldest = sorted(alive, key=lambda pair: pair[0].used)[: max(excess, 0)]
            gone = {id(found) for found, _ in oldest}
            self._known = [pair for pair in self._known if id(pair[0]()) not in gone]
            self._known.append((weakref.ref(arrived), weakref.ref(owner)))
            self.evicted += len(oldest)
        for found, keeper in oldest:
            if (kept_by := keeper()) is not None:
                _log.info("%s: an executable that was not used for long goes", kept_by.name)
                kept_by.forget(found)


EXECUTABLES = ExecutableLru()
