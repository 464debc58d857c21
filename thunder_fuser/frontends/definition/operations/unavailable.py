"""Unsupported names of nvFuser's API: a description of each and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from thunder_fuser.errors import FuserError

if TYPE_CHECKING:
    from thunder_fuser.frontends.definition.multidevice.api import DeviceMesh, ParallelType


class UnavailableOp(FuserError, AttributeError):
    """An unsupported nvFuser operation or method; an AttributeError, so that `hasattr` is False."""


_BETWEEN = "between two definitions"
_SCALED = "a matrix product of scaled low-precision numbers; use torch._scaled_mm " + _BETWEEN
_BLOCKS = "a quantisation to 4-bit floats in blocks; use the library that quantises the weights, "

OPERATIONS: MappingProxyType[str, str] = MappingProxyType(
    {
        "cutlass_nvfp4_grouped_mm": f"{_SCALED}, once for each group of rows",
        "preprocess_grouped_matmul_input_sf": "a layout of block scales for CUTLASS's grouped "
        "matrix product; it has no use without that product",
        "nv_block_quantize": _BLOCKS + _BETWEEN,
        "nv_grouped_block_quantize": _BLOCKS + _BETWEEN,
    }
)
"""Unsupported operations of fd.ops: name -> description and alternative."""

SCHEDULING = frozenset(
    (
        *("split", "merge", "reorder", "swizzle", "rfactor", "outer_split", "axis", "parallelize"),
        *("cache_after", "cache_before", "cache_fork", "set_memory_type", "set_allocation_domain"),
        *("inline_at", "inline_most", "bounded_transform_backward", "transform_like"),
        *("parallelize_like", "can_schedule", "find_compatible_schedulers", "compute_heuristics"),
        *("schedule", "warp_specialize", "tensors"),
    )
)
"""Unsupported methods of tensors and of fd.sched: those that write a schedule by hand."""


def unavailable_operation(name: str) -> UnavailableOp | None:
    """The error for an unsupported operation `fd.ops.name`; None if nvFuser has none either."""
    if name not in OPERATIONS:
        return None
    return UnavailableOp(
        f"fd.ops.{name} is not available in this version of thunder_fuser: it is {OPERATIONS[name]}"
    )


def unavailable_method(owner: str, name: str) -> UnavailableOp | None:
    """The error for `owner`.`name`, an unsupported method of a tensor or of fd.sched; else None."""
    if name in SCHEDULING:
        return UnavailableOp(
            f"{owner}.{name} is not available: thunder_fuser makes every schedule itself, and "
            "results do not depend on it; leave the call out (print(fd.plan()) shows what runs). "
            "To shard a tensor over devices, call set_device_mesh on it first"
        )
    return None


class HandSchedule:
    """`fd.sched`: placements on a mesh, as methods of the schedule that take the tensor; those of
    the tensor itself do the same. Every other scheduling method of nvFuser raises UnavailableOp, as
    these do for a tensor without a mesh.
    """

    def set_device_mesh(self, tensor: Any, mesh: DeviceMesh) -> None:
        """Place a tensor on a mesh."""
        tensor.set_device_mesh(mesh)

    _set_device_mesh = set_device_mesh

    def split(self, tensor: Any, axis: int, factor: int, inner_split: bool = True) -> None:
        """Split a loop axis of a tensor with a mesh."""
        tensor.split(axis, factor, inner_split=inner_split)

    def reorder(self, tensor: Any, old_to_new: Mapping[int, int] | Sequence[int]) -> None:
        """Permute the loop axes of a tensor with a mesh."""
        tensor.reorder(old_to_new)

    def parallelize(self, tensor: Any, axis: int, parallel: ParallelType) -> None:
        """Parallelise a loop axis of a tensor with a mesh."""
        tensor.axis(axis).parallelize(parallel)

    def set_allocation_as_loop(self, tensor: Any) -> None:
        """Accepted and ignored, as `set_allocation_domain` is: the plan decides memory layouts."""
        tensor.set_allocation_domain(tensor.get_loop_domain())

    def __getattr__(self, name: str) -> None:
        found = unavailable_method("fd.sched", name)
        raise found or AttributeError(f"there is no fd.sched.{name}")
