"""Float64 truth with a running error bound: how far from it a right answer may be, per element.

A tolerance for a whole program is either too wide to find bugs or too narrow for x - y. So the
oracle runs a fusion in float64 and carries, next to every value, a bound of what rounding may do to
it: each operation is tried at the corners of its operands' bounds, which gives the error that comes
in, and adds its own. Zero means that the answer is one number (small integers stay exact through
sums and products, so comparisons and floor have one right answer); infinity means that nothing can
be said (a comparison of two sums that may be equal).

Where a value is stored in 16 or 8 bits the oracle rounds too, since that is part of what the
program means: the bound is zero again, except where it straddles the middle of two stored numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from tests.support import oracle_calls, oracle_reductions, oracle_scans
from tests.support.oracle_periods import between_corners
from thunder_fuser.ir.dtypes import Category, DataType, Number, compute_dtype
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FoldOp,
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    Scalar,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.reference import Evaluator
from thunder_fuser.ir.reference_moves import gathered, moved
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.ir.tables.pointwise import Fact

_ROUNDED_ONCE = frozenset({
    "cast", "real", "imag", "complex", "neg", "add", "sub", "mul", "mod", "fmod", "remainder",
    "abs", "sign", "ceil", "floor", "round", "trunc", "frac", "relu", "minimum", "maximum",
    "clamp", "threshold", "where",
})  # fmt: skip
"""Operations whose result is the exact one, rounded once (abs and sign: of real numbers)."""

_BY_PARTS = frozenset({"cast", "real", "imag", "neg", "where"})
"""Operations that treat the parts of a complex number each for itself."""

_TELL_ZEROS_APART = frozenset({
    "signbit", "atan2", "reciprocal", "rsqrt", "div", "truediv", "pow", "nextafter",
})  # fmt: skip
"""Operations whose result may depend on the sign of a zero."""

_ULPS_OF_NORMAL = 16
_ULPS_COMPLEX = 64
"""Units in the last place that normal numbers and complex functions may be wrong by."""

_WIDEST_USEFUL = 1 / 8
"""Relative bounds beyond this are not first-order any more, and say nothing."""


class Oracle:
    """Runs expressions one at a time: `values` in float64, `errors` as bounds of the same sizes."""

    def __init__(self) -> None:
        self.evaluator = Evaluator(True, torch.device("cpu"))
        self.errors: dict[Val, torch.Tensor] = {}

    def bind(self, formals: Sequence[Val], actuals: Sequence[torch.Tensor | Number]) -> None:
        local = [v.cpu() if isinstance(v, torch.Tensor) else v for v in actuals]
        self.evaluator.bind(formals, local)
        for formal in formals:
            self.errors[formal] = self._rounding_of(formal)

    def _rounding_of(self, val: Val) -> torch.Tensor:
        """Inputs and constants are rounded to their dtype, and that is all."""
        return _rounding(self.evaluator[val], val.dtype)

    def value(self, val: Val) -> torch.Tensor:
        return self.evaluator[val]

    def error(self, val: Val) -> torch.Tensor:
        if val not in self.errors:
            assert isinstance(val, Scalar)
            self.errors[val] = self._rounding_of(val)
        return self.errors[val]

    def run(self, expr: Expr) -> None:
        self.evaluator.run(expr)
        match expr:
            case PointwiseOp():
                error = self._pointwise(expr)
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                fill = self.error(expr.fill) if isinstance(expr, PadOp) else None
                error = moved(self.error(expr.input), expr.output, fill)
            case CatOp():
                error = torch.cat([self.error(t) for t in expr.inputs], expr.dim)
            case FullOp():
                error = self.error(expr.fill).expand(expr.output.sizes)
            case IotaOp():
                error = self._iota(expr)
            case RandomOp():
                error = self._random(expr)
            case ReductionOp():
                error = self._reduction(expr)
            case ScanOp():
                error = self._scan(expr)
            case GatherOp():
                error = self._gathered(expr)
            case OpaqueOp():
                error = self._called(expr)
        self.errors[expr.output] = error

    def _iota(self, expr: IotaOp) -> torch.Tensor:
        dtype, value = expr.output.dtype, self.value(expr.output)
        if not dtype.is_floating:
            return torch.zeros(value.shape, dtype=torch.float64)
        count = torch.arange(value.numel(), dtype=torch.float64)
        start, step = self.value(expr.start), self.value(expr.step)
        come = self.error(expr.start) + count * self.error(expr.step)
        exact = (come == 0) & (_rounding(count * step, DataType.Float) == 0)
        own = torch.where(
            exact, _rounding(value, dtype), _eps(dtype) * (start.abs() + count * step.abs())
        )
        return self._stored(expr.output, come + own)

    def _random(self, expr: RandomOp) -> torch.Tensor:
        """Exact bits, or, of normal, those that logarithm and sine leave it."""
        dtype, value = expr.output.dtype, self.value(expr.output)
        if random.lookup(expr.op).reproducible:
            assert all(isinstance(v, Scalar) and v.is_constant for v in expr.parameters)
            return torch.zeros(value.shape, dtype=torch.float64)
        mean, std = (self.value(v) for v in expr.parameters)
        come = self.error(expr.parameters[0]) + self.error(expr.parameters[1]) * (
            (value - mean).abs() / std.abs().clamp(min=1e-30)
        )
        own = _ULPS_OF_NORMAL * _eps(compute_dtype(dtype)) * (value - mean).abs()
        return self._stored(expr.output, come + own + _eps(compute_dtype(dtype)) * value.abs())

    def _elements(self, expr: FoldOp) -> tuple[torch.Tensor, torch.Tensor]:
        """What is folded, in the type that accumulates, and its bound."""
        dtype, source = expr.accumulate, self.value(expr.input)
        x = self.evaluator.convert(source, expr.input.dtype, dtype)
        error = _converted(source, self.error(expr.input), expr.input.dtype, x, dtype)
        if dtype.is_integral:
            error = torch.where(self.error(expr.input) > 0, torch.inf, 0.0)
        return x, error.expand(x.shape)

    def _scan(self, expr: ScanOp) -> torch.Tensor:
        x, error = self._elements(expr)
        error = oracle_scans.bound(
            expr.op, x, error, self.value(expr.output), expr.dim, expr.accumulate
        )
        stays = expr.output.dtype.category < Category.FLOAT
        return error if stays else self._stored(expr.output, error)

    def _reduction(self, expr: ReductionOp) -> torch.Tensor:
        dtype = expr.accumulate
        x, error = self._elements(expr)
        error = oracle_reductions.bound(
            expr.op,
            oracle_reductions.rows(x, expr.dims),
            oracle_reductions.rows(error, expr.dims),
            self.value(expr.output),
            dtype,
        )
        stays = expr.output.dtype.category < Category.FLOAT
        return error if stays else self._stored(expr.output, error)

    def _gathered(self, expr: GatherOp) -> torch.Tensor:
        """An index that may be off by one could be any element of the row."""
        source = self.error(expr.input).expand(expr.input.sizes)
        error = gathered(expr, source, self.value(expr.index))
        unsure = (self.error(expr.index) > 0).any()
        return torch.full_like(error, torch.inf) if unsure else error

    def _called(self, expr: OpaqueOp) -> torch.Tensor:
        values = [self.value(v) for v in expr.inputs]
        errors = [self.error(v) for v in expr.inputs]
        error = oracle_calls.bound(expr, values, errors, self.value(expr.output))
        stays = expr.output.dtype.category < Category.FLOAT
        return error if stays else self._stored(expr.output, error)

    def _stored(self, view: Val, error: torch.Tensor) -> torch.Tensor:
        """The bound after rounding to the storage dtype, which is done to the value as well."""
        value, dtype = self.value(view), view.dtype
        if dtype.is_reduced_precision:
            low, stored, high = (
                x.to(dtype.torch).to(torch.float64) for x in (value - error, value, value + error)
            )
            self.evaluator.values[view] = stored
            return torch.maximum(_gap(low, stored), _gap(high, stored))
        size = _size(value)
        lost = error > _WIDEST_USEFUL * size.clamp(min=1)
        lost |= size.isfinite() & (size + error > torch.finfo(dtype.torch).max)
        return torch.where(lost | error.isnan(), torch.inf, error)

    # ---- pointwise

    def _pointwise(self, expr: PointwiseOp) -> torch.Tensor:
        op = pointwise.lookup(expr.op)
        types = op.operand_dtypes(pointwise.operands_of(expr.inputs))
        operands = self.evaluator.operands(expr)
        errors = [
            _converted(self.value(v), self.error(v), v.dtype, x, dtype)
            for v, x, dtype in zip(expr.inputs, operands, types, strict=True)
        ]
        base = self.value(expr.output)
        come = self._propagated(expr, operands, errors, base)
        come = torch.where(_unspecified(expr.op, operands, base), torch.inf, come)
        if expr.op in _TELL_ZEROS_APART:
            come = torch.where(self._depends_on_zeros(expr, operands, base), torch.inf, come)
        if expr.output.dtype.category < Category.FLOAT:
            return come
        certain = torch.ones((), dtype=torch.bool)
        for error in errors:
            certain = certain & (error == 0)
        own = _own(expr, operands, base, certain)
        return self._stored(expr.output, come + own)

    def _depends_on_zeros(
        self, expr: PointwiseOp, operands: Sequence[torch.Tensor], base: torch.Tensor
    ) -> torch.Tensor:
        """Where the sign of a zero decides, which minimum, relu and compilers choose as they like.

        (g++ makes x = -0.25 a -0.0 on its way from float over int to float.)
        """
        depends = torch.zeros((), dtype=torch.bool)
        for k, x in enumerate(operands):
            if x.is_floating_point() and bool((x == 0).any()):
                others = [*operands[:k], torch.where(x == 0, -x, x), *operands[k + 1 :]]
                depends = depends | (_gap(self.evaluator.pointwise(expr, others), base) > 0)
        return depends

    def _propagated(
        self,
        expr: PointwiseOp,
        operands: Sequence[torch.Tensor],
        errors: Sequence[torch.Tensor],
        base: torch.Tensor,
    ) -> torch.Tensor:
        """Twice the largest change of the result over the corners of the operands' bounds."""
        worst = torch.zeros(base.shape, dtype=torch.float64)
        uncertain = [k for k, error in enumerate(errors) if bool((error > 0).any())]
        if not uncertain:
            return worst
        for corner in itertools.product(*(_corners(operands[k], errors[k]) for k in uncertain)):
            displaced = list(operands)
            for k, value in zip(uncertain, corner, strict=True):
                displaced[k] = value
            worst = torch.maximum(worst, _gap(self.evaluator.pointwise(expr, displaced), base))
        worst = torch.maximum(worst, between_corners(expr.op, operands, errors))
        for k in uncertain:
            # A condition has two values, and a choice depends on the chosen: corners say it all.
            if operands[k].dtype is not torch.bool and expr.op != "where":
                worst = torch.where(errors[k].isinf(), torch.inf, worst)
        if expr.op in ("eq", "ne"):
            apart = _gap(operands[0], operands[1])
            margin = errors[0] + errors[1]
            worst = torch.where((margin > 0) & (apart <= margin), torch.inf, worst)
        return 2 * worst


