"""Constants of a kernel as parameters: one text for the kernels of many sizes.

A kernel is lowered for known sizes, and has them as constants: extents, strides, the reciprocal of
a row's length. Lowered for other sizes of the same program it often is the same statements with
other constants. `pattern_of` splits a kernel into these: statements without constants, and the
constants in order. `Generalization` is what kernels of one pattern have in common, their least
general generalization (Plotkin, A note on inductive generalization, 1970): which constants are
equal in all, and which vary, those that always vary together as one parameter.

Whatever varies, `with_parameters` is right: the kernel that it returns has this kernel's own
constants as arguments. Legality, vector widths, loop structure and the integer type of indices were
decided for the kernel's own sizes, and are part of its pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any, cast

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir.expressions import (
    Address,
    DynamicRegister,
    Element,
    Expr,
    Int,
    Literal,
    Var,
)
from thunder_fuser.kernel_ir.kernel import Constant, KernelIR, Parameter
from thunder_fuser.kernel_ir.reductions import Lane
from thunder_fuser.kernel_ir.statements import (
    WRITTEN_OUT,
    Body,
    DrawNumbers,
    Loop,
    LoopKind,
    Pack,
    Registers,
    SetLane,
    fields_of,
)

MOST_PARAMETERS = 64
"""Most constants of a kernel that become parameters."""

_PLACEHOLDER = Var("")
_NUMBERS = (DataType.Float, DataType.Double, DataType.Int32, DataType.Int)
"""Dtypes of numbers that are passed as they are; others keep their literals."""
_STATIC: dict[type, tuple[str, ...]] = {
    SetLane: ("lane",),
    Lane: ("lane",),
    DynamicRegister: ("begin",),
}
"""Fields that compilers have to know: they select registers."""
_LARGEST = 3.4028234663852886e38
"""Largest fp32 number."""


@dataclass(frozen=True, slots=True)
class Varying:
    """Place of a constant that varies: the number of its parameter."""

    parameter: int


@dataclass(frozen=True, slots=True)
class Generalization:
    """What kernels of one pattern have in common: for each constant the value that it has in all of
    them, or the parameter that it is.
    """

    constants: tuple[Constant | Varying, ...]

    def joined(self, other: Generalization) -> Generalization:
        """Return what these kernels and others of the pattern have in common."""
        numbers: dict[tuple[Constant | Varying, Constant | Varying], int] = {}
        return Generalization(
            tuple(
                own
                if own == others and isinstance(own, Constant)
                else Varying(numbers.setdefault((own, others), len(numbers)))
                for own, others in zip(self.constants, other.constants, strict=True)
            )
        )

    def changes(self, other: Generalization) -> int:
        """Return how many constants other kernels of the pattern would make vary."""
        pairs = zip(self.constants, other.constants, strict=True)
        return sum(isinstance(own, Constant) and own != others for own, others in pairs)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return len({c.parameter for c in self.constants if isinstance(c, Varying)})


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kernel without its constants; kernels of equal patterns differ in constants, in the number
    of blocks and in the sizes of memory only.
    """

    kernel: KernelIR
    parameters: tuple[tuple[object, ...], ...]


def pattern_of(kernel: KernelIR) -> tuple[Pattern, Generalization]:
    """Return the pattern of a kernel and its constants, in the order of its statements."""
    found: list[Constant] = []

    def take(e: Int | Literal, constant: Constant) -> Expr:
        found.append(constant)
        return _PLACEHOLDER if isinstance(e, Int) else Literal(0, e.dtype)

    body = _Rewriter(kernel, take).body
    memory = [(p.name, p.dtype, p.is_pointer, p.written, p.aliased) for p in kernel.parameters]
    without = replace(kernel, parameters=(), blocks=0, shared_bytes=0, body=body)
    return Pattern(without, tuple(memory)), Generalization(tuple(found))


def with_parameters(kernel: KernelIR, general: Generalization) -> KernelIR:
    """Return the kernel with parameters in place of the constants that vary in `general`, which its
    own constants have been joined to; arguments are its own constants.
    """
    places: Iterator[Constant | Varying] = iter(general.constants)
    parameters: dict[int, Parameter] = {}

    def put(e: Int | Literal, constant: Constant) -> Expr:
        place = next(places)
        if not isinstance(place, Varying):
            return e
        kind = "number" if constant.dtype.is_floating else "size"
        name = f"{kind}{place.parameter}"
        own = replace(constant, parameter=name)
        made = Parameter(name, constant.dtype, own, is_pointer=False)
        assert parameters.setdefault(place.parameter, made) == made, f"{name} has two values"
        return Var(name)

    body = _Rewriter(kernel, put).body
    added = tuple(parameters[k] for k in sorted(parameters))
    return replace(kernel, parameters=(*kernel.parameters, *added), body=body)


class _Rewriter:
    """Rewrites the body of a kernel, with what `put` returns for each constant in turn."""

    def __init__(self, kernel: KernelIR, put: Callable[[Int | Literal, Constant], Expr]) -> None:
        self._put = put
        self._index = kernel.index
        self._registers = frozenset(_register_arrays(kernel.body))
        self.body: Body = self._rewritten(kernel.body)

    def _rewritten(self, node: Any) -> Any:
        match node:
            case tuple():
                found = tuple(map(self._rewritten, node))
                return found if any(map(is_not, found, node)) else node
            case Int() | Literal():
                constant = _constant(node, self._index)
                return node if constant is None else self._put(node, constant)
        static = self._static(node)
        changed = {
            name: new
            for name, value in fields_of(node)
            if name not in static and (new := self._rewritten(value)) is not value
        }
        return replace(node, **changed) if changed else node

    def _static(self, node: Any) -> tuple[str, ...]:
        """Names of the fields that compilers have to know."""
        match node:
            case Loop(end=Int(end)) if node.kind is not LoopKind.SERIAL or end <= WRITTEN_OUT:
                return ("begin", "end")
            case Element(base=base) | Address(pointer=base) if self._is_register(base):
                return ("index",)
        return _STATIC.get(type(node), ())

    def _is_register(self, base: Expr) -> bool:
        while isinstance(base, Element | Address):
            base = base.base if isinstance(base, Element) else base.pointer
        return isinstance(base, Var) and base.name in self._registers


def _constant(e: Int | Literal, index: DataType) -> Constant | None:
    """Return a constant that can be a parameter; None for others."""
    if isinstance(e, Int):
        return Constant(str(e.value), index, e.value) if _fits(e.value, index) else None
    if e.dtype not in _NUMBERS or isinstance(e.value, complex):
        return None
    is_float = e.dtype.is_floating
    largest = _LARGEST if e.dtype is DataType.Float else math.inf
    fits = abs(e.value) < largest if is_float else _fits(int(e.value), e.dtype)
    return Constant(repr(e.value), e.dtype, e.value) if fits else None


def _fits(value: int, dtype: DataType) -> bool:
    half = 1 << (8 * dtype.itemsize - 1)
    return -half <= value < half


def _register_arrays(body: Body) -> Iterator[str]:
    for s in body:
        match s:
            case Registers() | Pack():
                yield s.name
            case DrawNumbers():
                yield s.array
        for name, value in fields_of(s):
            if name in ("body", "otherwise"):
                yield from _register_arrays(cast(Body, value))
