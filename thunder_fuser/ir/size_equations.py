"""Equations between the sizes of a Fusion, and their solution.

Dimensions aligned by an operation have one size. So have a dimension and the size that the
definition states for it, the numbers of elements before and after a reshape, and an updated input
and its update. All equations are listed here, once: a definition is rejected where they equate
different constants, it is planned with the solution, and each call is checked equation by equation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.domain import Assume, Extent, IterDomain, replay
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    Fusion,
    GatherOp,
    OpaqueOp,
    Origin,
    PadOp,
    PointwiseOp,
    TensorView,
    Update,
    ViewOp,
)
from thunder_fuser.ir.integer.forms import plain_variable
from thunder_fuser.ir.integer.products import long_division, monomials
from thunder_fuser.ir.integer.radix import content, over
from thunder_fuser.ir.integer.symint import Context, Form, Variable
from thunder_fuser.ir.reshape import product
from thunder_fuser.ir.symbolic import variables_by_name
from thunder_fuser.ir.tables import opaque
from thunder_fuser.ir.tables.call_shapes import Shaped


@dataclass(frozen=True, slots=True)
class Side:
    """One side of an equation: an extent, and the tensor dimension it belongs to; no tensor if the
    definition states the size, no axis for the number of elements.
    """

    extent: Extent
    tensor: TensorView | None = None
    axis: int | None = None

    def __str__(self) -> str:
        if self.tensor is None:
            return "stated in the definition"
        if self.axis is None:
            return f"elements of {self.tensor.name}"
        return f"dimension {self.axis} of {self.tensor.name}"


@dataclass(frozen=True, slots=True)
class Equation:
    """Two extents that an operation requires to be equal."""

    left: Side
    right: Side
    op: str
    origin: Origin

    @property
    def place(self) -> str:
        """The operation, and the user's line if it is known."""
        return f"{self.op}{line_of(self.origin)}"


def line_of(origin: Origin) -> str:
    return f" at {origin.file}:{origin.line}" if origin.file else ""


def equations(fusion: Fusion) -> Iterator[Equation]:
    """Every equation of a fusion, in order."""
    for expr in fusion.exprs:
        yield from equations_of(expr)
    for update in fusion.updates:
        yield from equations_of_update(update, Origin("add_output"))


def equations_of(expr: Expr) -> Iterator[Equation]:
    """The equations of one operation, except those between identical forms."""
    for left, right in _sides(expr):
        if left.extent is not right.extent:
            yield Equation(left, right, expr.op, expr.origin)


def equations_of_update(update: Update, origin: Origin) -> Iterator[Equation]:
    """The equations of an in-place update: the value has the sizes of its target."""
    dims = zip(update.target.domain.shape, update.value.domain.shape, strict=True)
    for k, (old, new) in enumerate(dims):
        if old is not new:
            sides = Side(old, update.target, k), Side(new, update.value, k)
            yield Equation(*sides, "add_output", origin)


def _sides(expr: Expr) -> Iterator[tuple[Side, Side]]:
    match expr:
        case PointwiseOp():
            yield from _aligned([v for v in expr.inputs if isinstance(v, TensorView)])
        case CatOp():
            yield from _aligned(expr.inputs, but=expr.dim - expr.output.rank)
        case GatherOp("take_along_axis"):
            yield from _aligned((expr.input, expr.index), but=expr.dim - expr.output.rank)
        case OpaqueOp():
            yield from _of_call(expr)
        case ViewOp("reshape"):
            before, after = expr.input.domain.shape, expr.output.domain.shape
            yield Side(product(before), expr.input), Side(product(after), expr.output)
        case ViewOp() | PadOp() if any(
            isinstance(t, Assume) for t in expr.output.domain.transforms
        ):
            yield from _stated(expr)


def _of_call(expr: OpaqueOp) -> Iterator[tuple[Side, Side]]:
    """The dimensions of operands that the row declares equal."""
    tensors = dict(zip(expr.parameters, expr.inputs, strict=True))
    shaped = {name: Shaped(t.domain.shape, t.dtype) for name, t in tensors.items()}
    for sides in opaque.lookup(expr.op).equal(shaped, dict(expr.attributes)):
        left, right = (
            Side(shaped[name].shape[k], tensors[name], k % shaped[name].rank) for name, k in sides
        )
        yield left, right


def _stated(expr: ViewOp | PadOp) -> Iterator[tuple[Side, Side]]:
    """Sizes that the definition states for dimensions that have one already."""
    dims = expr.input.domain.logical
    for step in expr.output.domain.transforms:
        if isinstance(step, Assume):
            yield Side(dims[step.axis].size, expr.output, step.axis), Side(step.size)
        dims = replay(dims, (step,))


def _aligned(tensors: Sequence[TensorView], but: int | None = None) -> Iterator[tuple[Side, Side]]:
    """The sizes of each dimension, counted from the last one, except of `but`."""
    for k in range(-max((t.rank for t in tensors), default=0), 0):
        if k == but:
            continue
        seen = [t for t in tensors if t.rank >= -k and _is_seen(t.domain.logical[k])]
        sides = [Side(t.domain.logical[k].size, t, t.rank + k) for t in seen]
        for other in sides[1:]:
            yield sides[0], other


