"""Kernels of many programs, compiled in one call of the compiler, and quickly.

Programs are run twice: first with launches that do nothing, so that all of them say which kernels
they need, then for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

import thunder_fuser
from tests.batch import Batch, Number, _Later
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import CompileError
from thunder_fuser.runtime import dispatch, host_build, steps
from thunder_fuser.runtime.target import Launch


class TolerantBatch(Batch):
    """A batch in which a kernel that does not compile fails alone."""

    _alone = False

    def launch(self, kernel: Kernel) -> Launch:
        if not self._alone:
            try:
                return super().launch(kernel)
            except CompileError:
                self._alone = True
        (launch,) = self._target.compile([kernel])
        return launch


class Rehearsal:
    """Whether launches are left out; memory is then zero."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.is_on = False


@contextmanager
def compiled_together(
    info: DeviceInfo | None = None, *, optimised: bool = False
) -> Iterator[Rehearsal]:
    """Executables made inside share one batch, compiled at the first launch after a rehearsal."""
    state = Rehearsal(TolerantBatch(torch.device("cpu"), info))
    launch, allocator = _Later.__call__, steps.allocator

    def launched(self: _Later, *args: Number) -> None:
        if not state.is_on:
            launch(self, *args)

    def zeroed(device: torch.device) -> steps.Empty:
        empty = allocator(device)
        return lambda sizes, strides, dtype: empty(sizes, strides, dtype).zero_()

    flags = ("-fwrapv",) if optimised else ("-fwrapv", "-O0")
    with (
        mock.patch.object(dispatch, "target_for", return_value=state.batch),
        mock.patch.object(_Later, "__call__", launched),
        mock.patch.object(steps, "allocator", zeroed),
        mock.patch.dict(host_build._KERNEL_FLAGS, {None: flags}),
        thunder_fuser.options(strict=True),
    ):
        yield state
