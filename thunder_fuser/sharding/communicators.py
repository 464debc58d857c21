"""Communicators: simulated ranks in one process, and the process groups of torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.ir.tables.collectives import Arrived, folded
from thunder_fuser.sharding.mesh import DeviceMesh
from thunder_fuser.sharding.recent import Recent

Given = TypeVar("Given")


class Meeting:
    """Exchange of tensors between the threads of a simulated mesh."""

    def __init__(self, mesh: DeviceMesh, seconds: float = 60.0) -> None:
        """`seconds`: timeout of waiting for other ranks."""
        self.mesh = mesh
        self._slots: list[Any] = [None] * mesh.size
        self._barrier = threading.Barrier(mesh.size, timeout=seconds)

    def leave(self) -> None:
        """Abort all other ranks, because one has failed."""
        self._barrier.abort()

    def exchange(self, rank: int, x: Given, name: str) -> list[Given]:
        """Return what all ranks give, by rank. Raises FuserError if one does not come."""
        try:
            self._slots[rank] = x
            self._barrier.wait()
            found = list(self._slots)
            # No rank may pass its next tensor before all have taken these.
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise FuserError(
                f"rank {rank}: {name} ended, because another rank did not come"
            ) from error
        return found


class SimulatedRank:
    """Communicator of one rank of a mesh whose ranks are threads of this process."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        self.rank = rank

    def devices(self, axis: int) -> int:
        return self.meeting.mesh.shape[axis]

    def all_gather(self, x: Tensor, axis: int) -> Arrived:
        return Arrived(torch.stack(self._exchanged(x, axis, "all_gather")))

    def all_reduce(self, x: Tensor, axis: int, op: str) -> Arrived:
        return Arrived(folded(self._exchanged(x, axis, "all_reduce"), op))

    def reduce_scatter(self, x: Tensor, axis: int, op: str, at: int) -> Arrived:
        found = self._exchanged(x, axis, "reduce_scatter")
        return Arrived(folded([part[at] for part in found], op))

    def all_to_all(self, x: Tensor, axis: int, to: Sequence[int], of: Sequence[int]) -> Arrived:
        mine = self.meeting.mesh.coordinates(self.rank)[axis]
        every = self._exchanged(dict(zip(to, x.unbind(), strict=True)), axis, "all_to_all")
        return Arrived(torch.stack([every[k][mine] for k in of]))

    def _exchanged(self, x: Given, axis: int, name: str) -> list[Given]:
        every = self.meeting.exchange(self.rank, x, name)
        return [every[rank] for rank in peers(self.meeting.mesh, self.rank, axis)]


def peers(mesh: DeviceMesh, rank: int, axis: int) -> list[int]:
    """Return the ranks along an axis through `rank`, itself included, in the axis' order."""
    at = mesh.coordinates(rank)
    same = [
        (other[axis], k)
        for k, other in mesh.ranks()
        if all(a == b for j, (a, b) in enumerate(zip(at, other, strict=True)) if j != axis)
    ]
    return [k for _, k in sorted(same)]


class ProcessGroups:
    """Communicator between the processes of torch.distributed, one rank per process."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """Make a group per mesh axis. A collective: all processes call it.

        Raises FuserValueError without a process group, or with one of another size than the mesh.
        """
        if not dist.is_initialized():
            raise FuserValueError(
                "there is no process group; call torch.distributed.init_process_group first"
            )
        if dist.get_world_size() != mesh.size:
            raise FuserValueError(
                f"mesh {mesh} has {mesh.size} devices, the process group {dist.get_world_size()}; "
                "they must be as many"
            )
        rank = dist.get_rank()
        self._groups = []
        for axis in range(len(mesh.shape)):
            made: dict[tuple[int, ...], dist.ProcessGroup] = {}
            for k, _ in mesh.ranks():
                along = tuple(peers(mesh, k, axis))
                if along not in made:
                    made[along] = dist.new_group(list(along), timeout=_patience())
            self._groups.append(made[tuple(peers(mesh, rank, axis))])

    def devices(self, axis: int) -> int:
        return int(dist.get_world_size(self._groups[axis]))

    def all_gather(self, x: Tensor, axis: int) -> Sent:
        found = x.new_empty((self.devices(axis), *x.shape))
        parts, mine = list(_bytes(found).unbind()), _bytes(x[None])[0]
        return self._started("all_gather", axis, found, x, dist.all_gather, parts, mine)

    def all_reduce(self, x: Tensor, axis: int, op: str) -> Sent:
        found = x.clone()
        return self._started("all_reduce", axis, found, x, dist.all_reduce, found, _OPS[op])

    def reduce_scatter(self, x: Tensor, axis: int, op: str, at: int) -> Sent:
        found, given = torch.empty_like(x[at]), list(x.unbind())
        start = dist.reduce_scatter
        return self._started("reduce_scatter", axis, found, x, start, found, given, _OPS[op])

    def all_to_all(self, x: Tensor, axis: int, to: Sequence[int], of: Sequence[int]) -> Sent:
        found, every = torch.empty_like(x), range(self.devices(axis))
        sends, takes = [int(k in to) for k in every], [int(k in of) for k in every]
        given = _bytes(found), _bytes(x), takes, sends
        return self._started("all_to_all", axis, found, x, dist.all_to_all_single, *given)

    def _started(
        self,
        name: str,
        axis: int,
        result: Tensor,
        operand: Tensor,
        start: Callable[..., dist.Work],
        *given: Any,
    ) -> Sent:
        told = f"{name} of {operand.dtype} {list(operand.shape)} along mesh axis {axis}"
        with _named(told):
            work = start(*given, group=self._groups[axis], async_op=True)
        return Sent(told, work, result, operand)


def _bytes(x: Tensor) -> Tensor:
    """View a contiguous tensor as a row of bytes for each index of its first dimension: no backend
    moves all dtypes.
    """
    return x.view(x.shape[0], -1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class Sent:
    """A started collective of torch.distributed; it keeps its operand alive."""

    told: str
    work: dist.Work
    result: Tensor
    operand: Tensor

    def wait(self) -> Tensor:
        with _named(self.told):
            self.work.wait()
        return self.result


def _patience() -> timedelta | None:
    """Return the timeout of the program's own group; torch would give new groups its default."""
    world = dist.group.WORLD
    for device in ("cuda", "cpu"):
        try:
            found: timedelta = world._get_backend(torch.device(device)).options._timeout
        except (AttributeError, RuntimeError):
            continue
        return found
    return None


_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}


@contextmanager
def _named(told: str) -> Iterator[None]:
    """Turn RuntimeError, as torch raises if another rank has gone, into FuserError that names the
    collective.
    """
    try:
        yield
    except RuntimeError as error:
        raise FuserError(f"{told} failed: {error}") from error


def process_groups(mesh: DeviceMesh) -> ProcessGroups:
    """Return the groups of a mesh, made once in the program's process group, and dropped with it. A
    collective; raises what `ProcessGroups` does.
    """
    if not dist.is_initialized():
        return ProcessGroups(mesh)
    known = _known.setdefault(dist.group.WORLD, Recent())
    return known.get(mesh, lambda: ProcessGroups(mesh))


_known: WeakKeyDictionary[object, Recent[ProcessGroups]] = WeakKeyDictionary()
"""Groups of meshes by the program's process group, which it may replace by another one."""
