"""Values of the symbolic sizes in a call, determined from the inputs and checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from thunder_fuser.errors import FuserError, FuserValueError, InternalError
from thunder_fuser.ir.domain import Extent, Resize, replay, shape_text
from thunder_fuser.ir.fusion import Expr, Fusion, Scalar, TensorView, Val, ViewOp
from thunder_fuser.ir.integer.symint import Form, Variable
from thunder_fuser.ir.size_equations import Side, conflict, equations_of, line_of
from thunder_fuser.ir.symbolic import size_variables, variable_of


def size_inputs(fusion: Fusion) -> tuple[int, ...]:
    """Positions of the scalar inputs that are sizes: another value needs other kernels."""
    known = size_variables(fusion)
    return tuple(
        k for k, v in enumerate(fusion.inputs) if isinstance(v, Scalar) and v.name in known
    )


def bind_sizes(fusion: Fusion, inputs: Sequence[Any]) -> dict[Form, int]:
    """Return the value of each symbolic size of the fusion in this call, in order of the inputs.

    The kinds and ranks of the inputs must have been checked. Raises FuserValueError if a size
    differs from the definition, or two inputs disagree.
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
    for k, (formal, actual) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if isinstance(formal, TensorView):
            with named_line(formal):
                _check_input(k, formal, actual, sizes)
    _check_agreement(fusion, sizes)
    return {variables[name]: value for name, value in sizes.values.items()}


@contextmanager
def named_line(formal: Val) -> Iterator[None]:
    """Append the source line of the input's definition to errors raised in the block."""
    try:
        yield
    except FuserError as error:
        if formal.origin.file:
            error.args = (f"{error} ({formal.name} is defined{line_of(formal.origin)})",)
        raise


class _Sizes:
    """Values of size variables by name, and the inputs that determined them."""

    def __init__(self, values: dict[str, int], owners: dict[str, str]) -> None:
        self.values = values
        self._owners = owners

    def take(self, variable: Variable, value: int, place: str) -> None:
        lo, hi, name = variable.lo, variable.hi, variable.name
        if value < lo or (hi is not None and value > hi) or value % variable.multiple:
            raise FuserValueError(
                f"{place}, is {value}, which cannot be a size here: expected "
                f"{'at least ' if hi is None else ''}{lo}{'' if hi is None else f' to {hi}'}"
                f"{f', a multiple of {variable.multiple}' if variable.multiple > 1 else ''}; pass "
                "an input of such a size"
            )
        if self.values.setdefault(name, value) != value:
            found = [(self.values[name], self._owners[name]), (value, place)]
            raise conflict("one size of the definition", found)
        self._owners.setdefault(name, place)

    def __getitem__(self, extent: Extent) -> int:
        return extent if isinstance(extent, int) else extent.evaluate(self.values)

    def of(self, shape: Sequence[Extent]) -> tuple[int, ...]:
        return tuple(self[extent] for extent in shape)

    def described(self, side: Side) -> tuple[int, str]:
        """Value of a side of an equation, and a description of its origin."""
        extent, place = side.extent, str(side)
        if isinstance(extent, int):
            return extent, place if side.tensor is None else f"{place}, in the definition"
        variable = variable_of(extent)
        if variable is not None:
            return self[extent], self._owners[variable.name]
        return self[extent], str(extent) if side.tensor is None else f"{place}, {extent}"


def _check_input(k: int, formal: TensorView, actual: Any, sizes: _Sizes) -> None:
    for d, (dim, size) in enumerate(zip(formal.domain.root, actual.shape, strict=True)):
        if sizes[dim.size] == size:
            continue
        advice = "define the dimension as -1 to accept any size"
        if dim.is_broadcast and dim.expanded is None:
            advice = f"a dimension defined as 1 broadcasts; {advice}"
        raise FuserValueError(
            f"Tried to bind to a constant value: {sizes[dim.size]} as {size} in dimension {d} "
            f"of input {k}, {formal.name} (sizes {list(actual.shape)}); {advice}"
        )


def check_agreement(fusion: Fusion, values: Mapping[str, int]) -> None:
    """Raise FuserValueError unless these values of the size variables are consistent."""
    _check_agreement(fusion, _Sizes(dict(values), {name: f"size {name}" for name in values}))


def _check_agreement(fusion: Fusion, sizes: _Sizes) -> None:
    """Check that dimensions paired by an operation have equal sizes. A symbolic size that happens
    to be 1 does not broadcast, so that a definition means the same for all sizes."""
    for expr in fusion.exprs:
        for equation in equations_of(expr):
            if sizes[equation.left.extent] != sizes[equation.right.extent]:
                if isinstance(expr, ViewOp) and expr.op == "reshape":
                    raise _reshape_error(expr, sizes)
                sides = [sizes.described(equation.left), sizes.described(equation.right)]
                raise conflict(equation.place, sides)
        if isinstance(expr.output, TensorView):
            _check_extents(expr, expr.output, sizes)
    for update in fusion.updates:
        target = sizes.of(update.target.domain.shape)
        value = sizes.of(update.value.domain.shape)
        if target != value:
            raise FuserValueError(
                f"add_output: {update.value.name} of sizes {shape_text(value)} cannot be written "
                f"into the input {update.target.name} of sizes {shape_text(target)}; expected "
                "equal sizes: expand or slice it first"
            )


def _check_extents(expr: Expr, output: TensorView, sizes: _Sizes) -> None:
    """Check that no computed dimension is negative and no slice starts before 0."""
    if isinstance(expr, ViewOp) and expr.op == "slice" and not output.domain.is_static:
        _check_slice(expr, sizes)
    for k, extent in enumerate(output.domain.shape):
        if isinstance(extent, Form) and sizes[extent] < 0:
            raise FuserValueError(
                f"{expr.op}{line_of(expr.origin)}: dimension {k} of {output.name} has "
                f"{sizes[extent]} elements ({sizes.described(Side(extent))[1]}); expected at "
                "least 0: pass inputs for which it is not negative"
            )


def _check_slice(expr: ViewOp, sizes: _Sizes) -> None:
    """Check that a slice starts at 0 or later and does not end before its start."""
    dims = expr.output.domain.root
    for step in expr.output.domain.transforms:
        before, dims = dims, replay(dims, (step,))
        if not isinstance(step, Resize):
            continue
        start, width = -sizes[step.left], sizes[dims[step.axis].size]
        if start < 0 or width < 0:
            raise FuserValueError(
                f"slice{line_of(expr.origin)}: dimension {step.axis} of {expr.input.name}, which "
                f"has {sizes[before[step.axis].size]} elements, is cut from {start} to "
                f"{start + width}; expected a start of at least 0 and an end that is not before "
                "it: pass inputs for which they are"
            )


def _reshape_error(expr: ViewOp, sizes: _Sizes) -> FuserValueError:
    before, after = sizes.of(expr.input.domain.shape), sizes.of(expr.output.domain.shape)
    return FuserValueError(
        f"reshape{line_of(expr.origin)} of {expr.input.name} from {shape_text(before)} to "
        f"{shape_text(after)}: {math.prod(before)} elements become {math.prod(after)}; give sizes "
        "of equal product, or -1 for one of them"
    )
