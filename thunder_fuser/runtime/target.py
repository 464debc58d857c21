"""The protocol that connects generated kernels to machines: compile, then launch.

Two targets implement it, ``runtime/cuda.py`` and ``runtime/host.py``. Both take the same ``Kernel``
text and the same arguments, so everything upstream is written once and never asks where it runs.
A ``DeviceInfo`` is all that schedules may know of a device, which is why a plan for a GPU can be
made on a machine that has none (``runtime/device_table.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from thunder_fuser.codegen.kernel import Extent3, Kernel
from thunder_fuser.errors import FuserValueError


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What schedules know of a device. Sizes in bytes, `bandwidth` in bytes per second.

    vector_bytes            widest useful access of one thread: 16 on a GPU; on the host more, so
                            that one thread's vector loop fills SIMD registers
    bytes_in_flight_per_sm  loads that must be outstanding to reach `bandwidth`; 0 on the host,
                            whose cores prefetch by themselves
    """

    name: str
    kind: Literal["host", "cuda"]
    arch: str
    sm_count: int
    threads_per_sm: int
    registers_per_sm: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    max_threads_per_block: int
    max_grid: Extent3
    vector_bytes: int
    bandwidth: float
    l2_bytes: int
    bytes_in_flight_per_sm: int


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
        """Compile `kernels` as one program (their names differ) or load it from the disk cache.

        Raises CompileError when there is no compiler or it rejects the source.
        """
        ...


def target_for(device: torch.device) -> Target:
    """The target that runs kernels on `device`; FuserValueError when there is none."""
    if device.type == "cpu":
        from thunder_fuser.runtime.host import HOST

        return HOST
    if device.type == "cuda":
        from thunder_fuser.runtime.cuda import CUDA

        return CUDA
    raise FuserValueError(
        f"no kernels can be generated for device '{device}': expected a 'cpu' or 'cuda' device; "
        "move the tensors there, or leave this operation to torch"
    )
