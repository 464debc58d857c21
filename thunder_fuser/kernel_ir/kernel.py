"""A kernel: parameters, launch configuration and body."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.kernel_ir.statements import Body


@dataclass(frozen=True, slots=True)
class Scratch:
    """Workspace of a kernel in global memory, in bytes; its initial contents do not matter."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant of a kernel, as the argument of the parameter that takes its place.

    text       its exact value, with the sign of zeros
    dtype      its dtype; of indices the kernel's
    parameter  name of the parameter; "" for a constant in the kernel's text
    """

    text: str
    dtype: DataType
    value: int | float = field(compare=False)
    parameter: str = ""


Bound = TensorView | Scalar | Scratch | Constant


@dataclass(frozen=True, slots=True)
class Parameter:
    """Kernel parameter: a pointer to memory, or a scalar.

    dtype    of the elements, or of the scalar; None for a workspace
    bound    tensor, scalar, workspace or constant that is passed
    written  the kernel writes this memory
    aliased  the memory may be accessed through two parameters: no __restrict__
    """

    name: str
    dtype: DataType | None
    bound: Bound
    is_pointer: bool
    written: bool = False
    aliased: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the memory at a pointer; an element at several indices counts once."""
        match self.bound:
            case Scratch():
                return self.bound.bytes
            case TensorView() as tensor:
                return math.prod(int(d.size) for d in tensor.domain.root) * tensor.dtype.itemsize
        return 0


@dataclass(frozen=True, slots=True)
class KernelIR:
    """A kernel: parameters, launch configuration and body.

    template       name of the template, with which the kernel's name begins
    operations     names of operations, the most characteristic first, for the kernel's name
    index          integer type of indices
    blocks_per_sm  blocks that must be resident on a multiprocessor; 0: no requirement
    shared_bytes   shared memory of a block
    cluster        blocks of a thread block cluster; 1: no clusters
    min_blocks_hint  resident blocks per multiprocessor to ask for in launch bounds, unless
                   registers spill; 0: none
    """

    template: str
    operations: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    index: DataType
    blocks: int
    threads: int
    blocks_per_sm: int
    shared_bytes: int
    body: Body
    cluster: int = 1
    min_blocks_hint: int = 0
