"""A generated kernel as data: the interface between code generation and targets.

A ``Kernel`` holds one ``extern "C" __global__`` function, what it includes from ``csrc_templates``,
the types of its parameters and its launch geometry. It is complete (a target needs nothing else to
compile and launch it) and inert (nothing here compiles, and no device has to exist).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Extent3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel: its name and its C++ type, such as ``const bf16*`` or ``long
    long``.

    A pointer parameter takes an address (``Tensor.data_ptr()``), any other one a Python number.
    """

    name: str
    ctype: str

    @property
    def is_pointer(self) -> bool:
        return self.ctype.rstrip().endswith("*")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: source text, headers, parameters, launch geometry.

    name          the function's name; part of the source and unique within a program
    source        text of one ``extern "C" __global__ void name(...) {...}``
    headers       files of ``csrc_templates`` that the source includes, such as ``prelude.cuh``
    params        in the order of the function's parameter list
    grid, block   launch geometry in blocks and in threads
    shared_bytes  size of the dynamic shared memory of a block
    collectives   the kernel synchronises threads (barriers, shuffles, block reductions)
    cooperative   all blocks must be resident at once (the kernel has a grid barrier)
    cluster       blocks of a thread block cluster, which the source declares; 1: no clusters
    min_blocks_hint  resident blocks per multiprocessor that the launch bounds ask the compiler for,
                  unless registers spill; 0: none
    lines         for each comment of the source the lines of the user's program that it refers to;
                  not compared: equal programs of different lines are compiled once
    """

    name: str
    source: str
    headers: tuple[str, ...]
    params: tuple[Param, ...]
    grid: Extent3
    block: Extent3
    shared_bytes: int = 0
    collectives: bool = False
    cooperative: bool = False
    cluster: int = 1
    min_blocks_hint: int = 0
    lines: tuple[str, ...] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        """The complete translation unit of this kernel."""
        return program_text((self,))

    @property
    def listing(self) -> str:
        """The source with the lines of the user's program in its comments."""
        lines = iter(self.lines)
        found = []
        for line in self.source.splitlines():
            where = next(lines, "") if line.lstrip().startswith("//") else ""
            found.append(f"{line} ({where})\n" if where else f"{line}\n")
        return "".join(found)


def distinct_texts(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return one kernel of each name. Kernels of one name have equal text, but may differ in grid
    size, since the text need not depend on the number of rows.
    """
    return list({kernel.name: kernel for kernel in kernels}.values())


def program_text(kernels: Sequence[Kernel]) -> str:
    """Return one translation unit of all `kernels`: each header once, then the sources in order."""
    sources = (kernel.source.rstrip() + "\n" for kernel in distinct_texts(kernels))
    return "\n".join([header_text(kernels), *sources])


def header_text(kernels: Sequence[Kernel]) -> str:
    """Return the include lines of `kernels`: each header once, in order of first use."""
    headers = dict.fromkeys(header for kernel in kernels for header in kernel.headers)
    return "".join(f'#include "{header}"\n' for header in headers)


def listing_text(kernels: Sequence[Kernel]) -> str:
    """Return `program_text` with the kernels' listings as sources."""
    listings = (kernel.listing for kernel in distinct_texts(kernels))
    return "\n".join([header_text(kernels), *listings])
