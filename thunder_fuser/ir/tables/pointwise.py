"""The table of pointwise operations: all that the rest of the compiler knows about them.

A row has the operation's reference (a torch function), its C++ spelling, the types of operands and
results, and its cost. The builder infers dtypes from it, the reference evaluator runs it, code
generation prints it, and tests draw random programs from it.

An operation is applied in three steps, the same in torch and in C++: operands are converted to
`operand_dtypes`, the row's function gives a raw result, and that is converted to `result_dtype`.
"""

from __future__ import annotations

import difflib
import enum
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError, InternalError
from thunder_fuser.ir import dtypes
from thunder_fuser.ir.dtypes import Category, DataType, Number, Operand
from thunder_fuser.ir.tables import pointwise_references as references
from thunder_fuser.ir.values import TensorView, Val


class Rule(enum.Enum):
    """Type rule: an operation's types from the common dtype of its promoted operands."""

    PROMOTE = "the common dtype; 16- and 8-bit floats become Float"
    FLOAT = "as PROMOTE; integers and bools become Float too"
    KEEP = "the common dtype, 16- and 8-bit floats included"
    BOOL = "Bool; operands are compared or tested in the common dtype"
    LOGICAL = "Bool; operands are converted to Bool first"
    REAL = "as KEEP; a complex dtype becomes the dtype of its parts"
    COMPLEX = "as FLOAT; the result is the complex dtype with such parts"
    CAST = "whatever the expression's output says"


_REAL = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}
_COMPLEX = {part: whole for whole, part in _REAL.items()}


class Fact(enum.Flag):
    """Properties of an operation for all operands; passes test these rather than names."""

    NONE = 0
    COMMUTATIVE = enum.auto()
    """a op b is b op a, bit for bit, except for complex numbers."""
    IDEMPOTENT = enum.auto()
    """a op a is a."""
    INVOLUTION = enum.auto()
    """op(op(a)) is a, except for complex numbers."""
    IEEE = enum.auto()
    """Exact or correctly rounded on reals. Others (exp, tanh, ..) depend on the implementation."""
    IEEE_COMPLEX = enum.auto()
    """IEEE for complex numbers too: even -z has zeros of one sign here and another there."""
    EXACT = enum.auto()
    """No rounding: results need no more digits than the operands have."""
    NO_NEGATIVE_ZERO = enum.auto()
    """No real result is -0.0."""
    ANY_WIDTH = enum.auto()
    """Integers give the same result computed in a wider type."""
    CANCELS = enum.auto()
    """Terms as large as 1 cancel near its zeros: errors are relative to at least 1."""
    SUM = enum.auto()
    """a + b or a - b."""
    PRODUCT = enum.auto()
    """a * b."""
    QUOTIENT = enum.auto()
    """a / b, of floats."""
    COMPARISON = enum.auto()
    """A predicate on two operands of one dtype."""