def _converted(
    value: torch.Tensor,
    error: torch.Tensor,
    source: DataType,
    operand: torch.Tensor,
    dtype: DataType,
) -> torch.Tensor:
    """The bound of an operand after its conversion; inf for integers and bools that may differ."""
    if dtype.category >= Category.FLOAT:
        return error + _rounding(operand, dtype)
    may_be_zero = _size(value) <= error if source.category >= Category.FLOAT else True
    return torch.where((error > 0) & may_be_zero, torch.inf, 0.0)


def _unspecified(op: str, operands: Sequence[torch.Tensor], base: torch.Tensor) -> torch.Tensor:
    """Where libraries differ: the sign of NaN, and what infinities do to complex functions."""
    if op == "signbit" and operands[0].is_floating_point():
        return operands[0].isnan()
    if op not in _BY_PARTS and any(x.is_complex() for x in operands):
        return ~base.isfinite()
    return torch.zeros((), dtype=torch.bool)


def _own(
    expr: PointwiseOp,
    operands: Sequence[torch.Tensor],
    base: torch.Tensor,
    certain: torch.Tensor,
) -> torch.Tensor:
    """What the operation itself may add, in the type that it computes in."""
    dtype = compute_dtype(expr.output.dtype)
    size = _size(base)
    is_complex = any(x.is_complex() for x in operands)
    if expr.op in _ROUNDED_ONCE and not (is_complex and expr.op in ("abs", "sign")):
        rounding = _rounding(base, dtype)
        if dtype.is_complex:
            rounding = torch.where(rounding > 0, 8 * _eps(dtype) * size, 0.0)
        error = torch.where(certain, rounding, _ulp(dtype, size))
    else:
        ulps = _ULPS_COMPLEX if is_complex else pointwise.lookup(expr.op).ulps
        error = ulps * _eps(dtype) * _reach(expr.op, operands, size) + _spacing(dtype)
    return torch.where(size.isfinite(), error + _of_intermediates(expr.op, operands, dtype), 0.0)


