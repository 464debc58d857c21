"""The plan of a mesh, made without devices: what a rank runs, sends and holds, and its time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.plan import SegmentedFusion, counted
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import Replicate, local_sizes
from thunder_fuser.sharding.propagate import Shardings


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """Placements, and the plan of rank 0. The others' differ in offsets alone.

    plan   kernels, calls of torch, collectives among them, and what each moves
    """

    shardings: Shardings
    plan: SegmentedFusion

    @property
    def sent(self) -> int:
        """Bytes that each rank sends."""
        return self.shardings.bytes

    @property
    def collectives(self) -> Counter[str]:
        """How many of each kind there are; slices, which are free, are none."""
        return Counter(c.kind for c in self.shardings.communications if c.kind != "slice")

    @property
    def link_seconds(self) -> float:
        """What sending takes at least; 0 where the bandwidth between devices is not known."""
        device = self.plan.device
        link = device.link_bandwidth if device is not None else 0.0
        return self.sent / link if link else 0.0

    @property
    def held(self) -> int:
        """Bytes of inputs and outputs that a rank has."""
        fusion = self.shardings.fusion
        tensors = dict.fromkeys((*fusion.tensor_inputs, *fusion.outputs))
        return sum(self._local_bytes(t) for t in tensors)

    def _local_bytes(self, tensor: TensorView) -> int:
        count = tensor.dtype.itemsize
        for size in local_sizes(tensor.sizes, self.shardings.given[tensor]):
            count *= size
        return count

    @property
    def replicated(self) -> tuple[TensorView, ...]:
        """Inputs and outputs that every rank has all of."""
        fusion, given = self.shardings.fusion, self.shardings.given
        tensors = dict.fromkeys((*fusion.tensor_inputs, *fusion.outputs))
        return tuple(t for t in tensors if all(isinstance(p, Replicate) for p in given[t]))

    def __str__(self) -> str:
        each = ", ".join(counted(n, kind) for kind, n in sorted(self.collectives.items()))
        head = f"each rank: {self.held:,} B of inputs and outputs, {self.sent:,} B sent"
        head += f" by {each}" if each else " (nothing is communicated)"
        if self.link_seconds:
            head += f", {1e6 * self.link_seconds:.1f} us on the links"
        whole = ", ".join(t.name for t in self.replicated)
        return "\n".join(
            [
                f"{head}; {1e6 * self.plan.seconds:.1f} us of kernels and calls",
                *([f"replicated: {whole}"] if whole else []),
                str(self.shardings),
                str(self.plan),
            ]
        )


def mesh_plan(shardings: Shardings) -> MeshPlan:
    """The plan for one rank of a mesh."""
    return MeshPlan(shardings, CompiledFusion(localise(shardings, 0), name="sharded").plan())
