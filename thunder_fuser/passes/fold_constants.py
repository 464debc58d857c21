"""fold_constants: constants are evaluated, and operations without effect are removed.

Requires: nothing.
Result: no correctly rounded operation on constants alone; no x * 1, x - 0, -(-x), n != n, ...

Only identities that hold for every input, NaN, infinities and -0.0 included: x * 0 stays for
floats, and so does x + 0.0, which turns -0.0 into 0.0. That sum is removed where x cannot be -0.0,
and under precision "fast" always. x + -0.0 and x - 0.0 are x. Of complex numbers only sums are
folded: products mix their parts (inf * 0), and implementations differ in the sign of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from thunder_fuser.analysis.aliases import memory_behind_results
from thunder_fuser.ir.dtypes import Category, DataType, Number
from thunder_fuser.ir.fusion import Expr, FullOp, Fusion, MoveOp, PointwiseOp, TensorView, Val
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.passes.facts.exact_conversions import holds
from thunder_fuser.passes.facts.negative_zero import PositiveZeros
from thunder_fuser.passes.facts.uniform_values import Uniform
from thunder_fuser.passes.rewrite import Precision, Rewrite


def fold_constants(fusion: Fusion, precision: Precision = "strict") -> Fusion:
    fold = _Fold(fusion, precision)
    for expr in fold.rewrite.walk():
        if not fold.replace(expr):
            fold.rewrite.copy(expr)
    return fold.rewrite.result()


class _Fold:
    def __init__(self, fusion: Fusion, precision: Precision) -> None:
        self.rewrite = Rewrite(fusion)
        self._precision = precision
        self._behind = memory_behind_results(fusion)
        self._results = Counter(self._behind[t] for t in dict.fromkeys(fusion.results))
        self._uniform = Uniform(precision)
        self._positive = PositiveZeros(self._uniform)

    def replace(self, expr: Expr) -> bool:
        """Replace the expression's output by a simpler value; True if done."""
        uniform = self._uniform.learn(expr)
        self._positive.learn(expr)
        out = expr.output
        if not isinstance(out, TensorView) or isinstance(expr, FullOp):
            return False
        if uniform and not self._is_shown(expr):
            return self._become_full(out, self._uniform.number(out))
        if not isinstance(expr, PointwiseOp):
            return False
        if (number := self._of_equal(expr)) is not None:
            return self._become_full(out, number)
        absorbing = self._absorbing(expr)
        if absorbing is not None:
            return self._become_full(out, self._uniform.passed_on(expr, absorbing))
        return any(self._become(expr, k, x) for k, x in self._unchanged(expr))

    def _is_shown(self, expr: Expr) -> bool:
        """True if a result is a view of a constant that is in memory for another result, too."""
        base = self._behind.get(expr.output) if isinstance(expr.output, TensorView) else None
        if not isinstance(expr, MoveOp) or base is None or base is expr.output:
            return False
        return self._results[base] > 1 and base.numel <= expr.output.numel

    def _unchanged(self, expr: PointwiseOp) -> Iterator[tuple[int, Val]]:
        """(operand position, value) pairs where the result equals the value, up to its dtype."""
        op, operands = expr.op, expr.inputs
        row = pointwise.lookup(op)
        for place in row.neutral_places:
            if operands[place] in self._uniform and self._is_neutral(expr, place):
                yield 1 - place, operands[1 - place]
        if op == "where":
            if operands[0] in self._uniform:
                chosen = 1 if self._uniform.number(operands[0]) else 2
                yield chosen, operands[chosen]
            elif operands[1] == operands[2]:
                yield 1, operands[1]
        if row.has(Fact.IDEMPOTENT) and operands[0] == operands[1]:
            yield 0, operands[0]
        if row.has(Fact.INVOLUTION) and not expr.output.dtype.is_complex:
            inner = self.rewrite.producer(operands[0])
            if isinstance(inner, PointwiseOp) and inner.op == op:
                yield 0, inner.inputs[0]

    def _is_neutral(self, expr: PointwiseOp, place: int) -> bool:
        dtype = _operand_dtype(expr, place)
        number = pointwise.lookup(expr.op).neutral
        assert number is not None
        if dtype.is_complex:
            if expr.op not in ("add", "sub"):
                return False
            number = complex(number, number)
        if self._uniform.is_operand(expr, place, number):
            return True
        if expr.op != "add" or not self._uniform.is_operand(expr, place, 0.0):
            return False
        return self._precision == "fast" or expr.inputs[1 - place] in self._positive

    def _of_equal(self, expr: PointwiseOp) -> Number | None:
        """Result where all operands are one value, an integer or a bool, whichever; else None."""
        is_exact = _operand_dtype(expr, 0).category <= Category.INT
        are_equal = all(value == expr.inputs[0] for value in expr.inputs)
        return pointwise.lookup(expr.op).of_equal if is_exact and are_equal else None

    def _absorbing(self, expr: PointwiseOp) -> int | None:
        """Position of an operand that is the result, whatever the other is; else None."""
        number = pointwise.lookup(expr.op).absorbing
        if number is None:
            return None
        for k, value in enumerate(expr.inputs):
            is_exact = _operand_dtype(expr, k).category <= Category.INT
            if value in self._uniform and is_exact and self._uniform.is_operand(expr, k, number):
                return k
        return None

    def _become(self, expr: PointwiseOp, place: int, x: Val) -> bool:
        """Replace the output by operand `x`, converted as by the operation; True if done."""
        out = expr.output
        assert isinstance(out, TensorView)
        if not isinstance(x, TensorView):
            known = x in self._uniform
            return known and self._become_full(out, self._uniform.passed_on(expr, place))
        if x.domain.logical != out.domain.logical:
            return False
        new = self.rewrite.tensor(x)
        if x.dtype is out.dtype:
            if self.rewrite.may_become(out, new):
                self.rewrite.replace(out, new)
                return True
            return False
        once = _operand_dtype(expr, place) is out.dtype
        if once or holds(out.dtype, x.dtype):
            self.rewrite.replace(out, self.rewrite.builder.cast(new, out.dtype))
            return True
        return False

    def _become_full(self, out: TensorView, number: Number) -> bool:
        # A full cannot express an expanded dimension, or a memory order.
        is_plain = all(d.expanded is None for d in out.domain.logical)
        if not is_plain or out.domain.allocation != tuple(range(out.rank)):
            return False
        fill = self.rewrite.builder.scalar(number, out.dtype)
        made = self.rewrite.builder.full(out.domain.shape, fill, out.dtype)
        self.rewrite.replace(out, made)
        return True


def _operand_dtype(expr: PointwiseOp, place: int) -> DataType:
    return pointwise.lookup(expr.op).operand_dtypes(pointwise.operands_of(expr.inputs))[place]