def _of_intermediates(op: str, operands: Sequence[torch.Tensor], dtype: DataType) -> torch.Tensor:
    """What the range of the type adds: inf where an intermediate result exceeds it (as torch's do),
    and a step of the smallest numbers, times what multiplies it.
    """
    parts, multiplied = list[torch.Tensor](), torch.zeros(())
    match op:
        case "addcmul":
            _, first, second, scale = map(_size, operands)
            parts, multiplied = [scale * first, scale * first * second], second
        case "lerp":
            start, end, weight = operands
            parts = [_size(end - start), _size((end - start) * (1 - weight))]
    error = _spacing(dtype) * multiplied.nan_to_num(posinf=0.0).double()
    for part in parts:
        error = torch.where(part > torch.finfo(dtype.torch).max, torch.inf, error)
    return error


def _reach(op: str, operands: Sequence[torch.Tensor], size: torch.Tensor) -> torch.Tensor:
    """The size of the largest intermediate result."""
    if pointwise.lookup(op).has(Fact.CANCELS):
        return size.clamp(min=1)
    match op:
        case "lerp":
            start, end, weight = map(_size, operands)
            return size + start + end + weight * (start + end)
        case "addcmul":
            return size + _size(operands[0])
        case "pow" if operands[0].is_complex():
            # exp(b log(a)): what rounds the exponent is a relative error of the power.
            base, exponent = operands
            return size * (1 + _size(exponent * base.log()).nan_to_num(posinf=0.0))
        case _:
            return size


