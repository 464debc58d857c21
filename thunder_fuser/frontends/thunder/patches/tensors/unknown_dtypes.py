"""Dtypes of torch that Thunder has not, such as `torch.uint16`: an error that says so.

A function of a tensor of one raised a KeyError of the interpreter.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes

from thunder_fuser.frontends.thunder.patches.patched import UntraceableError


class _Known(dict[Any, dtypes.dtype]):
    """Thunder's dtypes by torch's."""

    def __missing__(self, dtype: Any) -> dtypes.dtype:
        raise UntraceableError(
            f"{dtype}: a trace has no tensors of this dtype; convert them, or view them as a dtype "
            "of the same size (x.view(torch.int16)), outside of the compiled function"
        )


def register() -> None:
    """Patch how Thunder looks up dtypes."""
    dtypes._torch_to_thunder_dtype_map = _Known(dtypes._torch_to_thunder_dtype_map)
