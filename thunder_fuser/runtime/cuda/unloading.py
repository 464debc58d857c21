"""Unloading of programs that nothing refers to any more.

A library may be unloaded when its last kernel has finished. A wait for the device would tell, but
while any stream of its context is captured into a CUDA graph, such a wait is illegal in every
thread and capture mode, and invalidates the capture. So each stream that a program was launched on
gets an event once the program is dropped: recording on a stream that is not captured and querying
in relaxed mode disturb no capture, and nothing waits.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fuser.errors import KernelError, ResourceError
from thunder_fuser.runtime.cuda import driver as cuda_driver

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """Libraries of a program that the driver has loaded, by architecture.

    is_kept  never unloaded: a CUDA graph may contain its kernels, or a stream that they were
             launched on may be destroyed
    """

    libraries: dict[str, Any] = field(default_factory=dict)
    is_kept: bool = False
    _streams: set[tuple[int, int]] = field(default_factory=set)
    _events: list[Any] = field(default_factory=list)

    def launched_on(self, device: int, stream: int) -> None:
        """Record that kernels are launched on `stream`, torch's current stream of `device`."""
        # The identifier of an external stream is its address. Its owner may destroy it at any time
        # and the driver does not check handles; torch's own streams and the default stream 0 stay.
        if stream and torch._C._cuda_getCurrentStream(device)[0] == stream:
            self.is_kept = True
        self._streams.add((device, stream))

    def is_finished(self) -> bool:
        """True if all launches have finished; False if they may not have, or a stream is captured.
        The caller holds `beside_captures`.
        """
        while self._streams:
            device, stream = place = next(iter(self._streams))
            with cuda_driver.context_of(device):
                if cuda_driver.may_be_capturing(stream):
                    return False
                self._events.append(cuda_driver.recorded_event(stream))
            self._streams.discard(place)
        return all(map(cuda_driver.is_complete, self._events))

    def unload(self) -> None:
        """Unload the libraries; all launches must have finished."""
        while self._events:
            cuda_driver.destroy_event(self._events.pop())
        for library in self.libraries.values():
            cuda_driver.unload_library(library)


retired: list[Loaded] = []
"""Loaded libraries of programs that are no longer referenced; their last launches may still run."""


def unload_retired() -> None:
    """Unload the retired programs whose launches have finished. Called at compilations; those that
    have not stay for the next one.
    """
    gone = []
    with contextlib.suppress(IndexError):  # other threads may pop concurrently
        while retired:
            gone.append(retired.pop())
    waiting = [loaded for loaded in gone if loaded.libraries and not loaded.is_kept]
    if not waiting:
        return
    with cuda_driver.beside_captures():
        for loaded in waiting:
            try:
                if loaded.is_finished():
                    loaded.unload()
                else:
                    retired.append(loaded)
            except ResourceError as error:
                retired.append(loaded)
                _log.info("a program is unloaded later: %s", error)
            except KernelError as error:  # a compilation does not fail for that
                _log.info("a program stays loaded: %s", error)
