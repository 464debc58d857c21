"""A target that launches nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.runtime.target import target_for

HOST = target_for(torch.device("cpu"))


class Still:
    """A target whose launches do nothing: what is left of a call is its memory."""

    name = "host"

    def device_info(self, device: torch.device) -> DeviceInfo:
        return HOST.device_info(device)

    def compile(self, kernels: Sequence[Kernel]) -> tuple[_Nothing, ...]:
        return tuple(map(_Nothing, kernels))


class _Nothing:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, *args: float) -> None:
        pass
