"""The one table of reductions: what folds, in which type, from which first value, and how in C++.

Most accumulate one number. What they carry along is a column of the table, so that a reduction may
remember more of its elements: where the largest was, for one.

A reduction converts its elements to the type that it accumulates in, folds them in a fixed order,
and rounds the result once. 16- and 8-bit floats accumulate in fp32, fp64 in itself, integers and
bools in int64 (sums and products) or in their own type.
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
    """How the types follow from the input's dtype."""

    SUM = "integers and bools become Int, in the result too"
    KEEP = "the input's dtype"
    BOOL = "Bool"
    POSITION = "Int: the position in the order of the folded dimensions, the first of equal ones"


class Copies(enum.Enum):
    """What n equal elements fold to."""

    SAME = "the element itself"
    MULTIPLE = "n times the element"
    POWER = "the n-th power of the element"
    PARITY = "the element if n is odd, and 0 if it is even"


@dataclass(frozen=True, slots=True)
class Accumulator:
    """What a fold carries along, in C++. Placeholders: {T} is the type that elements are converted
    to and {P} the one that counts them, {op} the row's functor.

    ctype   its type: trivially copyable, a multiple of 4 bytes
    words   how many members it has, all as wide as the widest of them
    start   before the first element; {identity} is the row's
    take    {value} with one more {element}, whose {position} is that among those that are folded
    finish  the value of the result, from {value}
    vector  `take` for the first {present} of an array of {elements}, where there is such a function
    pads    the row's identity, as an element, changes nothing: it can stand for what is not there
    commutes  two of them meet with the same bits whichever comes first
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
        """Whether it is what the result is: what one element folds to is that element."""
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
    """One row.

    functor      C++ operator type of csrc_templates/accumulators.cuh
    identity     the value that folding starts from, given the type it is folded in
    reference    the reduction in torch, on a tensor of that type, over some dimensions
    of_empty     whether folding nothing has a value (the identity)
    accumulator  what is carried from element to element
    copies       what equal elements fold to; of positions and structs nothing is said
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
        """Whether a result is an element, its place, or bits of them: nothing is rounded."""
        bare = self.accumulator.is_number and self.rule in (Rule.KEEP, Rule.BOOL)
        return bare or self.accumulator is PLACED

    def check(self, dtype: DataType) -> None:
        """FuserTypeError where the row refuses the input's dtype."""
        if dtype.category not in self.accepts:
            accepted = ", ".join(c.name.lower() for c in sorted(self.accepts))
            raise FuserTypeError(
                f"{self.name} does not take {dtype.name} tensors (it takes {accepted}); cast first"
            )

    def result_dtype(self, dtype: DataType) -> DataType:
        """Type of the result where the user asks for none."""
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
        """Whether users may ask for a dtype of the result; the others' follows from the input."""
        return self.rule is Rule.SUM

    def accumulate_dtype(self, element: DataType, result: DataType) -> DataType:
        """The type that elements are converted to and folded in."""
        return compute_dtype(element if self.rule is Rule.POSITION else result)

    def folded_dtype(self, accumulate: DataType) -> DataType:
        """The type of what folding leaves, before it is rounded to the result's."""
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
    """The number of set bits at each place, modulo 2."""
    if not dims:
        return x
    places = range(1 if x.dtype is torch.bool else 8 * x.dtype.itemsize)
    bits = ((x.long() >> place & 1).sum(tuple(dims)) % 2 << place for place in places)
    kept = [n for k, n in enumerate(x.shape) if k not in dims]
    return sum(bits, torch.zeros(kept, dtype=torch.int64, device=x.device)).to(x.dtype)


def _position(
    fold: Callable[[torch.Tensor, int], torch.Tensor],
) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor]:
    """A position in one dimension as one in several of them, flattened in order."""

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
        # What -0.0 + x is, is x: no instruction. 0.0 + x may have another sign.
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
"""Those that a kernel may do in the place of two, one of which waits for the other
(`lower/online_reductions.py`). Fusions have none of them.
"""


def lookup(name: str) -> Reduction:
    """The row of that name; FuserValueError, with the nearest names, where there is none."""
    found = TABLE.get(name) or ONE_PASS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no reduction {name!r}{hint}")
    return found
