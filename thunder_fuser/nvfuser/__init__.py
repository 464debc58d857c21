"""Drop-in replacement for nvFuser's Python modules `nvfuser` and `nvfuser_direct`.

    import thunder_fuser

    thunder_fuser.install_as_nvfuser()
    from nvfuser_direct import DataType, FusionDefinition  # thunder_fuser's

Without that line the same names are in `thunder_fuser.nvfuser`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition import (
    DataType,
    FusionDefinition,
    Scalar,
    Tensor,
    TensorView,
    Val,
    compute_contiguity,
    compute_tensor_descriptor,
    ops,
    version,
)
from thunder_fuser.frontends.definition.executor_cache import (
    FusionCache,
    FusionExecutorCache,
    LRUCache,
    LruFusionCache,
)
from thunder_fuser.frontends.definition.graph import Fusion
from thunder_fuser.frontends.definition.multidevice.api import ParallelType
from thunder_fuser.frontends.definition.operations.unavailable import HandSchedule
from thunder_fuser.frontends.definition.profile import (
    FusionProfile,
    KernelProfile,
    PythonProfiler,
    get_fusion_profile,
    reset_profiler,
)
from thunder_fuser.ir.printer import to_python
from thunder_fuser.nvfuser import multidevice, pytorch_utils, versions
from thunder_fuser.nvfuser.installing import install_as_nvfuser

__version__ = version()

schedule = HandSchedule()

__all__ = [
    "DataType",
    "Fusion",
    "FusionCache",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionProfile",
    "KernelProfile",
    "LRUCache",
    "LruFusionCache",
    "ParallelType",
    "PythonProfiler",
    "Scalar",
    "Tensor",
    "TensorView",
    "Val",
    "clone",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "deserialize",
    "disable_automatic_serialization",
    "enable_automatic_serialization",
    "execute_with_dtensors",
    "get_fusion_profile",
    "install_as_nvfuser",
    "multidevice",
    "ops",
    "pytorch_utils",
    "reset_profiler",
    "schedule",
    "serialize",
    "translate_fusion",
    "version",
    "versions",
]


def translate_fusion(fusion: Fusion) -> str:
    """Return Python source that defines `fusion`, as `repr(fd)` does."""
    return to_python(fusion)


def clone(source: FusionDefinition, destination: FusionDefinition) -> None:
    """Copy the definition of `source` into `destination`, which must be empty: else FuserError.
    `fd.clone()` makes a new one.
    """
    if destination._is_begun():
        raise FuserError(
            "clone: the destination must be a new FusionDefinition, got one that is defined; pass "
            "FusionDefinition(), or call source.clone()"
        )
    destination._builder = source._builder.copied()


def serialize(filename: str | Path) -> None:
    """Write the definitions of `FusionCache.get()` to the file `filename`."""
    FusionCache.get().serialize(filename)


def deserialize(filename: str | Path) -> None:
    """Load the definitions in the file `filename` into `FusionCache.get()`."""
    FusionCache.get().deserialize(filename)


def enable_automatic_serialization() -> None:
    """Do nothing: compiled kernels are always on disk (`python -m thunder_fuser cache info`)."""


def disable_automatic_serialization() -> None:
    """Do nothing: see `enable_automatic_serialization`."""


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Sequence[Any]) -> list[torch.Tensor]:
    """Run `fd` on DTensor inputs and return DTensors: `fd.execute_with_dtensors`."""
    return fd.execute_with_dtensors(in_dtensors)
