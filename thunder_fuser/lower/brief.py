"""Short forms: functions that may be less precise than fp32, since all uses of their results are
rounded to 16 bits or less.

A short exponential has a relative error of some 2^-20. Products and quotients of such values have
errors of that size, and so have their sums, since all terms are positive; a difference may have a
larger one, and ends the search.

A short erf or tanh has an absolute error of 2^-22. It is used where a constant of magnitude 1 or
more is added: 1 + erf(x) has an absolute rounding error of 2^-25 anyway, however small it is, and
so has all that is computed from it. GELU and its gradient are of this form.

A sum over many rows may have an error of 2^-17 of its terms' magnitudes, since 128 of them are
added sequentially in fp32. If its result is rounded, its inputs may be short, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TypeGuard

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables.pointwise import PRODUCTS, QUOTIENTS, SUMS
from thunder_fuser.lower.scalar_graph import Compute, Folded, Literal, Value, operands

_SCALES = PRODUCTS | QUOTIENTS | {"neg", "cast"}
"""Operations that preserve a relative error."""
_SCALES_AND_SUMS, _PRODUCTS_AND_SUMS = _SCALES | SUMS, PRODUCTS | SUMS
_UP_TO_ONE = ("erf", "tanh")
"""Functions with values in [-1, 1]."""
Fold = tuple[str, Value, TensorView]
"""A reduction over a row: operation, value of its elements, result."""


def find_brief(
    nodes: Sequence[Value], kept: Collection[Value], folds: Sequence[Fold]
) -> frozenset[int]:
    """Return the nodes, by order, that may be computed by a short form.

    nodes  all nodes of a kernel, operands first
    kept   nodes that are stored, or whose uses are unknown
    folds  reductions, which use nodes too
    """
    search = _Search(nodes, kept, folds)
    return frozenset(n.order for n in nodes if isinstance(n, Compute) and search.is_brief(n))


def is_rounded(total: TensorView, nodes: Sequence[Value], kept: Collection[Value]) -> bool:
    """True if a grid reduction's result is only scaled, and all its uses are rounded.

    nodes  nodes of the epilogue
    kept   those of them that are stored
    """
    search = _Search(nodes, kept, ())
    results = (n for n in nodes if isinstance(n, Folded) and n.tensor == total)
    return all(map(search.becomes_small, results))


class _Search:
    def __init__(
        self, nodes: Sequence[Value], kept: Collection[Value], folds: Sequence[Fold]
    ) -> None:
        self._users: dict[Value, list[Value]] = defaultdict(list)
        for node in nodes:
            for operand in operands(node):
                self._users[operand].append(node)
        self._kept = set(kept)
        self._ops = {tensor: op for op, _, tensor in folds}
        self._results: dict[TensorView, list[Folded]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, Folded):
                self._results[node.tensor].append(node)
        self._folds: dict[Value, list[TensorView]] = defaultdict(list)
        self._from_one: set[TensorView] = set()
        for op, value, tensor in folds:
            self._folds[value].append(tensor)
            if op == "sum_exp" or (op == "sum" and self._is_up_to_one(value)):
                self._from_one.add(tensor)
        self._known: dict[Value, bool] = {}

    def is_brief(self, node: Compute) -> bool:
        if any(dtype is not DataType.Float for dtype in node.operand_dtypes):
            return False
        if node.op in QUOTIENTS:
            divisor = node.operands[1]
            # A sum with a term of 1: its reciprocal is neither infinite nor subnormal.
            if not (isinstance(divisor, Folded) and divisor.tensor in self._from_one):
                return False
        elif node.op in _UP_TO_ONE:
            return self._only_shifts(node, 1.0)
        elif node.op != "exp":
            return False
        return self.becomes_small(node) or self._joins_lossy(node)

    def _only_shifts(self, node: Value, size: float) -> bool:
        """True if a value of magnitude `size` at most is only added to constants as large, perhaps
        after scaling or squaring, and all uses of the sums are rounded.
        """
        if node in self._kept or self._folds[node] or not self._users[node]:
            return False
        for user in self._users[node]:
            if not isinstance(user, Compute) or user.dtype is not DataType.Float:
                return False
            if user.op in SUMS:
                constants = [abs(o.value) for o in user.operands if isinstance(o, Literal)]
                if not any(c >= size for c in constants) or not self._is_rounded_later(user):
                    return False
            elif user.op in PRODUCTS:
                scaled = _scaled(node, user, size)
                if scaled is None or not self._only_shifts(user, scaled):
                    return False
            else:
                return False
        return True

    def _is_rounded_later(self, node: Value) -> bool:
        """True if a value is used in sums and products only, and their results are rounded."""
        if node.dtype.is_reduced_precision:
            return True
        if node in self._kept or node.dtype is not DataType.Float or self._folds[node]:
            return False
        return all(
            isinstance(user, Compute)
            and user.op in _SCALES_AND_SUMS
            and user.dtype.is_floating
            and self._is_rounded_later(user)
            for user in self._users[node]
        )

    def _joins_lossy(self, node: Compute) -> bool:
        """True if an exponential <= 1 is only added to values with an absolute rounding error."""
        if node.op != "exp" or not _is_of_negative_square(node):
            return False
        here: Value = node
        while len(users := self._users[here]) == 1 and here not in self._kept:
            (user,) = users
            if not isinstance(user, Compute) or user.dtype is not DataType.Float:
                return False
            if user.op in SUMS:
                others = [o for o in user.operands if o is not here]
                return all(map(self._is_lossy, others)) and self._is_rounded_later(user)
            if user.op not in PRODUCTS:
                return False
            here = user
        return False

    def _is_lossy(self, node: Value) -> bool:
        """True for the sum of a constant and an erf or tanh, perhaps scaled."""
        while _is_product(node):
            values = [o for o in node.operands if not isinstance(o, Literal)]
            if len(values) != 1:
                return False
            (node,) = values
        if not isinstance(node, Compute) or node.op not in SUMS:
            return False
        while isinstance(node, Compute) and node.op in _PRODUCTS_AND_SUMS:
            values = [o for o in node.operands if not isinstance(o, Literal)]
            if len(values) != 1:
                return False
            (node,) = values
        return isinstance(node, Compute) and node.op in _UP_TO_ONE

    def becomes_small(self, node: Value) -> bool:
        """True if a value is only scaled and summed, and all results are rounded."""
        if node.dtype.is_reduced_precision:
            return True
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._has_small_uses(node)
        return known

    def _has_small_uses(self, node: Value) -> bool:
        if node in self._kept or node.dtype is not DataType.Float:
            return False
        for user in self._users[node]:
            scales = isinstance(user, Compute) and user.op in _SCALES and user.dtype.is_floating
            if not (scales and self.becomes_small(user)):
                return False
        for tensor in self._folds[node]:
            # Exponentials, whose terms have one sign.
            if self._ops[tensor] != "sum" or not (isinstance(node, Compute) and node.op == "exp"):
                return False
            if not all(map(self.becomes_small, self._results[tensor])):
                return False
        return True

    def _is_up_to_one(self, value: Value) -> bool:
        """True for the exponential of a difference to the maximum, as in softmax."""
        if not (isinstance(value, Compute) and value.op == "exp"):
            return False
        (distance,) = value.operands
        if not (isinstance(distance, Compute) and distance.op == "sub"):
            return False
        largest = distance.operands[1]
        while isinstance(largest, Compute) and largest.op == "cast":
            (largest,) = largest.operands
        return isinstance(largest, Folded) and self._ops.get(largest.tensor) == "max"


def _scaled(node: Value, product: Compute, size: float) -> float | None:
    """Return the largest magnitude of a product of `node`, of magnitude `size`, with a constant or
    with itself; None for other products.
    """
    first, second = product.operands
    if first is second is node:
        return size * size
    other = second if first is node else first
    if not isinstance(other, Literal) or isinstance(other.value, complex):
        return None
    return size * abs(other.value)


def _is_of_negative_square(node: Compute) -> bool:
    """True if the operand is a square times a negative constant, in any association:
    -0.5 * (x * x) or (-0.5 * x) * x.
    """
    (operand,) = node.operands
    factors = [*_factors(operand)]
    values = [f for f in factors if not isinstance(f, Literal)]
    constants = [f.value for f in factors if isinstance(f, Literal)]
    if len(values) != 2 or values[0] is not values[1] or len(constants) != 1:
        return False
    (constant,) = constants
    return not isinstance(constant, complex) and constant < 0


def _factors(product: Value) -> Iterator[Value]:
    """Yield the factors of a product, with those of factors that are products themselves."""
    for factor in operands(product) if _is_product(product) else ():
        yield from operands(factor) if _is_product(factor) else (factor,)


def _is_product(node: Value) -> TypeGuard[Compute]:
    return isinstance(node, Compute) and node.op in PRODUCTS
