"""Kernels of many programs, compiled in one call of the compiler, and quickly.

Programs are run twice: first with launches that do nothing, so that all of them say which kernels
they need, then for good.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch

import thunder_fuser
from tests.support.batch import Batch, Number, _Later
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.errors import CompileError
from thunder_fuser.runtime import steps
from thunder_fuser.runtime.host import build as host_build
from thunder_fuser.runtime.target import Launch, target_for

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Device:
    """What programs are planned for, and what their kernels are scheduled for."""

    name: str
    planned_for: DeviceInfo
    scheduled_for: DeviceInfo


@functools.cache
def devices() -> tuple[Device, ...]:
    """The host as it is, a GPU, and both with caches that the smallest tensors exceed.

    On "divides" memory comes in large pieces and kernels start at no cost, so that much is divided
    and stored that is one kernel for an H200.
    """
    host = target_for(_CPU).device_info(_CPU)
    small = replace(
        H200, name="small", l2_bytes=256, shared_bytes_per_block=4096, shared_bytes_per_sm=8192
    )
    divides = replace(H200, launch_seconds=0.0, sm_count=1 << 20, sector_bytes=1024, l2_bytes=0)
    return (
        Device("host", H200, host),
        Device("H200", H200, H200),
        Device("small caches", small, small),
        Device("divides", divides, H200),
        Device("host with small caches", small, replace(host, l2_bytes=256)),
    )


class TolerantBatch(Batch):
    """A batch in which a kernel that does not compile fails alone."""

    _alone = False

    def schedule_for(self, info: DeviceInfo) -> None:
        """From now on: executables of one batch may be of many devices."""
        self._info = info

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While executables are made."""
        yield

    def launch(self, kernel: Kernel) -> Launch:
        if not self._alone:
            try:
                return super().launch(kernel)
            except CompileError:
                self._alone = True
        (launch,) = self._target.compile([kernel])
        return launch


class Rehearsal:
    """Whether launches are left out; memory is then zero.

    allocated  is told of what calls make
    """

    def __init__(self, batch: TolerantBatch, device: Device) -> None:
        self.batch = batch
        self.device = device
        self.is_on = False
        self.allocated: Callable[[torch.Tensor], None] | None = None

    def plan_for(self, device: Device) -> None:
        """From now on."""
        self.device = device
        self.batch.schedule_for(device.scheduled_for)


@contextmanager
def compiled_together(
    device: Device, *, optimised: bool = False, batch: type[TolerantBatch] = TolerantBatch
) -> Iterator[Rehearsal]:
    """Executables made inside share one batch, compiled at the first launch after a rehearsal."""
    state = Rehearsal(batch(_CPU, device.scheduled_for), device)
    launch, allocator = _Later.__call__, steps.allocator

    def launched(self: _Later, *args: Number) -> None:
        if not state.is_on:
            launch(self, *args)

    def zeroed(device: torch.device) -> steps.Empty:
        empty = allocator(device)

        def made(*how: Any) -> torch.Tensor:
            found = empty(*how).zero_()
            if state.allocated is not None:
                state.allocated(found)
            return found

        return made

    flags = ("-fwrapv",) if optimised else ("-fwrapv", "-O0")
    with (
        mock.patch("thunder_fuser.compile.target_for", return_value=state.batch),
        mock.patch(
            "thunder_fuser.compile.planned_for", side_effect=lambda _: state.device.planned_for
        ),
        mock.patch("thunder_fuser.frontends.thunder.first_calls.compile_ahead"),
        mock.patch.object(_Later, "__call__", launched),
        mock.patch.object(steps, "allocator", zeroed),
        mock.patch.dict(host_build._KERNEL_FLAGS, {None: flags}),
        thunder_fuser.options(strict=True),
        state.batch.installed(),
    ):
        yield state