@dataclass(frozen=True, slots=True)
class Op:
    """One pointwise operation.

    accepts    categories that the common dtype may have
    reference  the operation on torch tensors that already have the operand dtypes
    cost       arithmetic per element, in units of one fp32 instruction
    spelling   C++ expression over {0}, {1}, ..; these stand for names or literals
    promoted   operands that take part in promotion; the others must be Bool (a condition)
    facts      properties that passes and code generation may rely on
    neutral    identity as right operand (of commutative operations: as either); -1 is all bits set
    absorbing  the result where any operand has this value; of integers and bools only
    of_equal   the result where all operands are one value, whichever; of integers and bools only
    ulps       bound on the error of a result, in units in the last place: about twice what CUDA
               and libm promise
    """

    name: str
    arity: int
    rule: Rule
    accepts: frozenset[Category]
    reference: Callable[..., torch.Tensor]
    cost: int
    spelling: str
    promoted: tuple[int, ...]
    facts: Fact = Fact.NONE
    neutral: Number | None = None
    absorbing: Number | None = None
    of_equal: Number | None = None
    ulps: int = 8

    def has(self, fact: Fact) -> bool:
        """True if the operation has that property."""
        return fact in self.facts

    @property
    def neutral_places(self) -> tuple[int, ...]:
        """Positions of operands that may be `neutral`."""
        if self.neutral is None:
            return ()
        return (0, 1) if self.has(Fact.COMMUTATIVE) else (1,)

    @property
    def header(self) -> str:
        """The file of csrc_templates that the spelling needs; "" for plain operators."""
        return "math.cuh" if "tf::" in self.spelling else ""

    def common_dtype(self, operands: Sequence[Operand]) -> DataType:
        """Common dtype of the promoted operands; FuserTypeError for unsupported ones."""
        if len(operands) != self.arity:
            raise FuserTypeError(f"{self.name} takes {self.arity} operands, got {len(operands)}")
        for k, operand in enumerate(operands):
            if k not in self.promoted and operand.dtype is not DataType.Bool:
                raise FuserTypeError(
                    f"{self.name}: operand {k} is a condition and must be Bool, got "
                    f"{operand.dtype.name}; compare it with something or cast it to Bool"
                )
        common = dtypes.result_dtype(operands[k] for k in self.promoted)
        if common.category not in self.accepts:
            accepted = ", ".join(c.name.lower() for c in sorted(self.accepts))
            raise FuserTypeError(
                f"{self.name} does not take {common.name} operands (it takes {accepted}); "
                f"cast them first"
            )
        return common

    def result_dtype(self, operands: Sequence[Operand]) -> DataType:
        """Storage type of the result; FuserTypeError for unsupported operands."""
        common = self.common_dtype(operands)
        match self.rule:
            case Rule.PROMOTE:
                return dtypes.compute_dtype(common)
            case Rule.FLOAT:
                return _as_float(common)
            case Rule.KEEP:
                return common
            case Rule.BOOL | Rule.LOGICAL:
                return DataType.Bool
            case Rule.REAL:
                return _REAL.get(common, common)
            case Rule.COMPLEX:
                return _COMPLEX[_as_float(common)]
            case Rule.CAST:
                raise InternalError(
                    f"{self.name} has no rule for its result: read the output's dtype"
                )

    def operand_dtypes(self, operands: Sequence[Operand]) -> tuple[DataType, ...]:
        """Types that operands are converted to before the spelling or the reference is applied."""
        common = self.common_dtype(operands)
        if self.rule in (Rule.FLOAT, Rule.COMPLEX):
            compute = _as_float(common)
        elif self.rule is Rule.LOGICAL:
            compute = DataType.Bool
        else:
            compute = dtypes.compute_dtype(common)
        return tuple(compute if k in self.promoted else DataType.Bool for k in range(self.arity))


def operands_of(values: Sequence[Val]) -> tuple[Operand, ...]:
    """Dtypes and ranks of an expression's inputs, for type promotion."""
    return tuple(Operand(v.dtype, v.rank if isinstance(v, TensorView) else None) for v in values)


def _as_float(common: DataType) -> DataType:
    if common.category < Category.FLOAT:
        return DataType.Float
    return dtypes.compute_dtype(common)


def lookup(name: str) -> Op:
    """The row of that name; FuserValueError with the nearest names if there is none."""
    found = TABLE.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no pointwise operation {name!r}{hint}")
    return found


def _row(
    name: str,
    arity: int,
    rule: Rule,
    accepts: str,
    reference: Callable[..., torch.Tensor],
    cost: int,
    spelling: str = "",
    promoted: tuple[int, ...] | None = None,
    facts: str = "",
    neutral: Number | None = None,
    absorbing: Number | None = None,
    of_equal: Number | None = None,
    ulps: int = 8,
) -> Op:
    """An `Op`. `accepts` lists first letters: bool, int, float, complex; `facts` names. Default
    spelling: tf::name(..).
    """
    places = ", ".join(f"{{{k}}}" for k in range(arity))
    return Op(
        name,
        arity,
        rule,
        frozenset(c for c in Category if c.name[0].lower() in accepts),
        reference,
        cost,
        spelling or f"tf::{name}({places})",
        tuple(range(arity)) if promoted is None else promoted,
        functools.reduce(operator.or_, (Fact[f.upper()] for f in facts.split()), Fact.NONE),
        neutral,
        absorbing,
        of_equal,
        ulps,
    )


