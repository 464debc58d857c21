"""nvFuser's `pytorch_utils`: dtype conversion between torch and definitions, and GPU properties."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.ir.dtypes import DataType, from_torch, of_number
from thunder_fuser.runtime.target import target_for

_OF_PYTHON = {
    bool: DataType.Bool,
    int: DataType.Int,
    float: DataType.Double,
    complex: DataType.ComplexDouble,
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def torch_dtype_to_nvfuser_dtype(dtype: torch.dtype | type) -> DataType:
    """Return the DataType of a torch dtype or of bool, int, float or complex; else
    FuserTypeError.
    """
    if isinstance(dtype, type) and dtype in _OF_PYTHON:
        return _OF_PYTHON[dtype]
    if not isinstance(dtype, torch.dtype):
        raise FuserTypeError(
            "torch_dtype_to_nvfuser_dtype: expected a torch.dtype or a type of numbers, got "
            f"{dtype!r}; pass x.dtype, torch.float32 or float"
        )
    return from_torch(dtype)


def nvfuser_dtype_to_torch_dtype(dtype: DataType) -> torch.dtype:
    """Return the torch dtype of a DataType; FuserTypeError for anything else."""
    if not isinstance(dtype, DataType):
        raise FuserTypeError(
            f"nvfuser_dtype_to_torch_dtype: expected a DataType, got {dtype!r}; pass one, such as "
            "DataType.Float"
        )
    return dtype.torch


def python_scalar_to_nvfuser_dtype(a: float | complex) -> DataType:
    """Return the DataType of a Python number."""
    return of_number(a)


def retry_on_oom_or_skip_test(func: _Function) -> _Function:
    """Decorate a test: after an out-of-memory error, empty torch's cache and retry once; skip the
    test if that fails too.
    """

    @functools.wraps(func)
    def retried(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError:
            pass
        # Outside of the handler, because the exception holds the tensors of the first attempt.
        gc.collect()
        torch.cuda.empty_cache()
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            import pytest

            return pytest.skip(f"out of memory: {error}")

    return retried  # type: ignore[return-value]


def get_device_properties() -> dict[str, Any]:
    """Return properties of the current GPU by the names that nvFuser's benchmarks use."""
    device = torch.device("cuda", torch.cuda.current_device())
    seen, info = torch.cuda.get_device_properties(device), target_for(device).device_info(device)
    return {
        "gpu_name": seen.name,
        "gpu_compute_capability_major": seen.major,
        "gpu_compute_capability_minor": seen.minor,
        "gpu_gmem_bytes": seen.total_memory,
        "gpu_sm_count": info.sm_count,
        "gpu_max_threads_per_block": info.max_threads_per_block,
        "gpu_max_threads_per_sm": info.threads_per_sm,
        "gpu_smem_bytes_per_block": info.shared_bytes_per_block,
        "gpu_regs_per_block": info.registers_per_sm,
        "gpu_l2_bytes": info.l2_bytes,
        "gpu_peak_bandwidth_gbps": info.bandwidth / 1e9,
    }


def __getattr__(name: str) -> Any:
    """Compute DEVICE_PROPERTIES on access: `get_device_properties()`, or None without a GPU."""
    if name == "DEVICE_PROPERTIES":
        return get_device_properties() if torch.cuda.is_available() else None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
