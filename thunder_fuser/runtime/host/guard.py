"""Copies of tensors between guard pages, so that a kernel's accesses out of bounds are found.

An access to a guard page faults, and the handler names the CUDA thread. Bytes within the pages that
belong to no element (gaps of a strided tensor, the last bytes before a page) are filled with 0xff,
which reads as NaN, and are compared afterwards. Tensors that share memory share it in the copy,
too, and memory that no parameter may write to becomes read-only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thunder_fuser.codegen.kernel import Param
from thunder_fuser.errors import KernelError

_FILL = 0xFF


@dataclass(frozen=True, slots=True)
class _Operand:
    """Tensor argument; its elements lie in the address range from `start` to `stop`."""

    param: Param
    tensor: torch.Tensor
    start: int
    stop: int

    @property
    def constant(self) -> bool:
        return self.param.ctype.startswith("const")


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a kernel: `values` to be copied to `tensor`."""

    param: Param
    tensor: torch.Tensor
    values: torch.Tensor


class GuardedTensors:
    """Copies of tensor arguments between guard pages; `addresses` are theirs, in order.

    Context manager that frees the copies on exit.
    """

    def __init__(
        self, runtime: ctypes.CDLL, params: Sequence[Param], tensors: Sequence[torch.Tensor]
    ) -> None:
        operands = [_operand(p, t) for p, t in zip(params, tensors, strict=True)]
        self._operands = operands
        self._regions = [_Region(runtime, group) for group in _overlapping(operands)]
        places = {operand.param.name: r for r in self._regions for operand in r.operands}
        self._places = [places[operand.param.name] for operand in operands]
        self.addresses = tuple(
            place.address(operand) for place, operand in zip(self._places, operands, strict=True)
        )

    def __enter__(self) -> GuardedTensors:
        return self

    def __exit__(self, *_: object) -> None:
        for region in self._regions:
            region.free()

    def check(self) -> None:
        """Raise KernelError if bytes around or between the elements of a tensor were written."""
        for region in self._regions:
            region.check()

    def results(self) -> list[Result]:
        """Contents of the tensors that the kernel may write to, in order of the parameters."""
        return [
            Result(operand.param, distinct(operand.tensor), self._places[i].read(operand))
            for i, operand in enumerate(self._operands)
            if not operand.constant
        ]


class _Region:
    """Guarded allocation with the copy of tensors that overlap."""

    def __init__(self, runtime: ctypes.CDLL, operands: Sequence[_Operand]) -> None:
        self.operands = operands
        self._runtime = runtime
        self._name = ", ".join(operand.param.name for operand in operands)
        self._start = min(operand.start for operand in operands)
        self._bytes = max(operand.stop for operand in operands) - self._start
        memory = runtime.tf_guard_alloc(self._bytes, self._start, self._name.encode())
        if memory is None:
            raise MemoryError(
                f"no memory for a guarded copy of '{self._name}', {self._bytes} bytes: free some, "
                "or run without THUNDER_FUSER_HOST_DEBUG"
            )
        self._memory: int = memory
        for operand in operands:
            if operand.tensor.numel():
                self._copy(operand).copy_(distinct(operand.tensor))
        if all(operand.constant for operand in operands):
            runtime.tf_guard_protect(self._memory)

    def address(self, operand: _Operand) -> int:
        return self._memory + operand.start - self._start

    def free(self) -> None:
        self._runtime.tf_guard_free(self._memory)

    def check(self) -> None:
        offset = ctypes.c_longlong()
        damaged = self._runtime.tf_guard_damage(self._memory, ctypes.byref(offset))
        place = offset.value if damaged else self._written_gap()
        if place is not None:
            raise KernelError(
                f"out-of-bounds write of '{self._name}' at byte offset {place} "
                f"(it spans {self._bytes} bytes): no element of it is there; a store has a wrong "
                "index or lacks its predicate"
            )

    def read(self, operand: _Operand) -> torch.Tensor:
        if not operand.tensor.numel():
            return torch.empty_like(operand.tensor)
        return self._copy(operand).clone()

    def _copy(self, operand: _Operand) -> torch.Tensor:
        """Return the guarded elements, without repetitions of expanded dimensions, as a tensor."""
        span = operand.stop - operand.start
        memory = (ctypes.c_char * span).from_address(self.address(operand))
        tensor = distinct(operand.tensor)
        flat = torch.frombuffer(memory, dtype=tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride())

    def _written_gap(self) -> int | None:
        """Return the offset of a changed byte that belongs to no element, or None."""
        if not self._bytes:
            return None
        memory = (ctypes.c_char * self._bytes).from_address(self._memory)
        written = torch.frombuffer(memory, dtype=torch.uint8) != _FILL
        for operand in self.operands:
            size = operand.tensor.element_size()
            shape = (*operand.tensor.shape, size)
            strides = (*(stride * size for stride in operand.tensor.stride()), 1)
            written.as_strided(shape, strides, operand.start - self._start).fill_(False)
        return int(written.nonzero()[0]) if written.any() else None


def _operand(param: Param, tensor: torch.Tensor) -> _Operand:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return _Operand(param, tensor, start, start)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * stride for extent, stride in steps)
    return _Operand(param, tensor, start, start + (last + 1) * tensor.element_size())


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without the repetitions of expanded dimensions."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _overlapping(operands: Sequence[_Operand]) -> list[list[_Operand]]:
    """Group operands whose address ranges overlap, directly or through others."""
    groups: list[list[_Operand]] = []
    stop = 0
    for operand in sorted(operands, key=lambda operand: (operand.start, operand.stop)):
        if groups and operand.start < stop:
            groups[-1].append(operand)
        else:
            groups.append([operand])
            stop = 0
        stop = max(stop, operand.stop)
    return groups