def _corners(value: torch.Tensor, error: torch.Tensor) -> list[torch.Tensor]:
    if value.dtype is torch.bool:
        return [value, torch.where(error > 0, ~value, value)]
    if value.is_complex():
        finite = torch.where(error.isfinite(), error, 0.0)
        return [value + finite * turn for turn in (1, -1, 1j, -1j)]
    if value.is_floating_point():
        return [value + error, value - error]
    return [torch.where(error > 0, value + 1, value)]


def _gap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance; 0 between two NaN or equal infinities, inf where one is NaN or integers differ."""
    if a.is_complex():
        return _gap(a.real, b.real) + _gap(a.imag, b.imag)
    if not a.is_floating_point():
        return torch.where(a != b, torch.inf, 0.0).double()
    distance = (a - b).abs()
    if not bool(distance.sum().isnan()):
        # Without NaN and infinities that are equal, which tensors rarely have, that is all.
        return distance.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, distance.nan_to_num(nan=torch.inf, posinf=torch.inf)).double()


def _rounding(value: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """How far the nearest number of that dtype is; an estimate for Double, which is the truth's."""
    if dtype.category < Category.FLOAT:
        return torch.zeros(value.shape, dtype=torch.float64)
    if dtype in (DataType.Double, DataType.ComplexDouble):
        # A result of few bits came about without rounding.
        single = DataType.ComplexFloat if value.is_complex() else DataType.Float
        return torch.where(_rounding(value, single) > 0, _ulp(dtype, _size(value)), 0.0)
    wide = value if value.is_complex() else value.double()
    narrow = torch.float32 if dtype.is_complex and not value.is_complex() else dtype.torch
    return _gap(wide.to(narrow).to(wide.dtype), wide)


