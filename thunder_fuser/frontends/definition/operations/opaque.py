"""The operations that torch executes between kernels, with nvFuser's signatures.

Operands are tensors of the definition, attributes constants of it. Operands and results of a call
are in memory; everything around it is planned together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.definition.operations.arguments import (
    flag,
    integer,
    integers,
    storage,
    tensor,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.ir.tables.opaque import TABLE, Attribute, Call

_EMPTY = inspect.Parameter.empty


def _call(row: Call) -> Callable[..., Any]:
    names, parameters = row.operands, row.parameters
    signature = inspect.Signature(list(parameters.values()))

    def build(b: FusionBuilder, *args: Any, **kwargs: Any) -> TensorView | tuple[TensorView, ...]:
        given = signature.bind(*args, **kwargs).arguments
        if isinstance(given.get("src"), Scalar | int | float | complex):
            # A scalar `src`: one value for all indices.
            like, index = (tensor(name, given[name]) for name in ("arg", "index"))
            given["src"] = _filled(b, given["src"], like, index)
        operands = {
            name: tensor(name, given.get(name))
            for name in names
            if given.get(name) is not None or parameters[name].default is _EMPTY
        }
        attributes = {
            name: _attribute(name, parameter, given.get(name))
            for name, parameter in parameters.items()
            if name not in names
        }
        found = b.call(row.name, operands, attributes)
        return found if len(found) > 1 else found[0]

    build.__name__ = build.__qualname__ = row.name
    build.__doc__ = inspect.getdoc(row.run)
    first = inspect.Parameter("b", inspect.Parameter.POSITIONAL_ONLY)
    build.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [first, *parameters.values()]
    )
    return build


def _filled(b: FusionBuilder, number: Any, like: TensorView, index: TensorView) -> TensorView:
    sizes = [b.size(index, k) for k in range(index.rank)]
    return b.full(sizes, b.scalar(number) if not isinstance(number, Scalar) else number, like.dtype)


def _attribute(name: str, parameter: inspect.Parameter, value: Any) -> Attribute:
    """A constant of the parameter's type, or its default if none is given; FuserTypeError else."""
    if isinstance(value, Scalar):
        if not value.is_constant:
            raise FuserTypeError(f"{name}: torch is called with a constant, got {value}")
        value = value.value
    if value is None and parameter.default is not _EMPTY:
        default: Attribute = parameter.default
        return default
    match str(parameter.annotation).removesuffix(" | None"):
        case "int":
            return integer(name, value)
        case "bool":
            return flag(name, value)
        case "DataType":
            return storage(name, value)
        case "tuple[int, ...]":
            return tuple(integers(name, [value] if isinstance(value, int) else value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FuserTypeError(f"{name}: expected a number, got {value!r}")
    return float(value)


OPAQUE: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {name: _call(row) for name, row in TABLE.items()}
)
"""Opaque calls by name; each takes the builder first."""