def _is_seen(dim: IterDomain) -> bool:
    """True if the dimension takes part in the size of a broadcast result."""
    return not dim.is_broadcast or dim.expanded is not None


def conflict(place: str, found: Sequence[tuple[int | str, str]]) -> FuserValueError:
    """nvFuser's error for different sizes of dimensions that have to match."""
    sides = " and ".join(f"{size} ({origin})" for size, origin in found)
    return FuserValueError(
        "When trying to propagate constant tensor sizes through the graph a conflict was found "
        f"with {len(found)} different sizes across dimensions that are expected to match: "
        f"{place}: {sides}; give them one size, or broadcast explicitly"
    )


class Solution:
    """Symbolic sizes in terms of free ones, as far as the equations determine them.

    known  form of each dependent size, by name
    left   equations that determine no size: conditions on the sizes of a call
    """

    def __init__(self) -> None:
        self.context = Context()
        self.known: dict[str, Form] = {}
        self.left: list[Equation] = []
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._seen: set[tuple[Extent, Extent]] = set()

    def copied(self) -> Solution:
        """A copy to which other equations can be added."""
        new = copy.copy(self)
        new.known, new.left = {**self.known}, [*self.left]
        new._reasons, new._seen = {**self._reasons}, {*self._seen}
        return new

    def add(self, found: Iterable[Equation]) -> None:
        """Solve further equations; FuserValueError if no sizes satisfy them."""
        waiting = [e for e in found if self._is_new(e)]
        if not waiting:
            return
        solved = True
        while solved:
            before, self.left = [*self.left, *waiting], []
            waiting, solved = [], False
            for equation in before:
                solved |= self._solve(equation)

    def of(self, extent: Extent) -> Form:
        """An extent in terms of free sizes, as a form of this solution's context."""
        if isinstance(extent, int):
            return self.context.const(extent)
        return self.context.lift(
            extent.evaluate({v.name: self._size(v) for v in extent.variables()})
        )

    def _size(self, variable: Variable) -> Form:
        known = self.known.get(variable.name)
        return self.context.var(variable.name, variable.lo, None) if known is None else known

    def _is_new(self, equation: Equation) -> bool:
        pair = equation.left.extent, equation.right.extent
        if pair in self._seen:
            return False
        self._seen.add(pair)
        return True

    def _solve(self, equation: Equation) -> bool:
        """True if the equation determined a size; undecided equations are kept in `left`."""
        left, right = self.of(equation.left.extent), self.of(equation.right.extent)
        if left is right:
            return False
        if (left - right).is_constant:
            raise conflict(equation.place, [self._told(equation.left), self._told(equation.right)])
        difference = _reduced(left - right)
        found = _solution(difference) or _multiple(difference)
        if found is None:
            self.left.append(equation)
            return False
        size, value = found
        name = plain_variable(size).name
        for n, form in self.known.items():
            if form.depends_on(size):
                self.known[n] = form.substitute({size: value})
                self._reasons[n] += (equation.place,)
        self.known[name] = value
        self._reasons[name] = (equation.place,)
        return True

    def _told(self, side: Side) -> tuple[str, str]:
        """The solved value of a side, and its description with the operations that gave it."""
        if isinstance(side.extent, Form):
            reasons = [r for v in side.extent.variables() for r in self._reasons.get(v.name, ())]
            because = f", by {' and '.join(dict.fromkeys(reasons))}" if reasons else ""
            return f"{self.of(side.extent):,}", f"{side}{because}"
        return str(side.extent), str(side)


def _reduced(difference: Form) -> Form:
    """The equation divided by common factors of all terms, which are taken to be nonzero."""
    products = [factors for factors, _ in monomials(difference)]
    for size in _sizes(difference):
        if all(size in factors for factors in products):
            return _reduced(long_division(difference, size)[0])
    return over(difference, content(difference))


def _solution(difference: Form) -> tuple[Form, Form] | None:
    """(size, value) from the equation `difference` = 0: the last of the sizes that are a sum of
    others, or the last; None if none is determined by the others.
    """
    found: list[tuple[bool, int, Form, Form]] = []
    for k, size in enumerate(_sizes(difference)):
        unit = difference.coefficient(size)
        if unit is None or abs(unit) != 1:
            continue
        rest = (difference - size * unit) * -unit
        is_sum = rest.const >= 0 and all(coef > 0 for _, coef in rest.terms)
        found.append((is_sum, k, size, rest))
    if not found:
        return None
    *_, size, value = max(found, key=lambda x: x[:2])
    return size, value


def _multiple(difference: Form) -> tuple[Form, Form] | None:
    """From size % k = 0: (size, k * a new free variable); else None."""
    if len(difference.terms) != 1 or difference.const:
        return None
    ((digit, _),) = difference.terms
    if digit.e is None or digit.s != 1 or not isinstance(digit.base, Variable):
        return None
    (size,) = _sizes(difference)
    context = difference.context
    return size, context.var(f"{digit.base.name}//{digit.e}", 0, None) * digit.e


def _sizes(form: Form) -> list[Form]:
    """The size variables that a form depends on, as forms."""
    found = variables_by_name(form)
    return [form.context.var(v.name, v.lo, v.hi, v.multiple) for v in found]
