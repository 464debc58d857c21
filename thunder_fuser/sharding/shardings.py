"""Shardings, the result of propagation: placements of every tensor, and communications."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.sharding.mesh import DeviceMesh, Placement, Sharding, local_sizes

_TOLD = 6
"""Operations that a digest names."""


@dataclass(frozen=True, slots=True)
class Communication:
    """A change of a tensor's placement along a mesh axis.

    kind     "all_gather", "all_reduce", "reduce_scatter", "all_to_all", or "slice", which is free:
             a device takes its shard, or the identity in the place of what others have of a partial
             result
    bytes    that each device sends, at most
    reason   reader that needs the change, and why the present placement does not suffice
    """

    tensor: TensorView
    axis: int
    source: Placement
    target: Placement
    kind: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        change = f"{self.source} -> {self.target}"
        moved = f"{self.kind} of {self.tensor.name} ({self.bytes:,} B a device)"
        return f"{moved}: {change}: {self.reason}"


@dataclass(slots=True)
class Shardings:
    """Placements of all tensors of a fusion on a mesh.

    made            sharding in which each tensor is computed
    given           sharding to which it is changed then, and which results have
    reads           sharding in which an expression reads a tensor operand, by (expression, operand)
    asked           annotations of the user
    reasons         of changes of placement: by tensor, mesh axis and last placement, the reader
    communications  that these placements need, in the order of the program
    """

    fusion: Fusion
    mesh: DeviceMesh
    made: dict[TensorView, Sharding] = field(default_factory=dict)
    given: dict[TensorView, Sharding] = field(default_factory=dict)
    reads: dict[tuple[int, int], Sharding] = field(default_factory=dict)
    asked: Mapping[TensorView, Sharding] = field(default_factory=dict)
    reasons: dict[tuple[TensorView, int, Placement], str] = field(default_factory=dict)
    communications: list[Communication] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes that each device sends, at most."""
        return sum(c.bytes for c in self.communications)

    @property
    def digest(self) -> str:
        """Digest of the whole program and all placements, equal on all ranks, after the first
        operations.
        """
        placed = [*self.made.values(), *self.given.values(), *self.reads.values()]
        text = repr((str(self.fusion), placed))
        operations = [expr.op for expr in self.fusion.exprs]
        more = ", ..." if len(operations) > _TOLD else ""
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"operations {', '.join(operations[:_TOLD])}{more} {digest}"

    def __str__(self) -> str:
        rows = [f"mesh {self.mesh}: {self.bytes:,} B sent by each device"]
        rows += [f"  {c}" for c in self.communications]
        for tensor in (*self.fusion.tensor_inputs, *self.fusion.outputs):
            sharding = self.given[tensor]
            placed = ", ".join(map(str, sharding))
            rows.append(f"  {tensor.name}: [{placed}], {list(local_sizes(tensor.sizes, sharding))}")
        return "\n".join(rows)
