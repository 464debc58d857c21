"""Running a printed definition, and comparing fusions without the printer's help."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.fusion import Expr, Fusion, Scalar, TensorView, Val
from thunder_fuser.ir.printer import to_python


def rebuilt(fusion: Fusion) -> Fusion:
    """What the printed text of a fusion builds."""
    return executed(to_python(fusion))


def executed(text: str) -> Fusion:
    """What the function `nvfuser_fusion` in this text builds."""
    names: dict[str, object] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, names)
    with FusionDefinition() as fd:
        names["nvfuser_fusion"](fd)  # type: ignore[operator]
    return fd.fusion


def shape_of_program(fusion: Fusion) -> list[object]:
    """Everything in a static fusion that is not an id or an origin, in order."""
    order = {value: k for k, value in enumerate(fusion.values())}

    def of(value: Val) -> object:
        if isinstance(value, Scalar) and value.value is not None:
            return value.dtype, repr(value.value)
        detail = (value.domain, value.is_cpu) if isinstance(value, TensorView) else ()
        return order[value], value.dtype, detail

    def of_expr(expr: Expr) -> Iterator[object]:
        yield type(expr).__name__
        yield expr.op
        yield [of(value) for value in expr.inputs]
        yield of(expr.output)
        yield getattr(expr, "dim", None)

    return [
        [of(value) for value in fusion.inputs],
        [list(of_expr(expr)) for expr in fusion.exprs],
        [order[value] for value in fusion.outputs],
        [(order[update.target], order[update.value]) for update in fusion.updates],
    ]
