"""Template: a way of running a segment as one kernel, behind a common interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.scalar_graph import ScalarGraph
from thunder_fuser.lower.store import Store


class Schedule(Protocol):
    """Decisions for a kernel: its computation and stores, divided over blocks and threads.

    template       name of the template that made it, and that lowers it
    blocks         blocks of the grid
    block_threads  threads of a block
    graphs         scalar graphs that it computes
    stores         values of these that it writes to memory
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
    """Statements and launch parameters of a kernel.

    shared_bytes     bytes of shared memory of a block
    blocks_per_sm    blocks that a multiprocessor must have room for; 0: no requirement
    scratch          memory that belongs to no tensor
    reductions       operations that come first in the kernel's name
    cluster          blocks of a thread block cluster
    min_blocks_hint  resident blocks a multiprocessor should have, unless registers spill for it
    """

    body: ir.Body
    shared_bytes: int = 0
    blocks_per_sm: int = 0
    scratch: tuple[ir.Parameter, ...] = ()
    reductions: tuple[str, ...] = ()
    cluster: int = 1
    min_blocks_hint: int = 0


S = TypeVar("S", bound=Schedule)


@dataclass(frozen=True, slots=True)
class Template(Generic[S]):
    """A row of `TEMPLATES` (choose.py).

    name        first word of its kernels' names
    kind        kind of segment that it may take
    schedule    schedules a body on a device, or refuses
    fits_int32  True if all indices of the kernel fit into an Int32
    lower       lowers a schedule to statements
    """

    name: str
    kind: str
    schedule: Callable[[KernelBody, DeviceInfo], S | Refusal]
    fits_int32: Callable[[S], bool]
    lower: Callable[[S, Frame], Lowered]
