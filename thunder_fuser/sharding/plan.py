"""Plan of one rank of a mesh, made without devices: its segments, bytes sent and held, and time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.fusion import OpaqueOp, TensorView
from thunder_fuser.segment.communication_overlap import Clock, bytes_sent, collective_of
from thunder_fuser.segment.plan import Segment, SegmentedFusion, counted
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import Partial, Replicate, local_sizes
from thunder_fuser.sharding.shardings import Shardings

_TOLD = 12
"""Most communications, and most replicated tensors of a reason, that a plan prints."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes that each rank sends along a mesh axis by one kind of collective.

    link     name of the link; "" if unknown
    seconds  of all of them, one after the other
    """

    axis: str
    kind: str
    count: int
    bytes: int
    link: str
    seconds: float

    def __str__(self) -> str:
        over = f" over {self.link}, {1e6 * self.seconds:,.1f} us" if self.link else ""
        return f"{self.axis}: {counted(self.count, self.kind)}, {self.bytes:,} B{over}"


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """Shardings, and the plan of rank 0. Plans of other ranks differ in offsets only.

    plan   kernels and torch calls, collectives included, with their bytes
    name   part of the program: "forward", "backward"
    names  of tensors, as far as the program has names
    """

    shardings: Shardings
    plan: SegmentedFusion
    name: str = ""
    names: Mapping[TensorView, str] = field(default_factory=dict, repr=False)

    @property
    def sent(self) -> int:
        """Bytes that each rank sends."""
        return sum(volume.bytes for volume in self.volumes)

    @property
    def collectives(self) -> Counter[str]:
        """Number of collectives of each kind."""
        return Counter(call.op for call, _ in self._calls())

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """Volumes by axis and kind, in the order of mesh axes."""
        mesh = self.shardings.mesh
        found: dict[tuple[int, str], Volume] = {}
        for call, segment in self._calls():
            axis = _axis(call)
            known = found.get((axis, call.op), Volume(mesh.names[axis], call.op, 0, 0, "", 0.0))
            found[axis, call.op] = Volume(
                known.axis,
                known.kind,
                known.count + 1,
                known.bytes + bytes_sent(call),
                self._link(axis),
                known.seconds + segment.seconds,
            )
        return tuple(found[key] for key in sorted(found))

    def _calls(self) -> Iterator[tuple[OpaqueOp, Segment]]:
        for segment in self.plan.segments:
            call = collective_of(segment)
            if call is not None:
                yield call, segment

    def _link(self, axis: int) -> str:
        device = self.plan.device
        link = device.link(self.shardings.mesh.span(axis)) if device is not None else None
        return link.name if link is not None else ""

    @property
    def link_seconds(self) -> float:
        """Seconds of all collectives, one after the other."""
        return sum(segment.seconds for _, segment in self._calls())

    @property
    def work_seconds(self) -> float:
        """Seconds of all kernels and torch calls, without collectives."""
        return self.plan.seconds - self.link_seconds

    @property
    def seconds(self) -> float:
        """Seconds of the plan, with collectives overlapping segments that do not wait for them."""
        clock = Clock()
        for segment in self.plan.segments:
            call = collective_of(segment)
            clock.run(segment, segment.seconds, None if call is None else self._link(_axis(call)))
        return clock.seconds

    @property
    def held(self) -> int:
        """Bytes of inputs and outputs that a rank holds."""
        return sum(map(self._local_bytes, self._ends()))

    def _ends(self) -> list[TensorView]:
        fusion = self.shardings.fusion
        return list(dict.fromkeys((*fusion.tensor_inputs, *fusion.outputs)))

    def _local_bytes(self, tensor: TensorView) -> int:
        count = tensor.dtype.itemsize
        for size in local_sizes(tensor.sizes, self.shardings.given[tensor]):
            count *= size
        return count

    @property
    def replicated(self) -> tuple[TensorView, ...]:
        """Inputs and outputs that are replicated along all mesh axes."""
        given = self.shardings.given
        return tuple(t for t in self._ends() if all(isinstance(p, Replicate) for p in given[t]))

    def why_replicated(self, tensor: TensorView) -> str:
        """Return why an input or output is replicated."""
        fusion = self.shardings.fusion
        if tensor in self.shardings.asked:
            return "annotated so"
        if tensor in fusion.tensor_inputs:
            readers = [e for e in fusion.exprs if tensor in e.inputs]
            return (
                f"it has no placement, and {readers[0].op} reads all of it" if readers else "unread"
            )
        if any(isinstance(p, Partial) for p in self.shardings.made[tensor]):
            return "every rank had a part of each element, which are summed up"
        return "computed from what every rank has"

    def called(self, text: str) -> str:
        """Replace tensor names of the fusion in a text by names of the program."""
        names = {t.name: name for t, name in self.names.items()}
        return re.sub(r"\bT\d+\b", lambda m: names.get(m[0], m[0]), text)

    def __str__(self) -> str:
        devices = counted(self.shardings.mesh.size, "device")
        head = f"{self.name}: " if self.name else ""
        head += f"mesh {self.shardings.mesh} ({devices}); each rank holds {self.held:,} B of inputs"
        rows = [
            f"{head} and outputs, sends {self.sent:,} B",
            f"  {counted(self.plan.kernels, 'kernel')} and {counted(self._others, 'torch call')}, "
            f"{1e6 * self.work_seconds:,.1f} us; collectives {1e6 * self.link_seconds:,.1f}"
            f" us; together, as far as they can overlap, {1e6 * self.seconds:,.1f} us",
            *(f"  {volume}" for volume in self.volumes),
        ]
        rows += [f"  {line}" for line in self._communications()]
        rows += [f"  {line}" for line in self._whole()]
        return "\n".join(rows)

    @property
    def _others(self) -> int:
        return self.plan.calls - sum(self.collectives.values())

    def _communications(self) -> Iterator[str]:
        """Yield a line per communication; equal ones, of successive layers, share a line."""
        names = self.shardings.mesh.names
        found: dict[object, list[str]] = {}
        for c in self.shardings.communications:
            if c.kind != "slice":
                reason = re.sub(r"\bT\d+\b", "T", c.reason)
                key = c.axis, c.kind, c.bytes, c.source, c.target, reason
                text = f"{names[c.axis]}: {c}"
                found.setdefault(key, []).append(text)
        for texts in list(found.values())[:_TOLD]:
            yield (f"{len(texts)} times " if len(texts) > 1 else "") + self.called(texts[0])
        if len(found) > _TOLD:
            yield f"and {len(found) - _TOLD} more"

    def _whole(self) -> Iterator[str]:
        found: dict[str, list[TensorView]] = {}
        for tensor in self.replicated:
            found.setdefault(self.why_replicated(tensor), []).append(tensor)
        for why, tensors in found.items():
            tensors.sort(key=self._local_bytes, reverse=True)
            told = ", ".join(self.called(t.name) for t in tensors[:_TOLD])
            more = f" and {len(tensors) - _TOLD} more" if len(tensors) > _TOLD else ""
            size = sum(map(self._local_bytes, tensors))
            yield f"replicated, {size:,} B: {told}{more}: {why}"


def _axis(call: OpaqueOp) -> int:
    axis = dict(call.attributes)["axis"]
    assert isinstance(axis, int)
    return axis


def mesh_plan(
    shardings: Shardings, name: str = "", names: Mapping[TensorView, str] | None = None
) -> MeshPlan:
    """Plan a sharded fusion for rank 0 of its mesh."""
    compiled = CompiledFusion(localise(shardings, 0), name="sharded")
    return MeshPlan(shardings, compiled.plan(), name, names or {})
