"""The table of reductions: operator, accumulation dtype, identity, and C++ spelling.

Most accumulate one value. The accumulator's type is a column of the table, so that a reduction may
carry more state: the position of the largest element, for one.

A reduction converts its elements to the accumulation dtype, reduces them in a fixed order, and
rounds the result once. 16- and 8-bit floats accumulate in fp32, fp64 in itself, integers and bools
in int64 (sums and products) or in their own type.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dtypes import Category, DataType, Number, compute_dtype


class Rule(enum.Enum):
    """Type rule: accumulation and result type from the input's dtype."""

    SUM = "integers and bools become Int, in the result too"
    KEEP = "the input's dtype"
    BOOL = "Bool"
    POSITION = "Int: the position in the order of the folded dimensions, the first of equal ones"


class Copies(enum.Enum):
    """Reduction of n equal elements."""

    SAME = "the element itself"
    MULTIPLE = "n times the element"
    POWER = "the n-th power of the element"
    PARITY = "the element if n is odd, and 0 if it is even"


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The accumulator of a reduction, in C++. Placeholders: {T} is the type that elements are
    converted to, {P} the type of positions, {op} the row's functor.

    ctype   its type: trivially copyable, a multiple of 4 bytes
    words   number of its members, all as wide as the widest of them
    start   initial value; {identity} is the row's
    take    {value} updated with one more {element}, whose {position} is that in the reduction
    finish  the result, from {value}
    vector  `take` for the first {present} of an array of {elements}, where there is such a function
    pads    True if taking the row's identity as an element changes nothing: it can pad a tile
    commutes  True if combining two gives the same bits in either order
    """

    ctype: str
    words: int
    start: str
    take: str
    finish: str
    vector: str = ""
    pads: bool = False
    commutes: bool = True

    @property
    def takes_position(self) -> bool:
        return "{position}" in self.take

    @property
    def is_number(self) -> bool:
        """True if the accumulator is a single value: one element reduces to itself."""
        return self.words == 1


NUMBER = Accumulator("{T}", 1, "{identity}", "{op}::combine({value}, ({T}){element})", "{value}")
SUM = replace(NUMBER, finish="{op}::finish({value})")
PLACED = Accumulator(
    "tf::Placed<{T}, {P}>",
    2,
    "tf::nowhere<{T}, {P}>({identity})",
    "{op}::combine({value}, tf::Placed<{T}, {P}>{{({T}){element}, {position}}})",
    "{value}.position",
)
MOMENTS = Accumulator(
    "tf::Moments<{T}>",
    4,
    "tf::Moments<{T}>{{}}",
    "{op}::take({value}, ({T}){element})",
    "tf::squared_deviations({value})",
    "{op}::take({value}, {elements}, {present})",
    commutes=False,
)
EXPONENTIALS = Accumulator(
    "tf::Exponentials<{T}>",
    2,
    "tf::Exponentials<{T}>{{{identity}, {T}(0)}}",
    "{op}::take({value}, ({T}){element})",
    "tf::sum_of_exponentials({value})",
    "{op}::take({value}, {elements}, {present})",
    pads=True,
    commutes=False,
)


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction.

    functor      C++ operator type of csrc_templates/accumulators.cuh
    identity     initial value, given the accumulation dtype
    reference    the reduction in torch, on a tensor of that type, over some dimensions
    of_empty     True if the reduction of no elements has a value (the identity)
    accumulator  state carried from element to element
    copies       reduction of equal elements; undefined for positions and structs
    """

    name: str
    rule: Rule
    accepts: frozenset[Category]
    functor: str
    identity: Callable[[DataType], Number]
    reference: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
    of_empty: bool = True
    accumulator: Accumulator = NUMBER
    copies: Copies = Copies.SAME

    @property
    def selects(self) -> bool:
        """True if a result is an element, its position, or bits of elements: nothing is rounded."""
        bare = self.accumulator.is_number and self.rule in (Rule.KEEP, Rule.BOOL)
        return bare or self.accumulator is PLACED

    def check(self, dtype: DataType) -> None:
        """FuserTypeError for an unsupported dtype of the input."""
        if dtype.category not in self.accepts:
            accepted = ", ".join(c.name.lower() for c in sorted(self.accepts))
            raise FuserTypeError(
                f"{self.name} does not take {dtype.name} tensors (it takes {accepted}); cast first"
            )

    def result_dtype(self, dtype: DataType) -> DataType:
        """Type of the result by default."""
        self.check(dtype)
        match self.rule:
            case Rule.SUM:
                return DataType.Int if dtype.category <= Category.INT else dtype
            case Rule.KEEP:
                return dtype
            case Rule.BOOL:
                return DataType.Bool
            case Rule.POSITION:
                return DataType.Int

    @property
    def takes_dtype(self) -> bool:
        """True if the result's dtype can be chosen; else it follows from the input."""
        return self.rule is Rule.SUM

    def accumulate_dtype(self, element: DataType, result: DataType) -> DataType:
        """The type that elements are converted to and reduced in."""
        return compute_dtype(element if self.rule is Rule.POSITION else result)

    def folded_dtype(self, accumulate: DataType) -> DataType:
        """The type of the reduced value, before it is rounded to the result's."""
        return DataType.Int if self.rule is Rule.POSITION else accumulate


