"""Which exponentials and quotients of a kernel need fewer digits than fp32 has, since all that
becomes of them is rounded to 16 bits or less.

A short exponential is wrong by some 2^-20 of itself. Products and quotients of such numbers are
wrong by as much, and so are their sums, since all are positive; a difference may be wrong by more,
and ends the search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower.scalar_graph import Compute, Folded, Value, operands

_SCALES = ("mul", "div", "truediv", "neg", "cast")
"""Operations that leave a relative error as it is."""
_QUOTIENTS = ("div", "truediv")
Fold = tuple[str, Value, TensorView]
"""A reduction of a row: its operation, what it takes of an element, its result."""


def find_brief(
    nodes: Sequence[Value], kept: Collection[Value], folds: Sequence[Fold]
) -> frozenset[int]:
    """The nodes, by order, that have a short form.

    nodes  all of a kernel, operands first
    kept   what is stored, or goes where nothing is known about what becomes of it
    folds  what else reads nodes
    """
    search = _Search(nodes, kept, folds)
    return frozenset(n.order for n in nodes if isinstance(n, Compute) and search.is_brief(n))


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
        if node.op in _QUOTIENTS:
            divisor = node.operands[1]
            # A sum that has 1 in it: its reciprocal is neither infinite nor rounded to few digits.
            if not (isinstance(divisor, Folded) and divisor.tensor in self._from_one):
                return False
        elif node.op != "exp":
            return False
        return self._becomes_small(node)

    def _becomes_small(self, node: Value) -> bool:
        """Whether all that becomes of a value, by scaling and summing alone, is rounded."""
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
            if not (scales and self._becomes_small(user)):
                return False
        for tensor in self._folds[node]:
            # Terms of one sign.
            if self._ops[tensor] != "sum" or not (isinstance(node, Compute) and node.op == "exp"):
                return False
            if not all(map(self._becomes_small, self._results[tensor])):
                return False
        return True

    def _is_up_to_one(self, value: Value) -> bool:
        """Whether it is the exponential of a distance from the largest, as in a softmax."""
        if not (isinstance(value, Compute) and value.op == "exp"):
            return False
        (distance,) = value.operands
        if not (isinstance(distance, Compute) and distance.op == "sub"):
            return False
        largest = distance.operands[1]
        while isinstance(largest, Compute) and largest.op == "cast":
            (largest,) = largest.operands
        return isinstance(largest, Folded) and self._ops.get(largest.tensor) == "max"
