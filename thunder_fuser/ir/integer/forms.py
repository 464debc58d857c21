"""Integer forms: sums of digits, with their arithmetic, questions and rewriting.

The normal form is reached in `ir/integer/symint.py`, which re-exports these and `digits.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.integer.bounds import Interval
from thunder_fuser.ir.integer.digits import Base, Digit, Opaque, Term, Variable, operands_of
from thunder_fuser.ir.integer.printer import text_of

if TYPE_CHECKING:
    from thunder_fuser.ir.integer.symint import Context


def _quotient(x: Any, d: Any) -> Any:
    """Floor division; 0 for divisor 0, as in kernels, so that every form has a value."""
    return 0 if isinstance(d, int) and d == 0 else x // d


def _remainder(x: Any, d: Any) -> Any:
    return x if isinstance(d, int) and d == 0 else x % d


def larger(x: Any, y: Any) -> Any:
    """The larger of two integers or forms."""
    if isinstance(x, Form):
        return x.context.larger(x, x.context.lift(y))
    if isinstance(y, Form):
        return larger(y, x)
    best, other = (x, y) if int(x) >= int(y) else (y, x)
    # Compared as given: of counts it adds a condition, no stricter than it must be.
    return best if best >= other else other


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "//": _quotient,
    "%": _remainder,
    "max": larger,
}
Number = TypeVar("Number")
Leaf: TypeAlias = "Callable[[Digit], Form | None]"


class Form:
    """An immutable, interned integer expression. Made by a `Context`; combine with + - * // %.

    `lo` and `hi` bound its values (inclusive; None: unbounded): exact where its digits are
    independent of each other, which reshapes, splits and merges preserve; where products share
    factors, as `products.py` proves them. `==` is identity; compare with an int by `equals`.
    """

    __slots__ = ("_variables", "const", "context", "divisions", "hi", "lo", "ordinal", "terms")

    def __init__(
        self,
        context: Context,
        const: int,
        terms: tuple[Term, ...],
        bounds: Interval,
        ordinal: int,
    ) -> None:
        self.context: Final = context
        self.const: Final = const
        self.terms: Final = terms
        self.ordinal: Final = ordinal
        lo, hi = bounds
        self.lo: Final = lo
        self.hi: Final = hi
        self.divisions: dict[int, tuple[Form, Form]] = {}
        self._variables: tuple[Variable, ...] | None = None

    # ------------------------------------------------------------------------------- arithmetic

    def __add__(self, other: Form | int) -> Form:
        context = self.context
        other = context.lift(other)
        if not other.terms:
            return context.interned(self.const + other.const, self.terms)
        if not self.terms:
            return context.interned(self.const + other.const, other.terms)
        terms = dict(self.terms)
        return context.normal(self.const + add_into(terms, other, 1), terms)

    def __sub__(self, other: Form | int) -> Form:
        return self + -self.context.lift(other)

    def __mul__(self, other: Form | int) -> Form:
        context = self.context
        if isinstance(other, Form):
            other = context.lift(other)
            if other.terms and self.terms:
                return context.product(self, other)
            if not self.terms:
                return other * self.const
            other = other.const
        if other == 0:
            return context.const(0)
        return context.interned(self.const * other, tuple((d, k * other) for d, k in self.terms))

    def __neg__(self) -> Form:
        return self * -1

    def __rsub__(self, other: int) -> Form:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __divmod__(self, other: Form | int) -> tuple[Form, Form]:
        other = self.context.lift(other)
        if other.terms:
            return self.context.divmod_form(self, other)
        if other.const <= 0:
            raise FuserValueError(f"({self}) divided by {other.const}: a divisor must be positive")
        return self.context.divmod_int(self, other.const)

    def __floordiv__(self, other: Form | int) -> Form:
        return divmod(self, other)[0]

    def __mod__(self, other: Form | int) -> Form:
        return divmod(self, other)[1]

    def __rdivmod__(self, other: int) -> tuple[Form, Form]:
        return divmod(self.context.const(other), self)

    def __rfloordiv__(self, other: int) -> Form:
        return self.context.const(other) // self

    def __rmod__(self, other: int) -> Form:
        return self.context.const(other) % self

    # -------------------------------------------------------------------------------- questions

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def __int__(self) -> int:
        if self.terms:
            raise FuserValueError(f"{self} is not a constant")
        return self.const

    def equals(self, other: Form | int) -> bool:
        """True if proven equal. False means different or, rarely, not recognised as equal."""
        return self is self.context.lift(other)

    def multiple_of(self, k: int) -> bool:
        """True if every value is provably divisible by k > 0."""
        return (self % k).equals(0)

    def variables(self) -> tuple[Variable, ...]:
        """The variables that it depends on, in order of creation."""
        if self._variables is None:
            bases = [digit.base for form in nested([self]) for digit, _ in form.terms]
            found = {base.ordinal: base for base in bases if isinstance(base, Variable)}
            self._variables = tuple(found[ordinal] for ordinal in sorted(found))
        return self._variables

    def depends_on(self, var: Form) -> bool:
        """True if the variable occurs; a variable with a single value never does."""
        return not var.is_constant and plain_variable(var) in self.variables()

    def coefficient(self, var: Form) -> int | None:
        """k if the form is k * var + (something without var); else None."""
        if not self.depends_on(var):
            return 0
        variable, found = plain_variable(var), 0
        for digit, coef in self.terms:
            if digit.base is variable:
                if digit.s != variable.multiple or digit.e is not None or coef % digit.s:
                    return None
                found = coef // digit.s
            elif not isinstance(digit.base, Variable) and variable in variables_of(digit.base):
                return None
        return found

    def affine(self, variables: Sequence[Form]) -> tuple[int, tuple[int, ...]] | None:
        """(const, coefs) if the form is exactly const + sum of coef * variable; else None."""
        coefs = []
        rest = self
        for var in variables:
            coef = self.coefficient(var)
            if coef is None:
                return None
            coefs.append(coef)
            rest -= var * coef
        return (rest.const, tuple(coefs)) if rest.is_constant else None

    def evaluate(self, env: Mapping[str, Number]) -> Number:
        """The value at a point, given by variable names: integers, or values that compute alike,
        such as forms of another context.

        Raises FuserValueError for a missing variable.
        """
        values: dict[int, Any] = {}
        for form in nested([self]):
            total: Any = form.const
            for digit, coef in form.terms:
                base = digit.base
                if isinstance(base, Variable):
                    if base.name not in env:
                        has = ", ".join(env) or "nothing"
                        raise FuserValueError(f"{self} needs {base.name}; got {has}")
                    value: Any = env[base.name]
                elif isinstance(base, Opaque):
                    value = reduce(OPERATORS[base.op], [values[x.ordinal] for x in base.operands])
                else:
                    value = values[base.ordinal]
                value = value // digit.s if digit.s != 1 else value
                total += coef * (value if digit.e is None else value % digit.e)
            values[form.ordinal] = total
        found: Number = values[self.ordinal]
        return found

    # ---------------------------------------------------------------------------------- rewriting

    def substitute(self, mapping: Mapping[Form, Form | int]) -> Form:
        """Replace variables, and normalise again.

        Earlier simplifications relied on a variable's bounds, so its replacement must lie in them
        wherever the result is used; a guard may ensure that.
        """
        replacements: dict[Variable, Form] = {}
        for var, value in mapping.items():
            if not var.is_constant:
                variable = plain_variable(var)
                replacements[variable] = new = self.context.lift(value)
                if not new.multiple_of(variable.multiple):
                    raise FuserValueError(
                        f"cannot replace {variable}, a multiple of {variable.multiple}, by {new}"
                    )

        def leaf(digit: Digit) -> Form | None:
            new = replacements.get(digit.base) if isinstance(digit.base, Variable) else None
            return None if new is None else self.context.read(new, digit.s, digit.e)

        touched = replacements.keys()
        return self.rewrite(leaf, lambda part: not touched.isdisjoint(part.variables()))

    def rewrite(self, leaf: Leaf, affected: Callable[[Form], bool]) -> Form:
        """Replace the digits for which `leaf` returns a form, inside bases too, and normalise
        again. Parts for which `affected` is false are left alone.
        """
        context, new = self.context, dict[int, Form]()

        def rebuilt(digit: Digit) -> Form | None:
            base = digit.base
            operands = [new[x.ordinal] for x in operands_of(base)]
            if all(x is y for x, y in zip(operands, operands_of(base), strict=True)):
                return None
            inner = (
                reduce(OPERATORS[base.op], operands) if isinstance(base, Opaque) else operands[0]
            )
            return context.read(inner, digit.s, digit.e)

        for form in nested([self]):
            new[form.ordinal] = form
            if affected(form):
                const, terms = form.const, dict[Digit, int]()
                for digit, coef in form.terms:
                    part = leaf(digit)
                    part = rebuilt(digit) if part is None else part
                    if part is None:
                        terms[digit] = terms.get(digit, 0) + coef
                    else:
                        const += add_into(terms, part, coef)
                new[form.ordinal] = context.normal(const, terms)
        return new[self.ordinal]

    # ------------------------------------------------------------------------------------- object

    def __hash__(self) -> int:
        return self.ordinal

    def __eq__(self, other: object) -> bool:
        return self is other

    def __bool__(self) -> bool:
        raise FuserTypeError(f"the truth of ({self}) is not defined: ask equals(0) or is_constant")

    def __repr__(self) -> str:
        return format(self, "")

    def __format__(self, number: str) -> str:
        """A sum of products, those of more factors first; `number` formats the integers."""
        return text_of(self, number)


def add_into(terms: dict[Digit, int], form: Form, k: int) -> int:
    """Add k * form's digits to a sum under construction; return k * form's constant."""
    for digit, coef in form.terms:
        terms[digit] = terms.get(digit, 0) + coef * k
    return form.const * k


def plain_variable(var: Form) -> Variable:
    """The variable of a form made by `Context.var`; FuserValueError for other forms."""
    if len(var.terms) == 1 and not var.const:
        digit, coef = var.terms[0]
        base = digit.base
        if isinstance(base, Variable) and digit.e is None and digit.s == coef == base.multiple:
            return base
    raise FuserValueError(f"expected a variable, got ({var})")


def nested(forms: Iterable[Form]) -> list[Form]:
    """The forms and all forms inside their bases, each once, the inner ones first."""

    def inside(form: Form) -> list[Form]:
        return [x for digit, _ in form.terms for x in operands_of(digit.base)]

    return sorted(backward_slice(forms, inside), key=lambda form: form.ordinal)


def variables_of(base: Base) -> tuple[Variable, ...]:
    if isinstance(base, Variable):
        return (base,)
    return tuple(variable for x in operands_of(base) for variable in x.variables())