def _lowest(dtype: DataType) -> Number:
    if dtype.is_floating:
        return -math.inf
    return False if dtype is DataType.Bool else int(torch.iinfo(dtype.torch).min)


def _highest(dtype: DataType) -> Number:
    if dtype.is_floating:
        return math.inf
    return True if dtype is DataType.Bool else int(torch.iinfo(dtype.torch).max)


def _product(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


def _xor_sum(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Bitwise XOR: the number of set bits at each position, modulo 2."""
    if not dims:
        return x
    places = range(1 if x.dtype is torch.bool else 8 * x.dtype.itemsize)
    bits = ((x.long() >> place & 1).sum(tuple(dims)) % 2 << place for place in places)
    kept = [n for k, n in enumerate(x.shape) if k not in dims]
    return sum(bits, torch.zeros(kept, dtype=torch.int64, device=x.device)).to(x.dtype)


def _position(
    fold: Callable[[torch.Tensor, int], torch.Tensor],
) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor]:
    """An argmax or argmin over several dimensions, as one over their flattened product."""

    def reference(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        kept = [k for k in range(x.dim()) if k not in dims]
        count = math.prod(x.shape[k] for k in dims)
        rows = x.permute([*kept, *dims]).reshape([*(x.shape[k] for k in kept), count])
        return fold(rows, -1)

    return reference


_ORDERED = frozenset({Category.INT, Category.FLOAT})
_ROWS = (
    Reduction(
        "sum",
        Rule.SUM,
        frozenset(Category),
        "tf::Sum",
        # -0.0 + x is x, and needs no instruction; 0.0 + x may have another sign.
        lambda dtype: -0.0 if dtype.is_floating else 0,
        lambda x, dims: torch.sum(x, tuple(dims), dtype=x.dtype) if dims else x,
        accumulator=SUM,
        copies=Copies.MULTIPLE,
    ),
    Reduction(
        "prod",
        Rule.SUM,
        frozenset(Category),
        "tf::Product",
        lambda dtype: 1,
        _product,
        copies=Copies.POWER,
    ),
    Reduction(
        "max",
        Rule.KEEP,
        frozenset({Category.BOOL, Category.INT, Category.FLOAT}),
        "tf::Max",
        _lowest,
        lambda x, dims: torch.amax(x, tuple(dims)) if dims else x,
        of_empty=False,
    ),
    Reduction(
        "min",
        Rule.KEEP,
        frozenset({Category.BOOL, Category.INT, Category.FLOAT}),
        "tf::Min",
        _highest,
        lambda x, dims: torch.amin(x, tuple(dims)) if dims else x,
        of_empty=False,
    ),
    Reduction(
        "xor_sum",
        Rule.KEEP,
        frozenset({Category.BOOL, Category.INT}),
        "tf::Xor",
        lambda dtype: 0,
        _xor_sum,
        copies=Copies.PARITY,
    ),
    Reduction(
        "any",
        Rule.BOOL,
        frozenset(Category),
        "tf::Max",
        lambda dtype: False,
        lambda x, dims: torch.any(x, tuple(dims)) if dims else x,
    ),
    Reduction(
        "all",
        Rule.BOOL,
        frozenset(Category),
        "tf::Min",
        lambda dtype: True,
        lambda x, dims: torch.all(x, tuple(dims)) if dims else x,
    ),
    Reduction(
        "argmax",
        Rule.POSITION,
        _ORDERED,
        "tf::ArgMax",
        _lowest,
        _position(torch.argmax),
        of_empty=False,
        accumulator=PLACED,
    ),
    Reduction(
        "argmin",
        Rule.POSITION,
        _ORDERED,
        "tf::ArgMin",
        _highest,
        _position(torch.argmin),
        of_empty=False,
        accumulator=PLACED,
    ),
)

TABLE: Mapping[str, Reduction] = MappingProxyType({row.name: row for row in _ROWS})
"""Every reduction by name."""


def _squared_deviations(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    if not dims:
        return x - x
    return (x - x.mean(tuple(dims), keepdim=True)).square().sum(tuple(dims))


def _sum_exp(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    largest = torch.amax(x, tuple(dims), keepdim=True) if dims else x
    return torch.sum((x - largest).exp(), tuple(dims)) if dims else (x - largest).exp()


_ONE_PASS_ROWS = (
    Reduction(
        "squared_deviations",
        Rule.KEEP,
        frozenset({Category.FLOAT}),
        "tf::Welford",
        lambda dtype: 0,
        _squared_deviations,
        accumulator=MOMENTS,
    ),
    Reduction(
        "sum_exp",
        Rule.KEEP,
        frozenset({Category.FLOAT}),
        "tf::OnlineSoftmax",
        _lowest,
        _sum_exp,
        of_empty=False,
        accumulator=EXPONENTIALS,
    ),
)

ONE_PASS: Mapping[str, Reduction] = MappingProxyType({row.name: row for row in _ONE_PASS_ROWS})
"""One-pass reductions that a kernel may use instead of two dependent ones
(`lower/rows/online_reductions.py`). Fusions do not contain them.
"""


def lookup(name: str) -> Reduction:
    """The row of that name; FuserValueError with the nearest names if there is none."""
    found = TABLE.get(name) or ONE_PASS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no reduction {name!r}{hint}")
    return found
