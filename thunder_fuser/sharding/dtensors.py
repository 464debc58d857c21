"""torch's DTensors on a mesh: conversion of placements, and execution of fusions on DTensors.

torch shards a dimension by the mesh's first axis, each chunk by the next one, and so on, always
into contiguous chunks: the digits of the index, outermost first. Placements with other digits
cannot be DTensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.sharding.communicators import ProcessGroups
from thunder_fuser.sharding.mesh import (
    REPLICATE,
    DeviceMesh,
    Partial,
    Placement,
    Shard,
    Sharding,
    check_shard,
)
from thunder_fuser.sharding.on_mesh import FusionOnMesh, told
from thunder_fuser.sharding.rank_program import RankProgram, agree
from thunder_fuser.sharding.recent import Recent
from thunder_fuser.sharding.shardings import Shardings

_OPS = {"sum": "sum", "max": "max", "min": "min", "product": "prod"}
"""Reductions of torch's partial placements, with our names."""


class MeshGroups(ProcessGroups):
    """Communicator over the process groups of a mesh of torch."""

    def __init__(self, mesh: TorchMesh) -> None:
        if not dist.is_initialized():
            raise FuserValueError(
                f"the process group of {mesh} is gone; call "
                "torch.distributed.init_process_group, and make the mesh and its DTensors again"
            )
        self._groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]


def mesh_of(mesh: TorchMesh) -> DeviceMesh:
    """Return torch's mesh as ours."""
    return DeviceMesh(tuple(mesh.shape), tuple(mesh.mesh_dim_names or ()))


