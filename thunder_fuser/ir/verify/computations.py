"""Checks of the expressions that compute values: types by the rows of the tables, and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from thunder_fuser.errors import FuserError
from thunder_fuser.ir.builder.indexing import gathered_dims
from thunder_fuser.ir.domain import Reduce, broadcast, constant_if_known, shape_text
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    Scalar,
    ScanOp,
    TensorView,
)
from thunder_fuser.ir.tables import indexing, opaque, pointwise, random, reductions, scans
from thunder_fuser.ir.tables.call_shapes import Shaped
from thunder_fuser.ir.verify.check import Violation


def pointwise_ops(fusion: Fusion) -> Iterator[Violation]:
    """Types follow the op's row, sizes follow broadcasting."""
    for expr in fusion.exprs:
        if not isinstance(expr, PointwiseOp):
            continue
        try:
            op = pointwise.lookup(expr.op)
            kinds = pointwise.operands_of(expr.inputs)
            op.common_dtype(kinds)
            if (
                op.rule is not pointwise.Rule.CAST
                and op.result_dtype(kinds) is not expr.output.dtype
            ):
                yield expr, f"its dtype should be {op.result_dtype(kinds)!r}"
        except FuserError as error:
            yield expr, str(error)
        tensors = [v for v in expr.inputs if isinstance(v, TensorView)]
        if isinstance(expr.output, Scalar):
            if tensors:
                yield expr, "tensors give a scalar"
            continue
        if not tensors:
            yield expr, "scalars give a tensor"
            continue
        if expr.output.rank != max(t.rank for t in tensors):
            yield expr, "its rank is not the largest of its operands'"
        for tensor in tensors:
            pairs = zip(
                reversed(tensor.domain.logical), reversed(expr.output.domain.logical), strict=False
            )
            for operand, result in pairs:
                sizes = {operand.size, result.size}
                known = all(isinstance(size, int) for size in sizes)
                if known and len(sizes) > 1 and operand != broadcast():
                    yield expr, f"{tensor.name} does not broadcast to the output"
                if result.is_broadcast and not operand.is_broadcast:
                    yield expr, f"{tensor.name} has elements where the output broadcasts"


def factory_ops(fusion: Fusion) -> Iterator[Violation]:
    """Scalar operands have the dtype of the resulting tensor."""
    for expr in fusion.exprs:
        if not isinstance(expr, (FullOp, IotaOp)):
            continue
        for value in expr.inputs:
            if value.dtype is not expr.output.dtype:
                yield expr, f"{value} should have the output's dtype"
            if value.rank:
                yield expr, f"{value} should have no dimensions"
        if isinstance(expr, IotaOp):
            if expr.output.rank != 1:
                yield expr, "an iota has one dimension"
            if expr.output.dtype is DataType.Bool or expr.output.dtype.is_complex:
                yield expr, "an iota counts in integers or floats"


def random_ops(fusion: Fusion) -> Iterator[Violation]:
    """Seed and offset are integers, and parameters have the standard dtype."""
    for expr in fusion.exprs:
        if not isinstance(expr, RandomOp):
            continue
        try:
            random.lookup(expr.op).check(expr.output.dtype)
        except FuserError as error:
            yield expr, str(error)
            continue
        wide = random.standard_dtype(expr.output.dtype)
        for value, wanted in zip(
            expr.inputs, (DataType.Int, DataType.Int, wide, wide), strict=True
        ):
            if value.dtype is not wanted:
                yield expr, f"{value} should be {wanted!r}"
            if value.rank:
                yield expr, f"{value} should have no dimensions"


