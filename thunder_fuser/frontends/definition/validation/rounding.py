"""Running error analysis: a fusion in float64 and, for every value, a bound on the deviation of
a computation in the fusion's own dtypes.

Each operation is evaluated again with its operands moved by their bounds, which gives the
propagated error, and adds that of its own rounding; a reduction adds what its length allows. So the
bound of an output follows the operations that lead to it. A bool that may be either, and an integer
that may be another, have bounds as well: a value selected by them is uncertain by the distance of
the alternatives. These are estimates for correct computations, wide enough for any order of
reduction, not proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from thunder_fuser.ir.dtypes import Category, DataType, compute_dtype
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FullOp,
    GatherOp,
    IotaOp,
    MoveOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.reference import Evaluator
from thunder_fuser.ir.reference_moves import gathered, moved
from thunder_fuser.ir.tables import opaque, pointwise, reductions, scans
from thunder_fuser.ir.tables.call_shapes import Shaped
from thunder_fuser.ir.tables.pointwise import PRODUCTS, SUMS, Fact

_ULPS_OF_RANDOM_NUMBERS = 8


class ErrorAnalysis(Evaluator):
    """Evaluates expressions one at a time: `values` in float64, `errors` (absolute bounds) for
    inexact ones.

    unit  least relative rounding of every operation: where a reference is computed in a
          narrower dtype than the fusion's, that dtype's
    """

    def __init__(self, device: torch.device, unit: float = 0.0) -> None:
        super().__init__(True, device)
        self.errors: dict[Val, torch.Tensor] = {}
        self._unit = unit

    def run(self, expr: Expr) -> None:
        super().run(expr)
        error = self._error(expr)
        if error is not None:
            self.errors[expr.output] = error

    def release(self, val: Val) -> None:
        """Drop a value, and its bound, after its last use."""
        super().release(val)
        self.errors.pop(val, None)

    def _error(self, expr: Expr) -> torch.Tensor | None:
        match expr:
            case PointwiseOp():
                return self._of_pointwise(expr)
            case ReductionOp():
                return self._of_reduction(expr)
            case ScanOp():
                return self._of_scan(expr)
            case GatherOp():
                if expr.index in self.errors:
                    return torch.full_like(self[expr.output], math.inf, dtype=torch.float64)
                error = self.errors.get(expr.input)
                return None if error is None else gathered(expr, error, self[expr.index])
            case OpaqueOp():
                return self._of_call(expr)
            case RandomOp("bernoulli"):
                return None
            case RandomOp():
                sizes = [self[v].abs() for v in (*expr.parameters, expr.output)]
                return 2 * self._rounding("normal", expr.output.dtype, sum(sizes))
            case IotaOp():
                value, start = self[expr.output], self[expr.start].abs()
                # The rounding of partial results, which are larger where they cancel.
                return self._rounding("mul", expr.output.dtype, value.abs() + 2 * start)
            case ViewOp() | CopyOp() | CutOp() | PadOp() | CatOp() | FullOp():
                return self._moved(expr)

    def _moved(self, expr: MoveOp | CatOp | FullOp) -> torch.Tensor | None:
        found = [self._error_of(v, expr.output.dtype) for v in expr.inputs]
        if all(error is None for error in found):
            return None
        errors = [
            _zeros(self[v]) if error is None else error
            for v, error in zip(expr.inputs, found, strict=True)
        ]
        match expr:
            case ViewOp() | CopyOp() | CutOp():
                return moved(errors[0], expr.output, None)
            case PadOp():
                return moved(errors[0], expr.output, errors[1])
            case CatOp():
                return torch.cat(errors, expr.dim)
            case FullOp():
                return errors[0].expand(expr.output.sizes)

    def _error_of(self, val: Val, dtype: DataType) -> torch.Tensor | None:
        """The bound of a value converted to `dtype`; None for a value that is exact."""
        error = self.errors.get(val)
        if isinstance(val, TensorView) and _widens(val.dtype, dtype):
            return error
        narrow = min((val.dtype, dtype), key=_precision)
        if _precision(narrow) == math.inf or val.dtype.category < Category.FLOAT > dtype.category:
            return error
        value = self[val] if self[val].is_complex() else self[val].double()
        lost = (value.to(narrow.torch).to(value.dtype) - value).abs()
        if not bool((lost > 0).any()):
            return error
        rounding = torch.finfo(narrow.torch).eps / 2 * value.abs().double()
        return rounding if error is None else rounding + error

    def _of_call(self, expr: OpaqueOp) -> torch.Tensor | None:
        """Bound of a call, linear in each operand: its value for operands' sizes and errors."""
        row, result = opaque.lookup(expr.op), self[expr.output]
        known = [v in self.errors for v in expr.inputs]
        is_exact = not any(known)
        attributes = dict(expr.attributes)
        shaped = {n: Shaped(v.domain.shape, v.dtype) for n, v in self._named(expr)}
        terms = row.terms(shaped, attributes)
        if is_exact and row.answer is opaque.Answer.CHOICE:
            return None
        unsure = any(v in self.errors for v in expr.inputs if v.dtype.category < Category.FLOAT)
        if row.answer is not opaque.Answer.LINEAR or unsure or result.is_complex():
            return torch.full_like(result, math.inf, dtype=torch.float64)
        if is_exact and (not terms or expr.output.dtype.category < Category.FLOAT):
            return None
        sizes = {n: self._size(v) for n, v in self._named(expr)}
        reach = {n: self._size(v, with_error=True) for n, v in self._named(expr)}
        largest = row.evaluate(reach, attributes, double=True)[expr.result]
        total = largest - row.evaluate(sizes, attributes, double=True)[expr.result]
        if terms and expr.output.dtype.category >= Category.FLOAT:
            wide = torch.finfo(compute_dtype(expr.output.dtype).torch).eps
            total = total + min(terms, 8 + math.isqrt(terms)) * wide * largest
            total = total + self._rounding("cast", expr.output.dtype, result)
            if "bias" in expr.parameters:
                # A library may round the product before it adds the bias.
                total = total + self._rounding("cast", expr.output.dtype, largest)
        return total

    def _named(self, expr: OpaqueOp) -> list[tuple[str, TensorView]]:
        return list(zip(expr.parameters, expr.inputs, strict=True))

    def _size(self, value: TensorView, *, with_error: bool = False) -> torch.Tensor:
        """Magnitudes of the elements, plus their bounds if asked for; indices are unchanged."""
        if value.dtype.category < Category.FLOAT:
            return self[value]
        size = self[value].abs().double()
        error = self.errors.get(value) if with_error else None
        return size if error is None else size + error

    # ---- rounding

    def _rounding(self, op: str, dtype: DataType, value: torch.Tensor) -> torch.Tensor:
        """Bound on the rounding error of one operation with the result `value`."""
        if dtype.category < Category.FLOAT:
            return _zeros(value)
        info, wide = (torch.finfo(d.torch) for d in (dtype, compute_dtype(dtype)))
        row = pointwise.TABLE.get(op)
        size = value.abs().double()
        if row is None:
            ulps = _ULPS_OF_RANDOM_NUMBERS
        else:
            ulps = 0 if row.has(Fact.EXACT) else row.ulps
            size = size.clamp(min=1.0) if row.has(Fact.CANCELS) else size
        ulps *= 4 if dtype.is_complex else 1
        # A result computed in a wider type is rounded once more as it is stored.
        stored = info.eps / 2 if info.eps > wide.eps or op == "cast" else 0.0
        unit = max(ulps * wide.eps / 2 + stored, self._unit if ulps else 0.0)
        return unit * size + (info.smallest_normal if ulps or stored else 0.0)

    def _of_pointwise(self, expr: PointwiseOp) -> torch.Tensor | None:
        base, dtype = self[expr.output], expr.output.dtype
        op = expr.op
        if op == "cast" and _widens(expr.inputs[0].dtype, dtype):
            op = "real"  # rounds nothing
        elif op in ("abs", "sign") and expr.inputs[0].dtype.is_complex:
            op = "sqrt"
        operands = self.operands(expr)
        total = self._rounding(op, dtype, base)
        types = pointwise.lookup(expr.op).operand_dtypes(pointwise.operands_of(expr.inputs))
        errors = [self._error_of(v, d) for v, d in zip(expr.inputs, types, strict=True)]
        if dtype.category < Category.FLOAT:
            total = self._chosen(expr, operands, errors)
        else:
            for k, error in enumerate(errors):
                if error is not None:
                    total = total + self._propagated(expr, operands, k, errors)
        if dtype.category >= Category.FLOAT:
            # A value that may exceed the dtype's range may be infinite.
            size = base.abs().double()
            total += torch.where(size.isfinite() & (size + total > _largest(dtype)), math.inf, 0.0)
        # The bound is infinite where it would be NaN.
        return total.nan_to_num_(math.inf, math.inf) if bool(total.any()) else None

    def _propagated(
        self,
        expr: PointwiseOp,
        operands: Sequence[torch.Tensor],
        k: int,
        errors: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """Largest change of the result as operand `k` moves by its bound."""
        error, base = errors[k], self[expr.output]
        assert error is not None
        if expr.op in SUMS or expr.op == "cast":
            return error
        if expr.op in PRODUCTS:
            other, both = operands[1 - k].abs(), errors[1]
            return error * (other if k or both is None else other + both)
        found = _zeros(base)
        for changed in _neighbours(operands[k], error):
            result = self.pointwise(expr, [*operands[:k], changed, *operands[k + 1 :]])
            torch.maximum(found, _distance(result, base), out=found)
        return found

    def _chosen(
        self,
        expr: PointwiseOp,
        operands: Sequence[torch.Tensor],
        errors: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """Largest change of an integer or bool result, which jumps, as all operands move."""
        base = self[expr.output]
        found = _zeros(base)
        choices = [
            [x] if error is None else [x, *_neighbours(x, error), *_zero_between(x, error)]
            for x, error in zip(operands, errors, strict=True)
        ]
        if any(error is not None for error in errors):
            for corner in itertools.product(*choices):
                torch.maximum(found, _distance(self.pointwise(expr, corner), base), out=found)
        return found

    # ---- reductions

    def _of_reduction(self, expr: ReductionOp) -> torch.Tensor | None:
        elements = self.convert(self[expr.input], expr.input.dtype, expr.accumulate)
        error = self.errors.get(expr.input, _zeros(elements)).expand(elements.shape)
        row, result = reductions.lookup(expr.op), self[expr.output]
        if row.rule is reductions.Rule.POSITION:
            return self._position(expr, elements, error)
        if expr.accumulate.category >= Category.FLOAT and expr.op in ("sum", "prod"):
            own = self._rounding("mul", expr.accumulate, elements)
            own = own if expr.input.dtype is not expr.accumulate else _zeros(elements)
            total = self._folded(expr, elements, error + own)
            return total + self._rounding("cast", expr.output.dtype, result)
        if expr.input not in self.errors:
            return None
        found = _zeros(result)
        for changed in _neighbours(elements, error):
            moved_result = row.reference(changed, expr.dims)
            found = torch.maximum(found, _distance(moved_result, result))
        return found

    def _folded(
        self, expr: ReductionOp, elements: torch.Tensor, error: torch.Tensor
    ) -> torch.Tensor:
        """The bound of a sum or a product. A partial result is rounded once per step of a
        sequential chain; a kernel reduces many chains at a time, and does not always round to the
        same side.
        """
        count = math.prod(elements.shape[k] for k in expr.dims)
        steps = min(count, 8 + math.isqrt(count))
        loss = steps * torch.finfo(expr.accumulate.torch).eps
        row, sizes = reductions.lookup(expr.op), elements.abs()
        largest = row.reference(sizes + error, expr.dims)
        incoming = largest - row.reference(sizes, expr.dims)
        return incoming + loss * largest

    def _of_scan(self, expr: ScanOp) -> torch.Tensor | None:
        """Bound of a scan: for each element, that of the reduction of it and those before it."""
        elements = self.convert(self[expr.input], expr.input.dtype, expr.accumulate)
        error = self.errors.get(expr.input, _zeros(elements)).expand(elements.shape)
        row, result = scans.lookup(expr.op), self[expr.output]
        if expr.accumulate.category < Category.FLOAT or row.reduction.selects:
            changed = _neighbours(elements, error) if expr.input in self.errors else ()
            moved = [_distance(row.reference(each, expr.dim), result) for each in changed]
            return torch.stack(moved).amax(0) if moved else None
        own = self._rounding("mul", expr.accumulate, elements)
        error = error + (own if expr.input.dtype is not expr.accumulate else 0)
        count = elements.shape[expr.dim]
        loss = min(count, 8 + math.isqrt(count)) * torch.finfo(expr.accumulate.torch).eps
        sizes = elements.abs().double()
        largest = row.reference(sizes + error, expr.dim)
        total = largest - row.reference(sizes, expr.dim) + loss * largest
        return total + self._rounding("cast", expr.output.dtype, result)

    def _position(
        self, expr: ReductionOp, elements: torch.Tensor, error: torch.Tensor
    ) -> torch.Tensor | None:
        """Bound of an argmax or argmin: infinite where a rival's element may be as large."""
        if expr.input not in self.errors:
            return None
        signed = elements if expr.op == "argmax" else -elements
        largest = signed.amax(expr.dims, keepdim=True) if expr.dims else signed
        reach = error.amax(expr.dims, keepdim=True) if expr.dims else error
        rivals = (signed + error >= largest - reach).sum(expr.dims) if expr.dims else _zeros(signed)
        return torch.where(rivals > 1, math.inf, 0.0)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=torch.float64, device=like.device)


def _neighbours(x: torch.Tensor, error: torch.Tensor) -> Iterator[torch.Tensor]:
    """Values at the distance of the bound from `x`, on either side."""
    if x.dtype is torch.bool:
        yield x | (error > 0)
        yield x & ~(error > 0)
        return
    if not (x.is_complex() or x.is_floating_point()):
        error = error.ceil().clamp(max=2.0**62).to(x.dtype)
    yield x + error
    yield x - error
    if x.is_complex():
        yield x + 1j * error
        yield x - 1j * error


def _zero_between(x: torch.Tensor, error: torch.Tensor) -> Iterator[torch.Tensor]:
    """`x` with zero where it may be zero, since tests of numbers jump there."""
    if x.dtype is not torch.bool:
        yield torch.where(x.abs() <= error, 0, x)


def _largest(dtype: DataType) -> float:
    return float(torch.finfo(dtype.torch).max)


def _distance(found: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """|found - base|; 0 where either is NaN, since whether both are is compared elsewhere."""
    if not (base.is_floating_point() or base.is_complex()):
        found, base = found.double(), base.double()
    distance = (found - base).abs().double()
    return distance.nan_to_num_(0.0, math.inf)


def _precision(dtype: DataType) -> float:
    """1 / eps of a float; infinite for integers and bools."""
    return 1 / torch.finfo(dtype.torch).eps if dtype.category >= Category.FLOAT else math.inf


def _widens(source: DataType, target: DataType) -> bool:
    """True if every value of one dtype is exactly one of the other."""
    if source.category > target.category or target.category < Category.FLOAT:
        return False
    if source.category < Category.FLOAT:
        return source is DataType.Bool
    ours, theirs = torch.finfo(source.torch), torch.finfo(target.torch)
    wider = theirs.eps <= ours.eps and theirs.max >= ours.max
    return bool(wider and theirs.smallest_normal <= ours.smallest_normal)
