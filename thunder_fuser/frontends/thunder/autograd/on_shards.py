"""Attention on DTensors: batches and heads are independent of each other.

Each device computes its own batches and heads without communication; operands that are sharded
along positions or channels, or partial, are made replicated first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thunder_fuser.errors import FuserTypeError

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard


class Heads:
    """Common mesh and placements (shards of batches or heads) of the operands of an attention."""

    def __init__(self, operands: Sequence[Any]) -> None:
        plain = [t for t in operands if not isinstance(t, DTensor)]
        if plain:
            raise FuserTypeError(
                "attention of DTensors and of plain tensors: expected DTensors for query, key and "
                f"value, got a plain tensor {list(plain[0].shape)}; DTensor.from_local(...) or "
                "distribute_tensor(...) makes it one"
            )
        self.mesh = operands[0].device_mesh
        if any(t.device_mesh != self.mesh for t in operands):
            raise FuserTypeError(
                "attention of DTensors on different meshes: expected one mesh for query, key and "
                f"value, got {', '.join(str(t.device_mesh) for t in operands)}"
            )
        independent = operands[0].ndim - 2
        self.placements = [
            _common([t.placements[axis] for t in operands], independent)
            for axis in range(self.mesh.ndim)
        ]

    def local(self, x: Tensor) -> Tensor:
        """Return this device's part of an operand, or of any tensor with all batches and heads."""
        assert isinstance(x, DTensor)
        found: Tensor = x.redistribute(self.mesh, self.placements).to_local()
        return found

    def local_mask(self, mask: Tensor | None, rank: int) -> Tensor | None:
        """Return this device's part of a mask, whose leading dimensions may be missing or of size
        1.
        """
        if mask is None:
            return None
        if not isinstance(mask, DTensor):
            mask = DTensor.from_local(mask, self.mesh, [Replicate()] * self.mesh.ndim)
        placed: list[Placement] = []
        for placement in self.placements:
            dim = placement.dim - rank + mask.ndim if isinstance(placement, Shard) else -1
            placed.append(Shard(dim) if dim >= 0 and mask.shape[dim] > 1 else Replicate())
        found: Tensor = mask.redistribute(self.mesh, placed).to_local()
        return found

    def whole(self, local: Tensor, batch: Sequence[int]) -> Tensor:
        """Return the DTensor with the local tensor `local`; `batch`: its global leading sizes."""
        shape = torch.Size((*batch, *local.shape[len(batch) :]))
        # Dense strides, in the dimension order of the local tensor.
        strides, count = [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda k: (local.stride(k), -k)):
            strides[dim], count = count, count * shape[dim]
        found: Tensor = DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=shape, stride=tuple(strides)
        )
        return found


def heads_of(operands: Sequence[Any]) -> Heads | None:
    """Return the placements of the operands, or None if none of them is a DTensor."""
    if not torch.distributed.is_available():
        return None
    return Heads(operands) if any(isinstance(t, DTensor) for t in operands) else None


def _common(placements: Sequence[Placement], independent: int) -> Placement:
    """Return the first placement that shards batches or heads, or Replicate."""
    for placement in placements:
        if isinstance(placement, Shard) and placement.dim % (independent + 2) < independent:
            return Shard(placement.dim % (independent + 2))
    return Replicate()
