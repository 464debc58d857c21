"""nvFuser's multi-device API: meshes, loop splits of tensors, and parallelisation over a mesh.

    mesh = multidevice.DeviceMesh(torch.arange(4))
    x.set_device_mesh(mesh)
    x.outer_split(0, 4)
    x.axis(0).parallelize(ParallelType.mesh_x)

A loop axis is a digit of the index along a dimension; a split makes two axes of one. A loop axis
parallelised over a mesh axis is the tensor's placement along that mesh axis (sharding/mesh.py).
Results do not depend on anything else written here, such as orders of axes and allocation domains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir import fusion as ir
from thunder_fuser.sharding import mesh as sharding
from thunder_fuser.sharding.mesh import Placement, Shard, shard_of
from thunder_fuser.sharding.shardings import Shardings


class ParallelType(Enum):
    """Parallelisation of a loop axis: serial, or a mesh axis, counted from the innermost."""

    serial = None
    mesh_x = 0
    mesh_y = 1
    mesh_z = 2


class DeviceMesh(sharding.DeviceMesh):
    """Devices in a grid: `DeviceMesh(torch.arange(8).reshape(2, 4))`; at most 3 axes.

    Raises FuserValueError where they are not numbered row-major from 0.
    """

    def __init__(self, ids: torch.Tensor | Sequence[int]) -> None:
        numbers = torch.as_tensor(ids)
        if not numbers.dim() or numbers.flatten().tolist() != list(range(numbers.numel())):
            raise FuserValueError(
                f"DeviceMesh: expected devices 0, 1, ... in row-major order, got "
                f"{numbers.tolist()}; write torch.arange(n), reshaped to the mesh"
            )
        names = tuple(t.name for t in _AXES[: numbers.dim()])
        if len(names) < numbers.dim():
            raise FuserValueError(f"DeviceMesh: {numbers.dim()} axes; there are 3 at most")
        super().__init__(tuple(numbers.shape), tuple(reversed(names)))

    def shard_tensor(self, tensor: torch.Tensor, dim: int, rank: int | None = None) -> torch.Tensor:
        """The contiguous chunk of `tensor` along `dim` owned by `rank` (default: this process').

        FuserValueError for a mesh of several axes.
        """
        if len(self.shape) != 1:
            raise FuserValueError(
                "DeviceMesh.shard_tensor: the mesh has several axes; annotate a tensor, and call "
                "multidevice.shard_tensor(x, tensor)"
            )
        shard = sharding.outer(dim % tensor.ndim, tensor.shape[dim], self.size)
        return shard_of(tensor, (shard,), self.coordinates(this_rank() if rank is None else rank))


_AXES = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


def this_rank() -> int:
    """The rank of this process; 0 without a process group."""
    found = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if found else 0


@dataclass(frozen=True, slots=True)
class _Digit:
    """A loop axis of a tensor of known sizes: the digit `(i // width) % extent` along `dim`."""

    dim: int
    width: int
    extent: int
    parallel: ParallelType = ParallelType.serial


@dataclass(frozen=True, slots=True)
class _Step:
    """One recorded loop transform; `axis` is a position at the time of the step."""

    kind: str
    axis: int
    number: int = 0
    order: tuple[int, ...] = ()
    parallel: ParallelType = ParallelType.serial


class LoopDomain:
    """The loop axes of one tensor on a mesh, as recorded steps, since sizes may be open."""

    def __init__(self, tensor: ir.TensorView, mesh: DeviceMesh) -> None:
        self.tensor = tensor
        self.mesh = mesh
        self._steps: list[_Step] = []
        self._rank = tensor.rank

    # ---- user interface

    def outer_split(self, axis: int, factor: int) -> None:
        """Split an axis into `factor` contiguous chunks: (factor, extent / factor)."""
        self._split("outer", axis, factor)

    def inner_split(self, axis: int, factor: int) -> None:
        """Split an axis into chunks of `factor` elements: (extent / factor, factor)."""
        self._split("inner", axis, factor)

    def split(self, axis: int, factor: int, inner_split: bool = True) -> None:
        """`inner_split` or `outer_split`."""
        self._split("inner" if inner_split else "outer", axis, factor)

    def axis(self, k: int) -> LoopAxis:
        """Loop axis `k`, as a handle for `parallelize`."""
        return LoopAxis(self, self._position(k))

    def reorder(self, old_to_new: Mapping[int, int] | Sequence[int]) -> None:
        """Permute the axes: {old: new}, or for each new position the old one. FuserValueError for
        anything but a permutation.
        """
        if isinstance(old_to_new, Mapping):
            moved = {self._position(a): self._position(b) for a, b in old_to_new.items()}
            rest = iter(k for k in range(self._rank) if k not in moved)
            taken = {new: old for old, new in moved.items()}
            order = tuple(taken[k] if k in taken else next(rest) for k in range(self._rank))
        else:
            order = tuple(map(self._position, old_to_new))
        if sorted(order) != list(range(self._rank)):
            raise FuserValueError(
                f"reorder of {self.tensor.name}: {old_to_new} does not order {self._rank} axes"
            )
        self._steps.append(_Step("reorder", 0, order=order))

    def set_allocation_domain(self, domain: object, contiguity: object = True) -> None:
        """Accepted and ignored: the plan decides memory layouts."""

    def get_loop_domain(self) -> list[LoopAxis]:
        """Handles of all loop axes, in order."""
        return [LoopAxis(self, k) for k in range(self._rank)]

    def parallelize(self, k: int, parallel: ParallelType) -> None:
        """Parallelise loop axis `k`; FuserValueError if the mesh has no such axis."""
        if not isinstance(parallel, ParallelType):
            raise FuserTypeError(
                f"parallelize: expected ParallelType.mesh_x, mesh_y, mesh_z or serial, got "
                f"{parallel!r}; threads and blocks are for thunder_fuser to choose"
            )
        if parallel.value is not None and parallel.value >= len(self.mesh.shape):
            raise FuserValueError(
                f"{self.tensor.name}: {parallel.name} of a mesh of {len(self.mesh.shape)} axes"
            )
        self._steps.append(_Step("parallel", self._position(k), parallel=parallel))

    # ---- placements

    def placements(self, sizes: Sequence[int]) -> dict[str, Placement]:
        """Shards of a tensor of such sizes, keyed by the names of mesh axes. FuserValueError if a
        split does not divide, or a parallel axis does not have the size of its mesh axis.
        """
        found: dict[str, Placement] = {}
        for digit in self._digits(sizes):
            if digit.parallel is ParallelType.serial:
                continue
            name = digit.parallel.name
            devices = self.mesh.shape[self.mesh.axis(name)]
            if name in found:
                raise FuserValueError(f"{self.tensor.name}: two axes are parallelised as {name}")
            if digit.extent != devices:
                raise FuserValueError(
                    f"{self.tensor.name}: an axis of {digit.extent} is parallelised over {name}, "
                    f"which has {devices} devices; split it by {devices}"
                )
            found[name] = Shard(digit.dim, digit.width, digit.extent)
        return found

    def shares(self) -> list[int]:
        """For each dimension, the number of devices that its elements are sharded over."""
        found = [1] * self.tensor.rank
        # Neither the dimension of a loop axis nor its parallelisation depends on sizes.
        for digit in self._digits(None):
            if digit.parallel is not ParallelType.serial:
                found[digit.dim] *= self.mesh.shape[self.mesh.axis(digit.parallel.name)]
        return found

    def _digits(self, sizes: Sequence[int] | None) -> list[_Digit]:
        dims = enumerate(sizes if sizes is not None else [0] * self.tensor.rank)
        axes = [_Digit(k, 1, size) for k, size in dims]
        for step in self._steps:
            found = axes[step.axis] if axes else None
            if step.kind == "reorder" or found is None:
                axes = [axes[k] for k in step.order]
            elif step.kind == "parallel":
                axes[step.axis] = replace(found, parallel=step.parallel)
            else:
                axes[step.axis : step.axis + 1] = self._halves(found, step)
        return axes

    def _halves(self, digit: _Digit, step: _Step) -> list[_Digit]:
        rest = digit.extent // step.number
        if digit.extent % step.number:
            raise FuserValueError(
                f"{self.tensor.name}: dimension {digit.dim} has an axis of {digit.extent} "
                f"elements, which {step.number} does not divide; every device must have as many"
            )
        outer, inner = (step.number, rest) if step.kind == "outer" else (rest, step.number)
        return [
            _Digit(digit.dim, digit.width * inner, outer),
            _Digit(digit.dim, digit.width, inner),
        ]

    def _split(self, kind: str, axis: int, factor: int) -> None:
        if not isinstance(factor, int) or factor < 1:
            raise FuserValueError(f"{kind}_split of {self.tensor.name}: {factor} is no factor")
        self._steps.append(_Step(kind, self._position(axis), factor))
        self._rank += 1

    def _position(self, k: int) -> int:
        if not -self._rank <= k < self._rank:
            raise FuserValueError(
                f"{self.tensor.name}: there is no loop axis {k}; it has {self._rank}"
            )
        return k % self._rank


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """Handle of one axis of a tensor's loop domain."""

    loops: LoopDomain
    position: int

    def parallelize(self, parallel: ParallelType) -> None:
        """Parallelise the axis over a mesh axis, or not at all (`ParallelType.serial`)."""
        self.loops.parallelize(self.position, parallel)


METHODS = frozenset(
    (
        *("outer_split", "inner_split", "split", "axis", "reorder"),
        *("set_allocation_domain", "get_loop_domain"),
    )
)
"""Methods available on tensors that have a device mesh."""


def whole_inputs(
    fusion: ir.Fusion, inputs: Sequence[Any], loops: Mapping[ir.TensorView, LoopDomain]
) -> list[Any]:
    """Meta tensors of global size in place of local shards; numbers are kept."""
    found: list[Any] = []
    for value, x in zip(fusion.inputs, inputs, strict=False):
        if not isinstance(value, ir.TensorView) or not isinstance(x, torch.Tensor):
            found.append(x)
        elif value in loops:
            shares = loops[value].shares()
            sizes = [s * share for s, share in zip(x.shape, shares, strict=False)]
            found.append(torch.empty(sizes, dtype=x.dtype, device="meta"))
        elif value.domain.is_static:
            found.append(torch.empty(value.sizes, dtype=x.dtype, device="meta"))
        else:
            raise FuserValueError(
                f"{value.name} leaves sizes open and has no mesh, so that a rank's part does not "
                "tell them; call set_device_mesh on it (it is replicated then), or fix its sizes"
            )
    return [*found, *inputs[len(found) :]]


def shard_tensor(tensor: torch.Tensor, of: Any, rank: int | None = None) -> torch.Tensor:
    """The shard of a global tensor owned by `rank` (default: this process'); `of` is a tensor of a
    definition, whose placement it takes. FuserValueError if that has no mesh.
    """
    loops: LoopDomain | None = of.owner.loops.get(of.val)
    if loops is None:
        raise FuserValueError(
            f"shard_tensor: {of} has no mesh; call set_device_mesh on it when it is defined"
        )
    found = loops.placements(tensor.shape)
    placed = tuple(found.get(name, sharding.REPLICATE) for name in loops.mesh.names)
    return shard_of(tensor, placed, loops.mesh.coordinates(this_rank() if rank is None else rank))


@dataclass(frozen=True, slots=True)
class OutputSharding:
    """Placement of an output; `mesh` has `shape` and `size`."""

    mesh: sharding.DeviceMesh
    placements: sharding.Sharding

    def axis_sharded_on(self, parallel: ParallelType) -> int:
        """The dimension that is sharded over a mesh axis; -1 for none."""
        if parallel.value is None or parallel.value >= len(self.placements):
            return -1
        found = self.placements[-1 - parallel.value]
        return found.dim if isinstance(found, Shard) else -1


def output_shardings(placed: Shardings) -> list[OutputSharding]:
    """Placements of all outputs of a definition, in order."""
    return [OutputSharding(placed.mesh, placed.given[t]) for t in placed.fusion.outputs]


def common_mesh(loops: Mapping[ir.TensorView, LoopDomain]) -> DeviceMesh | None:
    """The mesh of a definition's tensors, or None; FuserValueError if they have different ones."""
    found = {domain.mesh for domain in loops.values()}
    if len(found) > 1:
        texts = " and ".join(sorted(map(str, found)))
        raise FuserValueError(f"the tensors of a definition are on one mesh; here are {texts}")
    return next(iter(found), None)
