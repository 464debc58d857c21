"""torch's DTensors on a mesh: their placements as ours, and ours as theirs.

torch cuts a dimension by the mesh's first axis, what is left by the next, and so on, each time into
contiguous chunks: the digits of the index from the outside. Of placements that are no such digits
there is no DTensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.fusion import Fusion, TensorView
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
from thunder_fuser.sharding.on_mesh import FusionOnMesh

_OPS = {"sum": "sum", "max": "max", "min": "min", "product": "prod"}
"""torch's partial results that are ours."""


class MeshGroups(ProcessGroups):
    """The process groups that a mesh of torch has."""

    def __init__(self, mesh: TorchMesh) -> None:
        self._groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]


def sharding_of(tensor: DTensor) -> Sharding:
    """The placements of a DTensor. FuserValueError for uneven shards, and for those of torch that
    are no digit of an index.
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
    """The placements of a DTensor, or the first mesh axis along which there are none."""
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


def torch_mesh_of(inputs: Sequence[Any]) -> TorchMesh:
    """The mesh of the DTensors among the inputs. FuserTypeError for tensors that are none,
    FuserValueError for several meshes.
    """
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    plain = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not _is_dtensor(x)]
    if plain or not tensors:
        which = f"input {plain[0]} is a plain tensor" if plain else "there is no tensor"
        raise FuserTypeError(
            f"execute_with_dtensors: every tensor must be a DTensor, {which}; "
            "make it one by torch.distributed.tensor.distribute_tensor, replicated if need be"
        )
    meshes = [x.device_mesh for x in tensors if isinstance(x, DTensor)]
    for k, mesh in enumerate(meshes):
        if mesh != meshes[0]:
            raise FuserValueError(
                f"the DTensors are on different meshes: {meshes[0]} and, tensor {k}, {mesh}; "
                "redistribute them to one"
            )
    return meshes[0]


def _is_dtensor(x: object) -> bool:
    return isinstance(x, DTensor)


class DTensorProgram:
    """A fusion on DTensors with given placements: DTensors in, DTensors out."""

    def __init__(
        self,
        fusion: Fusion,
        mesh: TorchMesh,
        placed: dict[TensorView, Sharding],
        whole: Sequence[Any],
    ) -> None:
        """`whole` are inputs as large as the DTensors."""
        names = mesh.mesh_dim_names or ()
        self.torch_mesh = mesh
        self.mesh = DeviceMesh(tuple(mesh.shape), tuple(names))
        self.groups = MeshGroups(mesh)
        self.placed = dict(placed)
        self.fusion = fusion
        self.on_mesh = self._made()
        # What no DTensor has is replicated along the axis; one axis of one output after the other.
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
        """A collective: every rank calls it."""
        shardings = self.on_mesh.shardings(whole)
        local = [x.to_local() if isinstance(x, DTensor) else x for x in inputs]
        outputs = self.on_mesh.run(local, whole, self.torch_mesh.get_rank(), self.groups)
        return [
            DTensor.from_local(
                x,
                self.torch_mesh,
                placements_of(shardings.given[t], t.sizes),
                run_check=False,
                shape=torch.Size(t.sizes),
                stride=torch.empty(t.sizes, device="meta").stride(),
            )
            for t, x in zip(shardings.fusion.outputs, outputs, strict=True)
        ]


def whole_of_dtensors(inputs: Sequence[Any]) -> list[Any]:
    """Stand-ins without memory, as large as the DTensors; numbers stay."""
    return [
        torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, DTensor) else x
        for x in inputs
    ]