_ROWS = (
    # Conversion.
    _row("cast", 1, Rule.CAST, "bifc", lambda x: x, 1, "{0}", facts="ieee ieee_complex",
        ulps=1),
    _row("real", 1, Rule.REAL, "bifc", torch.real, 0, facts="ieee ieee_complex exact"),
    _row("imag", 1, Rule.REAL, "c", torch.imag, 0, facts="ieee ieee_complex exact"),
    _row("complex", 2, Rule.COMPLEX, "bif", torch.complex, 0, facts="ieee ieee_complex exact"),
    # Arithmetic. Integers wrap around; their div and mod truncate, remainder floors; x / 0 is 0.
    # Compilers contract mul with an addition that reads it, to one FMA, and exp, which ends in a
    # product; never mul_rn and exp_rn.
    _row("neg", 1, Rule.PROMOTE, "ifc", torch.neg, 1, "-({0})", facts="ieee exact involution"),
    _row("add", 2, Rule.PROMOTE, "bifc", torch.add, 1, "{0} + {1}",
        facts="ieee ieee_complex commutative sum", neutral=-0.0, ulps=1),
    _row("sub", 2, Rule.PROMOTE, "ifc", torch.sub, 1, "{0} - {1}",
        facts="ieee ieee_complex sum", neutral=0.0, of_equal=0, ulps=1),
    _row("mul", 2, Rule.PROMOTE, "bifc", torch.mul, 1, "{0} * {1}",
        facts="ieee commutative product", neutral=1, absorbing=0, ulps=1),
    _row("mul_rn", 2, Rule.PROMOTE, "f", torch.mul, 1,
        facts="ieee commutative product", neutral=1, ulps=1),
    _row("div", 2, Rule.PROMOTE, "ifc", references.div, 8, facts="ieee quotient", neutral=1),
    _row("truediv", 2, Rule.FLOAT, "bifc", torch.true_divide, 8, facts="ieee quotient", neutral=1),
    _row("mod", 2, Rule.PROMOTE, "if", references.fmod, 16),
    _row("fmod", 2, Rule.PROMOTE, "if", references.fmod, 16),
    _row("remainder", 2, Rule.PROMOTE, "if", references.remainder, 18),
    _row("gcd", 2, Rule.PROMOTE, "i", references.gcd, 100),
    _row("pow", 2, Rule.PROMOTE, "ifc", torch.pow, 40, neutral=1, ulps=16),
    _row("reciprocal", 1, Rule.FLOAT, "bifc", torch.reciprocal, 8, facts="ieee"),
    _row("addcmul", 4, Rule.PROMOTE, "ifc", references.addcmul, 2, "{0} + {3} * {1} * {2}"),
    _row("lerp", 3, Rule.PROMOTE, "fc", references.lerp, 5),
    # Rounding, sign and bounds. All propagate NaN, except sign, which gives 0.
    _row("abs", 1, Rule.REAL, "ifc", torch.abs, 1, facts="ieee exact no_negative_zero"),
    _row("sign", 1, Rule.KEEP, "bifc", torch.sgn, 3, facts="ieee exact"),
    _row("ceil", 1, Rule.KEEP, "if", torch.ceil, 1, facts="ieee exact"),
    _row("floor", 1, Rule.KEEP, "if", torch.floor, 1, facts="ieee exact"),
    _row("round", 1, Rule.KEEP, "if", torch.round, 1, facts="ieee exact"),
    _row("trunc", 1, Rule.KEEP, "if", torch.trunc, 1, facts="ieee exact"),
    _row("frac", 1, Rule.KEEP, "f", torch.frac, 2, facts="ieee"),
    _row("relu", 1, Rule.KEEP, "if", torch.relu, 1, facts="ieee exact"),
    _row("minimum", 2, Rule.PROMOTE, "bif", torch.minimum, 2,
        facts="ieee exact idempotent any_width"),
    _row("maximum", 2, Rule.PROMOTE, "bif", torch.maximum, 2,
        facts="ieee exact idempotent any_width"),
    _row("clamp", 3, Rule.KEEP, "if", torch.clamp, 4, facts="ieee exact"),
    _row("threshold", 3, Rule.KEEP, "if", references.threshold, 2, "{0} <= {1} ? {2} : {0}",
        facts="ieee exact"),
    _row("nextafter", 2, Rule.PROMOTE, "f", torch.nextafter, 8, ulps=2),
    # Exponentials, logarithms, roots.
    _row("exp", 1, Rule.FLOAT, "bifc", torch.exp, 8, facts="no_negative_zero"),
    _row("exp_rn", 1, Rule.FLOAT, "f", torch.exp, 9, facts="no_negative_zero"),
    _row("exp2", 1, Rule.FLOAT, "bifc", torch.exp2, 6, facts="no_negative_zero"),
    _row("expm1", 1, Rule.FLOAT, "bifc", torch.expm1, 16),
    _row("log", 1, Rule.FLOAT, "bifc", torch.log, 12),
    _row("log2", 1, Rule.FLOAT, "bifc", torch.log2, 12),
    _row("log10", 1, Rule.FLOAT, "bifc", torch.log10, 12),
    _row("log1p", 1, Rule.FLOAT, "bifc", torch.log1p, 16),
    _row("sqrt", 1, Rule.FLOAT, "bifc", torch.sqrt, 8, facts="ieee"),
    _row("rsqrt", 1, Rule.FLOAT, "bifc", torch.rsqrt, 4, facts="no_negative_zero"),
    _row("sigmoid", 1, Rule.FLOAT, "bifc", torch.sigmoid, 16, facts="no_negative_zero"),
    _row("silu", 1, Rule.KEEP, "fc", torch.nn.functional.silu, 17),
    # Trigonometry.
    _row("sin", 1, Rule.FLOAT, "bifc", torch.sin, 20),
    _row("cos", 1, Rule.FLOAT, "bifc", torch.cos, 20),
    _row("tan", 1, Rule.FLOAT, "bifc", torch.tan, 28),
    _row("asin", 1, Rule.FLOAT, "bifc", torch.asin, 20),
    _row("acos", 1, Rule.FLOAT, "bifc", torch.acos, 20),
    _row("atan", 1, Rule.FLOAT, "bifc", torch.atan, 20),
    _row("atan2", 2, Rule.FLOAT, "bif", torch.atan2, 28),
    _row("sinh", 1, Rule.FLOAT, "bifc", torch.sinh, 20),
    _row("cosh", 1, Rule.FLOAT, "bifc", torch.cosh, 20, facts="no_negative_zero"),
    _row("tanh", 1, Rule.FLOAT, "bifc", torch.tanh, 15),
    _row("asinh", 1, Rule.FLOAT, "bifc", torch.asinh, 24),
    _row("acosh", 1, Rule.FLOAT, "bifc", torch.acosh, 24),
    _row("atanh", 1, Rule.FLOAT, "bifc", torch.atanh, 24),
    # Special functions.
    _row("erf", 1, Rule.FLOAT, "bif", torch.erf, 20),
    _row("erfc", 1, Rule.FLOAT, "bif", torch.erfc, 30, facts="no_negative_zero"),
    _row("erfinv", 1, Rule.FLOAT, "bif", torch.erfinv, 30, ulps=16),
    _row("erfcinv", 1, Rule.FLOAT, "bif", references.erfcinv, 40, facts="cancels", ulps=32),
    _row("lgamma", 1, Rule.FLOAT, "bif", torch.lgamma, 60, facts="cancels", ulps=16),
    _row("digamma", 1, Rule.FLOAT, "bif", torch.digamma, 90, facts="cancels", ulps=16),
    # Comparisons and tests. Integers and bools are finite and real.
    _row("eq", 2, Rule.BOOL, "bifc", torch.eq, 1, "{0} == {1}",
        facts="ieee ieee_complex commutative any_width comparison", of_equal=True),
    _row("ne", 2, Rule.BOOL, "bifc", torch.ne, 1, "{0} != {1}",
        facts="ieee ieee_complex commutative any_width comparison", of_equal=False),
    _row("lt", 2, Rule.BOOL, "bif", torch.lt, 1, "{0} < {1}",
        facts="ieee any_width comparison", of_equal=False),
    _row("le", 2, Rule.BOOL, "bif", torch.le, 1, "{0} <= {1}",
        facts="ieee any_width comparison", of_equal=True),
    _row("gt", 2, Rule.BOOL, "bif", torch.gt, 1, "{0} > {1}",
        facts="ieee any_width comparison", of_equal=False),
    _row("ge", 2, Rule.BOOL, "bif", torch.ge, 1, "{0} >= {1}",
        facts="ieee any_width comparison", of_equal=True),
    _row("signbit", 1, Rule.BOOL, "bif", torch.signbit, 1, facts="ieee any_width"),
    _row("isfinite", 1, Rule.BOOL, "bifc", torch.isfinite, 2, facts="ieee", of_equal=True),
    _row("isinf", 1, Rule.BOOL, "bifc", torch.isinf, 2, facts="ieee", of_equal=False),
    _row("isnan", 1, Rule.BOOL, "bifc", torch.isnan, 1, facts="ieee", of_equal=False),
    _row("isneginf", 1, Rule.BOOL, "bif", torch.isneginf, 1, facts="ieee", of_equal=False),
    _row("isposinf", 1, Rule.BOOL, "bif", torch.isposinf, 1, facts="ieee", of_equal=False),
    _row("isreal", 1, Rule.BOOL, "bifc", torch.isreal, 1, facts="ieee", of_equal=True),
    _row("where", 3, Rule.KEEP, "bifc", torch.where, 1, "{0} ? {1} : {2}", promoted=(1, 2),
        facts="ieee ieee_complex exact any_width"),
    # Logic and bits.
    _row("logical_not", 1, Rule.LOGICAL, "bifc", torch.logical_not, 1, "!({0})",
        facts="ieee involution"),
    _row("logical_and", 2, Rule.LOGICAL, "bifc", torch.logical_and, 1, "{0} && {1}",
        facts="ieee commutative", neutral=True, absorbing=False),
    _row("logical_or", 2, Rule.LOGICAL, "bifc", torch.logical_or, 1, "{0} || {1}",
        facts="ieee commutative", neutral=False, absorbing=True),
    _row("bitwise_not", 1, Rule.KEEP, "bi", torch.bitwise_not, 1,
        facts="ieee involution any_width"),
    _row("bitwise_and", 2, Rule.KEEP, "bi", torch.bitwise_and, 1, "{0} & {1}",
        facts="ieee commutative idempotent any_width", neutral=-1, absorbing=0),
    _row("bitwise_or", 2, Rule.KEEP, "bi", torch.bitwise_or, 1, "{0} | {1}",
        facts="ieee commutative idempotent any_width", neutral=0, absorbing=-1),
    _row("bitwise_xor", 2, Rule.KEEP, "bi", torch.bitwise_xor, 1, "{0} ^ {1}",
        facts="ieee commutative any_width", neutral=0, of_equal=0),
    _row("bitwise_left_shift", 2, Rule.KEEP, "i", torch.bitwise_left_shift, 3,
        facts="any_width", neutral=0),
    _row("bitwise_right_shift", 2, Rule.KEEP, "i", torch.bitwise_right_shift, 3,
        facts="any_width", neutral=0),
    _row("logical_right_shift", 2, Rule.KEEP, "i", references.logical_right_shift, 3, neutral=0),
)  # fmt: skip