def _size(value: torch.Tensor) -> torch.Tensor:
    return value.abs().double() if value.dtype is not torch.bool else value.double()


def _eps(dtype: DataType) -> float:
    return float(torch.finfo(dtype.torch).eps)


def _ulp(dtype: DataType, size: torch.Tensor) -> torch.Tensor:
    """What rounding may change of a number of that size: one below the smallest may become 0."""
    return _eps(dtype) * size + size.clamp(max=_spacing(dtype))


def _spacing(dtype: DataType) -> float:
    """Distance between the smallest numbers."""
    found = torch.finfo(dtype.torch)
    return float(found.smallest_normal) * float(found.eps)


# ---- comparison


def run(fusion: Fusion, inputs: Sequence[torch.Tensor | Number]) -> Oracle:
    oracle = Oracle()
    oracle.bind(fusion.inputs, inputs)
    for expr in fusion.exprs:
        oracle.run(expr)
    return oracle


def assert_close_to_reference(
    got: Sequence[torch.Tensor],
    fusion: Fusion,
    inputs: Sequence[torch.Tensor | Number],
    updates: Sequence[torch.Tensor] = (),
) -> None:
    """`got` are returned outputs, `updates` updated inputs; `inputs` are as they were before."""
    check(run(fusion, inputs), fusion, got, updates)


def check(
    oracle: Oracle,
    fusion: Fusion,
    got: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor] = (),
) -> None:
    """AssertionError naming the first element of a result that is outside its bound."""
    assert len(got) == len(fusion.outputs), f"{len(got)} outputs, expected {len(fusion.outputs)}"
    for k, (tensor, view) in enumerate(zip(got, fusion.outputs, strict=True)):
        _check(f"output {k}", tensor, view, oracle)
    for update, tensor in zip(fusion.updates, updates, strict=False):
        _check(f"update of {update.target.name}", tensor, update.value, oracle)


def _check(what: str, got: torch.Tensor, view: TensorView, oracle: Oracle) -> None:
    assert got.dtype is view.dtype.torch, f"{what} ({view}) is {got.dtype}"
    assert tuple(got.shape) == view.sizes, f"{what} ({view}) has sizes {list(got.shape)}"
    want, bound = oracle.value(view), oracle.error(view)
    mine = oracle.evaluator.to_carrier(
        got.detach().cpu().to(oracle.evaluator.torch_dtype(view.dtype))
    )
    bad = (_gap(mine, want) > bound).nonzero()
    if len(bad):
        at = tuple(bad[0].tolist())
        raise AssertionError(
            f"{what} ({view}): {len(bad)} of {want.numel()} elements are wrong; at {list(at)} got "
            f"{mine[at].item()}, expected {want[at].item()} within {bound[at].item():.3g}"
        )


def tightness(oracle: Oracle, view: TensorView) -> float:
    """The fraction of elements that the bound decides: equal, or within 1000 units of rounding."""
    value, bound = oracle.value(view), oracle.error(view)
    if not value.numel():
        return 1.0
    allowed = torch.zeros_like(bound)
    if view.dtype.category >= Category.FLOAT:
        allowed = 1000 * _eps(compute_dtype(view.dtype)) * _size(value).clamp(min=1)
        allowed = torch.where(value.isfinite(), allowed, 0.0)
    return int((bound <= allowed).sum()) / value.numel()
