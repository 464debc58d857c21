"""The protocol that connects generated kernels to machines: compile, then launch.

Two targets implement it, ``runtime/cuda/target.py`` and ``runtime/host/target.py``. Both take the
same ``Kernel`` text and the same arguments, so everything upstream is written once and never asks
where it runs. A ``DeviceInfo`` is all that schedules may know of a device, which is why a plan for
a GPU can be made on a machine that has none (``thunder_fuser/device.py``, ``device_table.py``).
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
    Any thread may call it, several at the same time.
    """

    @property
    def kernel(self) -> Kernel: ...

    def __call__(self, *args: int | float | bool) -> None: ...


class Target(Protocol):
    """A way to run kernels: the host or CUDA devices."""

    @property
    def name(self) -> str: ...

    def device_info(self, device: torch.device) -> DeviceInfo:
        """Describe `device`, which has this target's device type."""
        ...

    def compile(self, kernels: Sequence[Kernel]) -> tuple[Launch, ...]:
        """Compile `kernels` as one program, or load it from the disk cache; a launch for each.
        Those of one name have one text, and differ in their grids.

        On cuda that is for torch's current device, as launches are: `on_device` makes it another.
        Raises TargetError when there is no compiler, CompileError when it rejects the source,
        LimitError when a kernel asks for more than the device has.
        """
        ...


def planned_for(device: torch.device | None = None) -> DeviceInfo:
    """The device whose time a plan for tensors on `device` saves.

    What CPUs run is what a GPU would: the one of the `cuda_arch` option, if that is known. So it
    can be seen, tested and debugged there, whatever the machine has.
    """
    if device is not None and device.type == "cuda":
        return target_for(device).device_info(device)
    options = current()
    found = DATASHEETS.get(options.cuda_arch or "", H200)
    return found if options.clusters else replace(found, clusters=())


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU torch's current one, which kernels are compiled for and launches go to."""
    index = device.index if device.type == "cuda" and torch.cuda.is_available() else None
    is_current = index is None or torch._C._cuda_getDevice() == index
    return nullcontext() if is_current else torch.cuda.device(index)


def target_for(device: torch.device) -> Target:
    """The target that runs kernels on `device`; FuserValueError when there is none."""
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
