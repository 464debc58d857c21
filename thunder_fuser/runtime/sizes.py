"""The values of a call's symbolic sizes: where each comes from, and whether they fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thunder_fuser.errors import FuserValueError, InternalError
from thunder_fuser.ir.domain import Extent, IterDomain, Resize
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    Fusion,
    GatherOp,
    PointwiseOp,
    Scalar,
    TensorView,
    ViewOp,
    shape_text,
)
from thunder_fuser.ir.symbolic import size_variables, variable_of
from thunder_fuser.ir.symint import Form, Variable


def size_inputs(fusion: Fusion) -> tuple[int, ...]:
    """Positions of the number inputs that serve as sizes: another value needs other kernels."""
    known = size_variables(fusion)
    return tuple(
        k for k, v in enumerate(fusion.inputs) if isinstance(v, Scalar) and v.name in known
    )


def bind_sizes(fusion: Fusion, inputs: Sequence[Any]) -> dict[Form, int]:
    """Every symbolic size of the fusion with its value in this call, in order of the inputs.

    The inputs have the right kinds and ranks already. FuserValueError where a size differs from the
    definition, or where two inputs disagree.
    """
    variables = size_variables(fusion)
    sizes = _Sizes({}, {})
    for k, (formal, actual) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        place = f"input {k}, {formal.name}"
        if isinstance(formal, Scalar):
            if formal.name in variables:
                sizes.take(variables[formal.name].variables()[0], actual, place)
            continue
        for d, (dim, size) in enumerate(zip(formal.domain.root, actual.shape, strict=True)):
            variable = variable_of(dim.size)
            if variable is not None:
                sizes.take(variable, size, f"dimension {d} of {place}")
    missing = [name for name in variables if name not in sizes.values]
    if missing:
        raise InternalError(f"no input determines the size {missing[0]}")
    _check_inputs(fusion, inputs, sizes)
    _check_agreement(fusion, sizes)
    return {variables[name]: value for name, value in sizes.values.items()}


class _Sizes:
    """Values of variables by name, and the inputs that they come from."""

    def __init__(self, values: dict[str, int], owners: dict[str, str]) -> None:
        self.values = values
        self._owners = owners

    def take(self, variable: Variable, value: int, place: str) -> None:
        lo, hi, name = variable.lo, variable.hi, variable.name
        if value < lo or (hi is not None and value > hi) or value % variable.multiple:
            raise FuserValueError(
                f"{place}, is {value}, which cannot be a size here: expected "
                f"{'at least ' if hi is None else ''}{lo}{'' if hi is None else f' to {hi}'}"
                f"{f', a multiple of {variable.multiple}' if variable.multiple > 1 else ''}"
            )
        if self.values.setdefault(name, value) != value:
            found = [(self.values[name], self._owners[name]), (value, place)]
            raise FuserValueError(_conflict("one size of the definition", found))
        self._owners.setdefault(name, place)

    def __getitem__(self, extent: Extent) -> int:
        return extent if isinstance(extent, int) else extent.evaluate(self.values)

    def of(self, shape: Sequence[Extent]) -> tuple[int, ...]:
        return tuple(self[extent] for extent in shape)

    def described(self, extent: Extent) -> tuple[int, str]:
        """The number and where it comes from."""
        if isinstance(extent, int):
            return extent, "in the definition"
        variable = variable_of(extent)
        return self[extent], str(extent) if variable is None else self._owners[variable.name]


def _check_inputs(fusion: Fusion, inputs: Sequence[Any], sizes: _Sizes) -> None:
    for k, (formal, actual) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if isinstance(formal, Scalar):
            continue
        for d, (dim, size) in enumerate(zip(formal.domain.root, actual.shape, strict=True)):
            if sizes[dim.size] == size:
                continue
            advice = "define the dimension as -1 to accept any size"
            if not _is_seen(dim):
                advice = f"a dimension defined as 1 broadcasts; {advice}"
            raise FuserValueError(
                f"Tried to bind to a constant value: {sizes[dim.size]} as {size} in dimension {d} "
                f"of input {k}, {formal.name} (sizes {list(actual.shape)}); {advice}"
            )


def check_agreement(fusion: Fusion, values: Mapping[str, int]) -> None:
    """FuserValueError unless these values of a fusion's variables fit together."""
    _check_agreement(fusion, _Sizes(dict(values), {name: f"size {name}" for name in values}))


