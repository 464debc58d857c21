"""Dtypes of torch that Thunder has not, such as `torch.uint16`: an error that says so.

A function of a tensor of one raised a KeyError of the interpreter. Thunder has uint64 for the seeds
of attention, and no promotion to or from it: `x.to(torch.uint64)` raised an "Unknown dtype", and
arithmetic a KeyError. Conversions, views and copies of such tensors run, for all executors, and
arithmetic raises an error that says what to do.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes, utils

from thunder_fuser.frontends.thunder.patches.patched import UntraceableError


class _Known(dict[Any, dtypes.dtype]):
    """Thunder's dtypes by torch's."""

    def __missing__(self, dtype: Any) -> dtypes.dtype:
        raise UntraceableError(
            f"{dtype}: a trace has no tensors of this dtype; convert them, or view them as a dtype "
            "of the same size (x.view(torch.int16)), outside of the compiled function"
        )


class _Promoted(dict[Any, int]):
    """Places of exact dtypes in Thunder's table of promotions."""

    def __missing__(self, dtype: Any) -> int:
        raise UntraceableError(
            f"arithmetic of {dtypes.to_torch_dtype(dtype)}, which a trace only converts and moves; "
            "convert the tensor first, as by x.to(torch.int64), or view it (x.view(torch.int64))"
        )


def register() -> None:
    """Patch how Thunder looks up dtypes, and how it promotes them."""
    dtypes._torch_to_thunder_dtype_map = _Known(dtypes._torch_to_thunder_dtype_map)
    dtypes.all_dtypes.add(dtypes.uint64)
    utils._exact_dtype_to_number_map = _Promoted(utils._exact_dtype_to_number_map)
