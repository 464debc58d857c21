"""Reference semantics of a Fusion, one expression at a time in torch: test oracle and fallback.

Each result is rounded to its storage dtype before the next expression reads it, which is what a
compiled kernel does too. With `double=True` floats stay in float64 (complex in complex128) and are
never rounded: the reference that both are compared with.

torch lacks arithmetic on the wide unsigned types and on 8-bit floats, so values are held in a
*carrier* dtype: reduced floats as float32, uint16 and uint32 as int64, uint64 as the int64 of the
same bits. Two's complement makes most arithmetic the same on both; the exceptions are in
`reference_uint64.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.domain import (
    constant_if_known,
    dense_strides,
    static,
)
from thunder_fuser.ir.dtypes import DataType, Number, compute_dtype
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
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
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.reference_moves import gathered, moved
from thunder_fuser.ir.reference_uint64 import ON_UINT64, TOP_BIT
from thunder_fuser.ir.tables import opaque, pointwise, random, reductions, scans


class Results(NamedTuple):
    """Returned outputs, and the new value of each updated input, both in the fusion's order."""

    outputs: list[torch.Tensor]
    updates: list[torch.Tensor]


def evaluate(
    fusion: Fusion,
    inputs: Sequence[torch.Tensor | Number],
    *,
    double: bool = False,
    apply_updates: bool = False,
    device: torch.device | None = None,
    keep_kind: bool = False,
) -> Results:
    """Run a static fusion. Tensor inputs have the sizes and dtypes of the inputs' root domains.

    Results are new dense tensors in the fusion's allocation order. With `apply_updates` the updated
    inputs are written, and an output that is also an update is returned as that input. `device` is
    the device of created tensors if no input has one. With `keep_kind` results are not made dense:
    for sparse inputs, or tensor subclasses, they are what torch's operations return.
    FuserValueError where inputs do not fit.
    """
    evaluator = Evaluator(double, device or _common_device(inputs), keep_kind)
    evaluator.run_all(fusion, inputs)
    outputs = [evaluator.result(v) for v in fusion.outputs]
    updates = [evaluator.result(u.value) for u in fusion.updates]
    if apply_updates:
        for update, value in zip(fusion.updates, updates, strict=True):
            target = inputs[fusion.inputs.index(update.target)]
            assert isinstance(target, torch.Tensor)
            target.copy_(value)
            outputs = [
                target if v == update.value else out
                for v, out in zip(fusion.outputs, outputs, strict=True)
            ]
    return Results(outputs, updates)


