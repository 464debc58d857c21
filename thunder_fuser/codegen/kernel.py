"""A generated kernel as data: the value that code generation hands to a target.

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

    A pointer parameter takes an address (``Tensor.data_ptr()``); every other one a Python number.
    """

    name: str
    ctype: str

    @property
    def is_pointer(self) -> bool:
        return self.ctype.rstrip().endswith("*")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: source text, headers, parameters, launch geometry.

    name          the function's name; part of the source and unique within a program
    source        text of one ``extern "C" __global__ void name(...) {...}``
    headers       files of ``csrc_templates`` that the source includes, such as ``prelude.cuh``
    params        in the order of the function's parameter list
    grid, block   launch geometry in blocks and in threads
    shared_bytes  size of the dynamic shared memory of a block
    collectives   the kernel synchronises threads (barriers, shuffles, block reductions)
    cooperative   all blocks must be resident at once (the kernel has a grid barrier)
    cluster       neighbouring blocks that run at the same time and reach each other's shared memory
                  (a thread block cluster, which the source declares); 1: none do
    min_blocks_hint  blocks a multiprocessor that the launch bounds ask the compiler for, unless it
                  spills registers for that; 0: none
    lines         for each comment of the source the user's lines that it is about. Not part of what
                  a kernel is: equal programs of different lines are compiled once
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
        """The complete translation unit of this kernel alone."""
        return program_text((self,))

    @property
    def listing(self) -> str:
        """The source as readers see it: comments say the user's lines."""
        lines = iter(self.lines)
        found = []
        for line in self.source.splitlines():
            where = next(lines, "") if line.lstrip().startswith("//") else ""
            found.append(f"{line} ({where})\n" if where else f"{line}\n")
        return "".join(found)


def distinct_texts(kernels: Sequence[Kernel]) -> list[Kernel]:
    """One kernel of each name. Those of one name have one text, and perhaps grids of their own: the
    number of rows need not be in a text.
    """
    return list({kernel.name: kernel for kernel in kernels}.values())


def program_text(kernels: Sequence[Kernel]) -> str:
    """One translation unit with all `kernels`: each header once, then each source in order."""
    sources = (kernel.source.rstrip() + "\n" for kernel in distinct_texts(kernels))
    return "\n".join([header_text(kernels), *sources])


def header_text(kernels: Sequence[Kernel]) -> str:
    """The include lines of `kernels`: each header once, in order of first use."""
    headers = dict.fromkeys(header for kernel in kernels for header in kernel.headers)
    return "".join(f'#include "{header}"\n' for header in headers)


def listing_text(kernels: Sequence[Kernel]) -> str:
    """`program_text` for readers."""
    listings = (kernel.listing for kernel in distinct_texts(kernels))
    return "\n".join([header_text(kernels), *listings])
