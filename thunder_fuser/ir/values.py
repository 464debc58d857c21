"""Values of a Fusion: tensors and scalars, as frozen data with ids unique within their Fusion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.integer.symint import Form


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of an expression: the trace symbol or definition op, and the user's line.

    result  the trace's name of the value that the symbol returns
    """

    symbol: str = ""
    file: str = ""
    line: int = 0
    result: str = field(default="", compare=False)

    def __str__(self) -> str:
        place = f" at {self.file}:{self.line}" if self.file else ""
        return f"{self.symbol or 'definition'}{place}"


@dataclass(frozen=True, slots=True, repr=False)
class TensorView:
    """A tensor in a Fusion. `id` is unique within its Fusion and numbers all values in order."""

    id: int
    dtype: DataType
    domain: TensorDomain
    is_cpu: bool = False
    """A 0-dim CPU tensor among CUDA tensors: read by the host at every launch, passed as a
    scalar.
    """
    origin: Origin = field(default=Origin(), compare=False)
    """For an input, the user's line that defines it. Expressions have their own."""

    def __hash__(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        return f"T{self.id}"

    @property
    def rank(self) -> int:
        return self.domain.rank

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.domain.sizes

    @property
    def numel(self) -> int:
        return math.prod(self.domain.sizes)

    @property
    def bytes(self) -> int:
        """Size in bytes of the tensor stored densely."""
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype.name}{self.domain}"

    __repr__ = __str__


@dataclass(frozen=True, slots=True, repr=False)
class Scalar:
    """A scalar: a constant, a symbolic integer (a size), or, if `value` is None, an input or
    result.
    """

    id: int
    dtype: DataType
    value: Number | Form | None = None
    origin: Origin = field(default=Origin(), compare=False)
    """For an input, the user's line that defines it."""

    def __eq__(self, other: object) -> bool:
        """Bitwise equality of constants: 0.0 and -0.0, 1 and True differ."""
        if not isinstance(other, Scalar):
            return NotImplemented
        same = self.id == other.id and self.dtype is other.dtype
        return same and exactly(self.value) == exactly(other.value)

    def __hash__(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        return f"S{self.id}"

    @property
    def rank(self) -> int:
        return 0

    @property
    def is_constant(self) -> bool:
        return self.value is not None and not isinstance(self.value, Form)

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype.name}" + ("" if self.value is None else f"={self.value}")

    __repr__ = __str__


def exactly(value: Number | Form | None) -> object:
    """A key equal for indistinguishable constants only."""
    return (type(value), repr(value)) if isinstance(value, int | float | complex) else value


Val = TensorView | Scalar