def sharding_of(tensor: DTensor) -> Sharding:
    """Return the sharding of a DTensor. Raises FuserValueError for uneven shards, and for
    placements of torch that are no digit of an index.
    """
    found: list[Placement] = []
    left = list(tensor.shape)
    for placement, size in zip(tensor.placements, tensor.device_mesh.shape, strict=True):
        if type(placement) is TorchShard:
            dim = placement.dim % tensor.ndim
            shard = Shard(dim, max(left[dim] // size, 1), size)
            check_shard(shard, tensor.shape[dim])
            left[dim] //= size
            found.append(shard)
        elif isinstance(placement, TorchReplicate):
            found.append(REPLICATE)
        elif isinstance(placement, TorchPartial) and placement.reduce_op in _OPS:
            found.append(Partial(_OPS[placement.reduce_op]))
        else:
            raise FuserValueError(
                f"{placement} of a DTensor {list(tensor.shape)}: expected Shard, Replicate or a "
                f"Partial of {', '.join(_OPS)}; redistribute it first"
            )
    return tuple(found)


def placements_of(sharding: Sharding, sizes: Sequence[int]) -> list[Any] | int:
    """Return DTensor placements of a sharding, or the first mesh axis that has no such one."""
    found: list[Any] = []
    left = list(sizes)
    names = {ours: theirs for theirs, ours in _OPS.items()}
    for axis, placement in enumerate(sharding):
        match placement:
            case Shard(dim, width, size):
                if width * size != left[dim]:
                    return axis
                left[dim] = width
                found.append(TorchShard(dim))
            case Partial(op):
                found.append(TorchPartial(names[op]))
            case _:
                found.append(TorchReplicate())
    return found


def torch_mesh_of(inputs: Sequence[Any], name: str) -> TorchMesh:
    """Return the mesh of the DTensors among `inputs`, at least one, of the fusion `name`. Raises
    FuserValueError for several meshes.
    """
    found = [(k, x.device_mesh) for k, x in enumerate(inputs) if isinstance(x, DTensor)]
    first, mesh = found[0]
    for k, other in found:
        if other != mesh:
            raise FuserValueError(
                f"{name}: the DTensors are on different meshes: input {first} on {mesh}, input {k} "
                f"on {other}; redistribute them to one"
            )
    return mesh


def check_all_dtensors(inputs: Sequence[Any], name: str) -> None:
    """Raise FuserTypeError if a tensor is no DTensor, or there is no tensor."""
    kinds = {k: isinstance(x, DTensor) for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    plain = [k for k, is_one in kinds.items() if not is_one]
    if plain or not kinds:
        which = f"input {plain[0]} is a plain tensor" if plain else "there is no tensor"
        raise FuserTypeError(f"{name}: every tensor must be a DTensor, {which}; {MAKE_IT_ONE}")


MAKE_IT_ONE = "make it one by torch.distributed.tensor.distribute_tensor, replicated if need be"


class _Ready(NamedTuple):
    """Shardings for given sizes, this rank's program, and placements, global shape and global
    stride of each output.
    """

    shardings: Shardings
    program: RankProgram
    outputs: Sequence[tuple[Any, torch.Size, tuple[int, ...]]]


class DTensorProgram:
    """A fusion on DTensors with given placements: DTensors in, DTensors out."""

    def __init__(
        self,
        fusion: Fusion,
        mesh: TorchMesh,
        placed: dict[TensorView, Sharding],
        whole: Sequence[Any],
    ) -> None:
        """`whole`: inputs with the global sizes of the DTensors. This process is on the mesh."""
        self.torch_mesh = mesh
        self.mesh = mesh_of(mesh)
        self.groups = MeshGroups(mesh)
        at = mesh.get_coordinate()
        self.rank = next(rank for rank, where in self.mesh.ranks() if where == tuple(at))
        self.placed = dict(placed)
        self.fusion = fusion
        self._is_static = fusion.is_static
        self._ready: _Ready | None = None
        self.on_mesh = self._made()
        # Outputs are replicated along axes whose placement no DTensor can have, one axis at a time.
        while (problem := self._without_dtensor(whole)) is not None:
            output, sharding = problem
            self.placed[output] = sharding
            self.on_mesh = self._made()

    def _made(self) -> FusionOnMesh:
        def named(sharding: Sharding) -> dict[str, Placement]:
            return dict(zip(self.mesh.names, sharding, strict=True))

        asked = {t: lambda _, s=s: named(s) for t, s in self.placed.items()}
        return FusionOnMesh(self.fusion, self.mesh, asked)

    def _without_dtensor(self, whole: Sequence[Any]) -> tuple[TensorView, Sharding] | None:
        shardings = self.on_mesh.shardings(whole)
        for mine, out in zip(self.fusion.outputs, shardings.fusion.outputs, strict=True):
            given = shardings.given[out]
            axis = placements_of(given, out.sizes)
            if isinstance(axis, int):
                return mine, (*given[:axis], REPLICATE, *given[axis + 1 :])
        return None

    def __call__(self, inputs: Sequence[Any], whole: Sequence[Any]) -> list[DTensor]:
        """Run on this rank. A collective; plain tensors must be equal on all ranks."""
        ready = self.ready(whole)
        with communicating(self.groups):
            outputs = ready.program([_local(x) for x in inputs])
        return [
            DTensor.from_local(
                x, self.torch_mesh, places, run_check=False, shape=shape, stride=stride
            )
            for (places, shape, stride), x in zip(ready.outputs, outputs, strict=True)
        ]

    def ready(self, whole: Sequence[Any]) -> _Ready:
        """Return the program for these sizes, and the placements of its outputs."""
        if self._ready is None or not self._is_static:
            shardings = self.on_mesh.shardings(whole)
            outputs = [
                (
                    placements_of(shardings.given[t], t.sizes),
                    torch.Size(t.sizes),
                    torch.empty(t.sizes, device="meta").stride(),
                )
                for t in shardings.fusion.outputs
            ]
            program = self.on_mesh.program(self.rank, whole)
            self._ready = _Ready(shardings, program, outputs)
        return self._ready

    def of_first_rank(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Broadcast the numbers of the mesh's first rank. A collective."""
        found = torch.tensor(numbers, dtype=torch.int64, device=device)
        for axis in range(len(self.mesh.shape)):
            found = self.groups.all_gather(found, axis).wait()[0]
        return [int(n) for n in found]


def _local(x: Any) -> Any:
    """Return this rank's shard of a DTensor; other inputs as they are."""
    if not isinstance(x, DTensor):
        return x
    with torch.no_grad():
        found = x.to_local()
    # Collectives of torch's own operations may be in flight.
    return found.wait() if isinstance(found, AsyncCollectiveTensor) else found


class DTensorPrograms:
    """A fusion on DTensors: a cached program per mesh, placements and sizes, for the latest few.

    latest   shardings of the last call
    """

    def __init__(self, fusion: Fusion, name: str) -> None:
        self.fusion = fusion
        self.name = name
        self.latest: Shardings | None = None
        self._is_static = fusion.is_static
        self._programs = Recent[DTensorProgram]()
        self._world: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        return len(self._programs)

    def program(self, inputs: Sequence[Any]) -> DTensorProgram:
        """Return the program for `inputs`, one for each input of the fusion. Plain tensors among
        them are replicated.

        A collective for inputs of a new kind. Raises FuserValueError for several meshes, for a mesh
        without this process or whose process group is gone, and for unsupported placements (see
        `sharding_of`); FuserError if another rank raises, or has DTensors of other sizes.
        """
        kinds = tuple(
            (x.shape, x.device_mesh, x.placements) if isinstance(x, DTensor) else x.shape
            for x in inputs
            if isinstance(x, torch.Tensor)
        )
        # A mesh of an ended process group is equal to one of the next group.
        world = dist.group.WORLD
        if world is None or world is not self._world():
            self._programs = Recent()
            self._world = (lambda: None) if world is None else weakref.ref(world)
        return self._programs.get(kinds, lambda: self._made(inputs))

    def _made(self, inputs: Sequence[Any]) -> DTensorProgram:
        mesh = torch_mesh_of(inputs, self.name)
        groups = MeshGroups(mesh)
        if mesh.get_coordinate() is None:
            raise FuserValueError(
                f"this process, rank {dist.get_rank()}, is not on {mesh}: only its ranks may call"
            )
        made: list[DTensorProgram] = []

        def prepare() -> str:
            made.append(self._program_on(mesh, inputs))
            ready = made[0].ready(whole_of_dtensors(inputs))
            ready.program.prepare([_local(x) for x in inputs])
            return told(ready.shardings, inputs, ready.program)

        agree(groups, mesh_of(mesh), inputs, prepare)
        return made[0]

    def _program_on(self, mesh: TorchMesh, inputs: Sequence[Any]) -> DTensorProgram:
        replicated = (REPLICATE,) * mesh.ndim
        placed = {
            value: sharding_of(x) if isinstance(x, DTensor) else replicated
            for value, x in zip(self.fusion.inputs, inputs, strict=True)
            if isinstance(value, TensorView)
        }
        return DTensorProgram(self.fusion, mesh, placed, whole_of_dtensors(inputs))

    def __call__(self, inputs: Sequence[Any]) -> list[DTensor]:
        """Run the fusion on this rank. A collective."""
        return self.run(self.program(inputs), inputs)

    def run(self, program: DTensorProgram, inputs: Sequence[Any]) -> list[DTensor]:
        """Run a program that `program()` has returned. A collective."""
        whole = () if self._is_static else whole_of_dtensors(inputs)
        self.latest = program.ready(whole).shardings
        return program(inputs, whole)


def whole_of_dtensors(inputs: Sequence[Any]) -> list[Any]:
    """Return meta tensors with the global sizes of the inputs; scalars are kept."""
    return [
        torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]
