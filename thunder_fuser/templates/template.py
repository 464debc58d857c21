"""Template: a way of running a segment as one kernel. All of them answer the same questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.estimate import Estimate, estimate_kernel
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.scalar_graph import ScalarGraph
from thunder_fuser.lower.store import Store


class Schedule(Protocol):
    """A kernel that is decided: what it computes and stores, and how blocks and threads divide it.

    template       the name of the template that made it, and that lowers it
    blocks         of the grid
    block_threads  threads of a block
    graphs         what it computes
    stores         what of that goes to memory
    """

    template: ClassVar[str]

    @property
    def blocks(self) -> int: ...
    @property
    def block_threads(self) -> int: ...
    @property
    def graphs(self) -> tuple[ScalarGraph, ...]: ...
    @property
    def stores(self) -> tuple[Store, ...]: ...


@dataclass(frozen=True, slots=True)
class Lowered:
    """The statements of a kernel, and what they ask of a launch.

    shared_bytes   shared memory of a block
    blocks_per_sm  blocks that a multiprocessor must have room for; 0: as many as it has
    scratch        memory that is no tensor's
    reductions     operations that the kernel is called after, before those that it computes
    cluster        blocks of a thread block cluster
    min_blocks_hint  that a multiprocessor should have room for, if no register spills for it
    """

    body: ir.Body
    shared_bytes: int = 0
    blocks_per_sm: int = 0
    scratch: tuple[ir.Parameter, ...] = ()
    reductions: tuple[str, ...] = ()
    cluster: int = 1
    min_blocks_hint: int = 0


S = TypeVar("S", bound=Schedule)


def estimate_lowered(schedule: Schedule, kernel: ir.KernelIR, device: DeviceInfo) -> Estimate:
    """What a device takes for a schedule, by the statements that it became."""
    return estimate_kernel(kernel, device)


@dataclass(frozen=True, slots=True)
class Template(Generic[S]):
    """A row of `TEMPLATES` (choose.py).

    name        the word that names of its kernels begin with
    kind        the segments that it may take
    schedule    how a device runs a body, or why it does not with this template
    fits_int32  whether all indices of the kernel fit into an Int32
    lower       its statements
    estimate    what the device takes for them
    """

    name: str
    kind: str
    schedule: Callable[[KernelBody, DeviceInfo], S | Refusal]
    fits_int32: Callable[[S], bool]
    lower: Callable[[S, Frame], Lowered]
    estimate: Callable[[S, ir.KernelIR, DeviceInfo], Estimate] = estimate_lowered