def _common_device(inputs: Sequence[torch.Tensor | Number]) -> torch.device:
    """The device of the tensors; CPU scalars follow tensors of another device."""
    devices = [t.device for t in inputs if isinstance(t, torch.Tensor)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


class Evaluator:
    """`evaluate` in steps: bind the inputs, run expressions in order, read results.

    `values` holds carriers, with logical sizes, of everything bound or run so far.
    """

    def __init__(self, double: bool, device: torch.device, keep_kind: bool = False) -> None:
        self.double = double
        self.device = device
        self.keep_kind = keep_kind
        self.values: dict[Val, torch.Tensor] = {}
        self._given: dict[Val, torch.Tensor] = {}
        self._calls: dict[int, dict[int, torch.Tensor]] = {}

    def run_all(self, fusion: Fusion, inputs: Sequence[torch.Tensor | Number]) -> None:
        """Run a fusion on inputs; values are released after their last use, unless they are results
        or `keep_kind` is set.
        """
        self.bind(fusion.inputs, inputs)
        last = {value: k for k, expr in enumerate(fusion.exprs) for value in expr.inputs}
        results = set(fusion.results)
        for k, expr in enumerate(fusion.exprs):
            self.run(expr)
            for value in {*expr.inputs, expr.output}:
                if last.get(value, k) == k and value not in results and not self.keep_kind:
                    self.release(value)

    def release(self, val: Val) -> None:
        """Drop a value after its last use."""
        self.values.pop(val, None)

    # ---- dtypes

    def torch_dtype(self, dtype: DataType) -> torch.dtype:
        """The torch dtype of `dtype`, or its wider stand-in in double mode."""
        if self.double and dtype.is_floating:
            return torch.float64
        if self.double and dtype.is_complex:
            return torch.complex128
        return dtype.torch

    def to_carrier(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype.is_floating_point and value.dtype.itemsize < 4:
            return value.to(torch.float32)
        if value.dtype in (torch.uint16, torch.uint32):
            return value.to(torch.int64)
        return value.view(torch.int64) if value.dtype is torch.uint64 else value

    def from_carrier(self, value: torch.Tensor, dtype: DataType) -> torch.Tensor:
        """Round, or wrap around, to the storage dtype."""
        wanted = self.torch_dtype(dtype)
        if wanted is torch.uint64 and value.dtype is torch.int64:
            return value.view(torch.uint64)
        if wanted in (torch.uint16, torch.uint32):
            value = value & ((1 << 8 * wanted.itemsize) - 1)
        return value.to(wanted)

    def convert(self, value: torch.Tensor, source: DataType, dtype: DataType) -> torch.Tensor:
        """A carrier of `source` as a carrier of `dtype`, converted as by a cast."""
        stored = self.from_carrier(value, source)
        if source.is_complex and not dtype.is_complex and dtype is not DataType.Bool:
            stored = stored.real
        return self.to_carrier(stored.to(self.torch_dtype(dtype)))

    # ---- values

    def bind(self, formals: Sequence[Val], actuals: Sequence[torch.Tensor | Number]) -> None:
        if len(formals) != len(actuals):
            raise FuserValueError(f"expected {len(formals)} inputs, got {len(actuals)}")
        for formal, actual in zip(formals, actuals, strict=True):
            if isinstance(formal, Scalar):
                self.values[formal] = self._number(actual, formal)
            else:
                self._given[formal] = self._tensor(actual, formal)

    def _number(self, value: torch.Tensor | Number, scalar: Scalar) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            raise FuserTypeError(f"input {scalar} is a scalar, got a tensor")
        return self.constant(value, scalar.dtype)

    def _tensor(self, value: torch.Tensor | Number, view: TensorView) -> torch.Tensor:
        root = view.domain.root
        sizes = tuple(static(d.size) for d in root)
        if not isinstance(value, torch.Tensor):
            raise FuserTypeError(f"input {view} is a tensor, got {value!r}")
        if value.dtype != view.dtype.torch or tuple(value.shape) != sizes:
            raise FuserValueError(
                f"input {view}: expected {view.dtype.torch} of sizes {list(sizes)}, "
                f"got {value.dtype} of sizes {list(value.shape)}"
            )
        return value

    def _carried(self, value: torch.Tensor, view: TensorView) -> torch.Tensor:
        """An input's carrier, with its logical sizes."""
        held = (value if self.keep_kind else value.detach()).to(self.device)
        held = self.to_carrier(held.to(self.torch_dtype(view.dtype)))
        return moved(held, view, None)

    def constant(self, value: Number, dtype: DataType) -> torch.Tensor:
        if dtype.is_integral:
            value = _wrapped(int(value.real), dtype)
        made = torch.tensor(value, dtype=self.torch_dtype(dtype), device=self.device)
        return self.to_carrier(made)

    def __getitem__(self, val: Val) -> torch.Tensor:
        if val in self._given and isinstance(val, TensorView):
            # Deferred to the first read: in double mode it is a copy.
            self.values[val] = self._carried(self._given.pop(val), val)
        if val in self.values:
            return self.values[val]
        if isinstance(val, TensorView) or val.value is None:
            raise FuserValueError(f"{val} is read before it is defined")
        value = constant_if_known(val.value) if isinstance(val.value, Form) else val.value
        if isinstance(value, Form):
            raise FuserValueError(f"{val} is symbolic; bind sizes first (specialise)")
        return self.constant(value, val.dtype)

    def result(self, view: TensorView) -> torch.Tensor:
        value = self.from_carrier(self[view], view.dtype)
        if self.keep_kind:
            own = (x for v, x in self.values.items() if v is not view)
            return value.clone() if any(value is x for x in own) else value
        strides = dense_strides(view.sizes, view.domain.allocation)
        out = torch.empty_strided(view.sizes, strides, dtype=value.dtype, device=value.device)
        return out.copy_(value)

    # ---- expressions

    def run(self, expr: Expr) -> None:
        match expr:
            case PointwiseOp():
                value = self.pointwise(expr, self.operands(expr))
            case ViewOp() | CopyOp() | CutOp():
                value = moved(self[expr.input], expr.output, None)
            case PadOp():
                value = moved(self[expr.input], expr.output, self[expr.fill])
            case CatOp():
                value = torch.cat([self[t] for t in expr.inputs], expr.dim)
            case FullOp():
                value = self[expr.fill].expand(expr.output.sizes)
            case IotaOp():
                value = self._iota(expr)
            case RandomOp():
                value = self._random(expr)
            case ReductionOp():
                value = self._reduction(expr)
            case ScanOp():
                value = self._scan(expr)
            case GatherOp():
                value = gathered(expr, self[expr.input], self[expr.index])
            case OpaqueOp():
                value = self._called(expr)
        self.values[expr.output] = value

    def operands(self, expr: PointwiseOp) -> list[torch.Tensor]:
        """The operands' carriers, converted to the row's operand dtypes."""
        types = pointwise.lookup(expr.op).operand_dtypes(pointwise.operands_of(expr.inputs))
        return [
            self.convert(self[v], v.dtype, dtype)
            for v, dtype in zip(expr.inputs, types, strict=True)
        ]

    def pointwise(self, expr: PointwiseOp, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """The row's function on such operands, converted to the output's dtype."""
        op = pointwise.lookup(expr.op)
        types = op.operand_dtypes(pointwise.operands_of(expr.inputs))
        constant = [isinstance(v, Scalar) and v.is_constant for v in expr.inputs]
        function = pointwise_function(expr.op, types, constant)
        raw = types[0] if op.rule is pointwise.Rule.CAST else compute_dtype(expr.output.dtype)
        return self.convert(function(*operands), raw, expr.output.dtype)

    def _reduction(self, expr: ReductionOp) -> torch.Tensor:
        """Reduce in the accumulation dtype; round the result once."""
        elements = self.convert(self[expr.input], expr.input.dtype, expr.accumulate)
        row = reductions.lookup(expr.op)
        found = row.folded_dtype(expr.accumulate)
        if expr.accumulate is DataType.UInt64 and expr.op in ("max", "min", "argmax", "argmin"):
            # With the top bit flipped, carriers are in the order of the unsigned integers.
            folded = row.reference(elements ^ TOP_BIT, expr.dims)
            folded = folded ^ TOP_BIT if found is DataType.UInt64 else folded
        else:
            folded = row.reference(elements, expr.dims)
        return self.convert(folded, found, expr.output.dtype)

    def _scan(self, expr: ScanOp) -> torch.Tensor:
        """Scan in the accumulation dtype; round each element once."""
        elements = self.convert(self[expr.input], expr.input.dtype, expr.accumulate)
        row = scans.lookup(expr.op)
        if expr.accumulate is DataType.UInt64 and row.reduction.selects:
            # With the top bit flipped, carriers are in the order of the unsigned integers.
            scanned = row.reference(elements ^ TOP_BIT, expr.dim) ^ TOP_BIT
        else:
            scanned = row.reference(elements, expr.dim)
        return self.convert(scanned, expr.accumulate, expr.output.dtype)

    def _iota(self, expr: IotaOp) -> torch.Tensor:
        dtype = compute_dtype(expr.output.dtype)
        steps = torch.arange(expr.output.sizes[0], device=self.device)
        steps = self.to_carrier(steps.to(self.torch_dtype(dtype)))
        start, step = (self.convert(self[v], v.dtype, dtype) for v in expr.inputs)
        return self.convert(start + steps * step, dtype, expr.output.dtype)

    def _random(self, expr: RandomOp) -> torch.Tensor:
        """In double mode too the numbers are drawn in the output's dtype: another one would give
        others.
        """
        dtype, wide = expr.output.dtype, random.standard_dtype(expr.output.dtype)
        seed, offset = (self[v] for v in (expr.seed, expr.offset))
        first, second = (self.convert(self[v], v.dtype, wide) for v in expr.parameters)
        row = random.lookup(expr.op)
        drawn = row.numbers(seed, offset, (first, second), expr.output.numel, dtype)
        return self.convert(drawn.reshape(expr.output.sizes), wide, dtype)

    def _called(self, expr: OpaqueOp) -> torch.Tensor:
        """One result of a call; the others are kept until they are read."""
        waiting = self._calls.get(expr.call)
        if waiting is None or expr.result not in waiting:
            tensors = {
                name: self.from_carrier(self[tensor], tensor.dtype)
                for name, tensor in zip(expr.parameters, expr.inputs, strict=True)
            }
            row = opaque.lookup(expr.op)
            results = row.evaluate(tensors, dict(expr.attributes), double=self.double)
            waiting = self._calls[expr.call] = dict(enumerate(results))
        found = waiting.pop(expr.result)
        return self.to_carrier(found.to(self.torch_dtype(expr.output.dtype)))


def pointwise_function(
    name: str, types: Sequence[DataType], constant: Sequence[bool]
) -> Callable[..., torch.Tensor]:
    """Return what computes a pointwise operation, on carriers of operands of these types, of which
    some are constants: torch has kernels for some constant exponents (`pointwise.POWERS`), in which
    infinities have other powers.
    """
    function: Callable[..., torch.Tensor] = pointwise.lookup(name).reference
    if types[-1] is DataType.UInt64:
        return ON_UINT64.get(name, function)
    if name == "pow" and types[0].is_floating and constant[1]:
        return lambda base, exponent: torch.pow(base, exponent.item())
    return function


def _wrapped(value: int, dtype: DataType) -> int:
    """`value` in two's complement of the dtype's width, as a C++ conversion does it."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    negative = not dtype.is_unsigned and value >> (bits - 1)
    return value - (1 << bits) if negative else value