def meetings(expr: Expr) -> Iterator[list[Extent]]:
    """Extents that an operation has side by side in one dimension: they are one size."""
    match expr:
        case PointwiseOp():
            yield from _aligned([v for v in expr.inputs if isinstance(v, TensorView)])
        case CatOp():
            yield from _aligned(expr.inputs, but=expr.dim - expr.output.rank)
        case GatherOp("take_along_axis"):
            yield from _aligned((expr.input, expr.index), but=expr.dim - expr.output.rank)


def _check_agreement(fusion: Fusion, sizes: _Sizes) -> None:
    """Dimensions that meet in an operation have one size: 1 does not broadcast where it could be
    anything in the definition, so that a definition means the same for all sizes."""
    for expr in fusion.exprs:
        for seen in meetings(expr):
            other = next((size for size in seen if sizes[size] != sizes[seen[0]]), None)
            if other is not None:
                found = [sizes.described(seen[0]), sizes.described(other)]
                raise FuserValueError(_conflict(f"{expr.op}{_line(expr)}", found))
        match expr:
            case ViewOp("slice"):
                _check_slice(expr, sizes)
            case ViewOp("reshape"):
                _check_reshape(expr, sizes)
    for update in fusion.updates:
        target = sizes.of(update.target.domain.shape)
        value = sizes.of(update.value.domain.shape)
        if target != value:
            raise FuserValueError(
                f"{update.value.name} of sizes {shape_text(value)} cannot be written into the "
                f"input {update.target.name} of sizes {shape_text(target)}"
            )


def _aligned(tensors: Sequence[TensorView], but: int | None = None) -> Iterator[list[Extent]]:
    """The sizes of each dimension, counted from the last one, except of `but`."""
    domains = [v.domain.logical for v in tensors]
    for k in range(-max((len(ids) for ids in domains), default=0), 0):
        if k != but:
            seen = [ids[k].size for ids in domains if len(ids) >= -k and _is_seen(ids[k])]
            if seen:
                yield seen


def _check_slice(expr: ViewOp, sizes: _Sizes) -> None:
    """Clamping is done in the definition, where sizes are known; here an end must fit."""
    for step in expr.output.domain.transforms:
        if not isinstance(step, Resize) or not isinstance(step.right, Form):
            continue
        if sizes[step.right] > 0:
            size = sizes[expr.input.domain.shape[step.axis]]
            raise FuserValueError(
                f"slice{_line(expr)}: dimension {step.axis} of {expr.input.name} has {size} "
                f"elements and the slice ends at {size + sizes[step.right]}; an end beyond a "
                "symbolic size is not clamped"
            )


def _check_reshape(expr: ViewOp, sizes: _Sizes) -> None:
    before, after = sizes.of(expr.input.domain.shape), sizes.of(expr.output.domain.shape)
    if math.prod(before) != math.prod(after):
        raise FuserValueError(
            f"reshape{_line(expr)} of {expr.input.name} from {shape_text(before)} to "
            f"{shape_text(after)}: {math.prod(before)} elements become {math.prod(after)}"
        )


def _line(expr: Expr) -> str:
    return f" at {expr.origin.file}:{expr.origin.line}" if expr.origin.file else ""


def _is_seen(dim: IterDomain) -> bool:
    """Whether the dimension takes part in deciding a result's size."""
    return not dim.is_broadcast or dim.expanded is not None


def _conflict(where: str, found: Sequence[tuple[int, str]]) -> str:
    sides = " and ".join(f"{size} ({place})" for size, place in found)
    return (
        "When trying to propagate constant tensor sizes through the graph a conflict was found "
        f"with {len(found)} different sizes across dimensions that are expected to match: "
        f"{where}: {sides}"
    )