ROUNDED: Mapping[str, str] = MappingProxyType({"mul": "mul_rn", "exp": "exp_rn"})
"""Operations that end in a product, which a compiler may contract with an addition that reads it,
and those of the same results that it may not. All others are as the latter.
"""


def _having(fact: Fact) -> frozenset[str]:
    return frozenset(row.name for row in _ROWS if row.has(fact))


SUMS, PRODUCTS = _having(Fact.SUM), _having(Fact.PRODUCT)
QUOTIENTS, COMPARISONS = _having(Fact.QUOTIENT), _having(Fact.COMPARISON)
"""Names of the operations that have a fact."""


class Power(NamedTuple):
    """A product of `factors` equal factors, then the pointwise operation `op` if not ""."""

    factors: int
    op: str = ""


POWERS: Mapping[float, Power] = MappingProxyType(
    {
        0.5: Power(1, "sqrt"),
        -0.5: Power(1, "rsqrt"),
        -1: Power(1, "reciprocal"),
        2: Power(2),
        -2: Power(2, "reciprocal"),
        3: Power(3),
    }
)
"""Powers by exponent that torch has special kernels for: the square root of -inf is NaN."""

TABLE: Mapping[str, Op] = MappingProxyType({row.name: row for row in _ROWS})
"""Every pointwise operation by name, related ones together."""