def reduction_ops(fusion: Fusion) -> Iterator[Violation]:
    """Whole dimensions of the input are reduced, in the accumulation dtype of the op's row."""
    for expr in fusion.exprs:
        if not isinstance(expr, ReductionOp):
            continue
        domain, dtype = expr.output.domain, expr.output.dtype
        if domain.root != expr.input.domain.logical:
            yield expr, "its root is not its input's logical domain"
        steps = [step for step in domain.transforms if isinstance(step, Reduce)]
        if len(steps) < len(domain.transforms):
            yield expr, "a reduction folds dimensions and does nothing else"
        elif any(a.axis <= b.axis for a, b in pairwise(steps)):
            yield expr, "dimensions are folded from the last to the first, each of them once"
        if expr.input.rank and not steps:
            yield expr, "it folds no dimension"
        try:
            row = reductions.lookup(expr.op)
            inferred = row.result_dtype(expr.input.dtype)
        except FuserError as error:
            yield expr, str(error)
            continue
        if not row.takes_dtype and dtype is not inferred:
            yield expr, f"its dtype should be {inferred!r}"
        accumulate = row.accumulate_dtype(expr.input.dtype, dtype)
        if expr.accumulate is not accumulate:
            yield expr, f"it should accumulate in {accumulate!r}"
        if dtype.is_reduced_precision and dtype is not expr.input.dtype:
            yield expr, f"its elements should be converted to {dtype!r} first"
        if not row.of_empty and any(expr.input.domain.shape[k] == 0 for k in expr.dims):
            yield expr, f"there is no {expr.op} of nothing"


def scan_ops(fusion: Fusion) -> Iterator[Violation]:
    """The result has the input's sizes, and is accumulated in the dtype of the op's row."""
    for expr in fusion.exprs:
        if not isinstance(expr, ScanOp):
            continue
        dtype, domain = expr.output.dtype, expr.output.domain
        if domain.shape != expr.input.domain.shape:
            yield expr, "it should have the sizes of its input"
        if not 0 <= expr.dim < expr.input.rank:
            yield expr, f"there is no dimension {expr.dim}"
        elif domain.logical[expr.dim].expanded not in (None, 1):
            yield expr, "sums of equal elements differ: the dimension is no broadcast one"
        try:
            row = scans.lookup(expr.op)
            row.check(expr.input.dtype, dtype)
        except FuserError as error:
            yield expr, str(error)
            continue
        accumulate = row.accumulate_dtype(expr.input.dtype, dtype)
        if expr.accumulate is not accumulate:
            yield expr, f"it should accumulate in {accumulate!r}"
        if dtype.is_reduced_precision and dtype is not expr.input.dtype:
            yield expr, f"its elements should be converted to {dtype!r} first"


def gather_ops(fusion: Fusion) -> Iterator[Violation]:
    """The result has the dimensions that follow from input and index."""
    for expr in fusion.exprs:
        if not isinstance(expr, GatherOp):
            continue
        try:
            dims = gathered_dims(indexing.lookup(expr.op), expr.input, expr.dim, expr.index)
        except FuserError as error:
            yield expr, str(error)
            continue
        if expr.output.domain.logical != dims:
            yield expr, f"its dimensions should be [{', '.join(map(str, dims))}]"
        if expr.output.dtype is not expr.input.dtype:
            yield expr, "it changes no element, and so no dtype"


def opaque_ops(fusion: Fusion) -> Iterator[Violation]:
    """Results have the sizes and dtypes of the row; those of one call have one operation."""
    for results in fusion.calls().values():
        first = results[0]
        if len({expr.result for expr in results}) < len(results):
            yield first, "two results of a call are the same one"
        for expr in results:
            same = (expr.op, expr.inputs, expr.parameters, expr.attributes)
            if same != (first.op, first.inputs, first.parameters, first.attributes):
                yield expr, f"{first.output.name} is of the same call, and another operation"
            operands = {
                name: Shaped(t.domain.shape, t.dtype)
                for name, t in zip(expr.parameters, expr.inputs, strict=True)
            }
            try:
                made = opaque.lookup(expr.op).check(operands, dict(expr.attributes))[expr.result]
            except (FuserError, IndexError) as error:
                yield expr, str(error)
                continue
            shape = tuple(map(constant_if_known, made.shape))
            if expr.output.domain.shape != shape or expr.output.dtype is not made.dtype:
                yield expr, f"it should be {made.dtype!r} of sizes {shape_text(shape)}"
