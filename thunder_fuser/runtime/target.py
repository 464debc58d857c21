"""Protocols of targets and launches: compile kernels, then launch them.

Two targets implement them, ``runtime/cuda/target.py`` and ``runtime/host/target.py``. Both take the
same ``Kernel`` text and arguments, so that code upstream does not depend on the target. Schedules
depend on a device only through its ``DeviceInfo``, so that a plan for a GPU can be made on a
machine without one (``thunder_fuser/device.py``, ``device_table.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATASHEETS, H200
from thunder_fuser.errors import FuserValueError


class Launch(Protocol):
    """A compiled kernel. Calling it enqueues one launch with the kernel's own geometry.

    Arguments follow `kernel.params`: addresses (int) for pointers, Python numbers for the rest.
    On cuda the launch goes to torch's current stream; on the host it has finished on return.
    Thread-safe.
    """

    @property
    def kernel(self) -> Kernel: ...

    def __call__(self, *args: int | float | bool) -> None: ...


class Target(Protocol):
    """Compiler and launcher of kernels, for the host or for CUDA devices."""

    @property
    def name(self) -> str: ...

    def device_info(self, device: torch.device) -> DeviceInfo:
        """Describe `device`, which has this target's device type."""
        ...

    def compile(self, kernels: Sequence[Kernel]) -> tuple[Launch, ...]:
        """Compile `kernels` as one program, or load it from the disk cache; one launch for each.
        Kernels of equal name have equal text, and differ only in their grids.

        On cuda, for torch's current device, as launches are: `on_device` changes it.
        Raises TargetError without a compiler, CompileError if it rejects the source, LimitError if
        a kernel exceeds the device's limits.
        """
        ...


def planned_for(device: torch.device | None = None) -> DeviceInfo:
    """Return the device that plans for tensors on `device` are optimised for.

    For CPU tensors it is a GPU, too: that of the `cuda_arch` option if it has a data sheet, else an
    H200, so that a GPU's plans can be inspected, tested and debugged on any machine.
    """
    if device is not None and device.type == "cuda":
        return target_for(device).device_info(device)
    options = current()
    found = DATASHEETS.get(options.cuda_arch or "", H200)
    return found if options.clusters else replace(found, clusters=())


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU torch's current device, which kernels are compiled for and launched on."""
    index = device.index if device.type == "cuda" and torch.cuda.is_available() else None
    is_current = index is None or torch._C._cuda_getDevice() == index
    return nullcontext() if is_current else torch.cuda.device(index)


def target_for(device: torch.device) -> Target:
    """Return the target for a cpu or cuda `device`; FuserValueError for other devices."""
    if device.type == "cpu":
        from thunder_fuser.runtime.host.target import HOST

        return HOST
    if device.type == "cuda":
        from thunder_fuser.runtime.cuda.target import CUDA

        return CUDA
    raise FuserValueError(
        f"no kernels can be generated for device '{device}': expected a 'cpu' or 'cuda' device; "
        "move the tensors there, or leave this operation to torch"
    )
