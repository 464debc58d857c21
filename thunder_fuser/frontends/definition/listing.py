"""Text listings of a definition: its operations, its schedules, its kernels' source."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.codegen.headers import expanded
from thunder_fuser.codegen.kernel import Kernel, listing_text
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.domain import Extent, shape_text
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    Fusion,
    GatherOp,
    OpaqueOp,
    PointwiseOp,
    ReductionOp,
    ScanOp,
    TensorView,
    Val,
)
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.printer import number_text
from thunder_fuser.ir.rebuild import rebound
from thunder_fuser.ir.tables import opaque
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.plan import SegmentedFusion

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "mod": "%", "eq": "==",
    "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip


def math_text(fusion: Fusion, from_outputs_only: bool = True) -> str:
    """Inputs, outputs, and one line per operation, in nvFuser's format."""
    exprs = _needed(fusion) if from_outputs_only else list(fusion.exprs)
    lines = ["Inputs:", *(f"  {_declared(v)}" for v in fusion.inputs)]
    lines += ["Outputs:", *(f"  {_declared(v)}" for v in fusion.outputs)]
    lines += ["", "%kernel_math {", *map(_line, exprs)]
    lines += [f"{u.target.name} <- {u.value.name}  (in place)" for u in fusion.updates]
    return "\n".join([*lines, "} // %kernel_math", ""])


def _needed(fusion: Fusion) -> list[Expr]:
    """Expressions that results depend on, in program order."""
    wanted: set[Val] = set(fusion.results)
    found: list[Expr] = []
    for expr in reversed(fusion.exprs):
        if expr.output in wanted:
            wanted.update(expr.inputs)
            found.append(expr)
    return found[::-1]


def _declared(value: Val) -> str:
    kind = value.dtype.name
    return (
        f"{value.name}: {kind} {shape_text(value.domain.shape)}"
        if isinstance(value, TensorView)
        else f"{value.name}: {kind}"
    )


def _line(expr: Expr) -> str:
    return f"{_declared(expr.output)} = {_right(expr)}"


def _right(expr: Expr) -> str:
    names = [_operand(v) for v in expr.inputs]
    match expr:
        case PointwiseOp(op) if op in _INFIX:
            return f" {_INFIX[op]} ".join(names)
        case PointwiseOp("cast"):
            return f"cast({names[0]}, {expr.output.dtype.name})"
        case ReductionOp():
            return f"{expr.op}({names[0]}, dims={list(expr.dims)})"
        case OpaqueOp():
            shown = [f"{name}={value}" for name, value in expr.attributes]
            which = opaque.lookup(expr.op).names
            part = f".{which[expr.result]}" if len(which) > 1 else ""
            return f"{expr.op}({', '.join([*names, *shown])}){part}"
        case CatOp() | GatherOp() | ScanOp():
            return f"{expr.op}({', '.join(names)}, dim={expr.dim})"
        case _:
            return f"{expr.op}({', '.join(names)})"


def _operand(value: Val) -> str:
    if isinstance(value, TensorView) or value.value is None:
        return value.name
    return str(value.value) if isinstance(value.value, Form) else number_text(value.value)


def source_text(kernels: Sequence[Kernel], intrinsic_code: bool = False) -> str:
    """Source of kernels; with `intrinsic_code` also the headers that they include."""
    if not intrinsic_code:
        return listing_text(kernels)
    headers = dict.fromkeys(h for kernel in kernels for h in kernel.headers)
    return "\n".join([expanded(tuple(headers)), *(k.listing for k in kernels)])


def scheduled_text(
    plan: SegmentedFusion, kernels: Sequence[Kernel], tensor_transforms: bool = False
) -> str:
    """The plan, the launch configuration of each kernel, and the operations after the passes.

    With `tensor_transforms` also every tensor's domain: root, transforms, logical dimensions.
    """
    lines = [str(plan)]
    for kernel in kernels:
        shared = f", {kernel.shared_bytes:,} B shared" if kernel.shared_bytes else ""
        lines.append(
            f"{kernel.name}<<<{_extents(kernel.grid)}, {_extents(kernel.block)}>>>{shared}"
        )
    lines += ["", math_text(plan.fusion).rstrip()]
    if tensor_transforms:
        tensors = [v for v in plan.fusion.values() if isinstance(v, TensorView)]
        lines += ["", *(f"{t.name}: {t.domain!r}" for t in tensors)]
    return "\n".join([*lines, ""])


def _extents(extents: tuple[int, int, int]) -> str:
    return f"[{', '.join(map(str, extents))}]"


def kernels_of_definition(fusion: Fusion) -> str:
    """Source of the kernels of a fusion without inputs, for the GPU that plans are made for: for
    dense tensors, and for large ones where sizes are open.
    """
    plan = CompiledFusion(fusion, name="definition").plan()
    if plan.sizes is None:
        return listing_text([k.kernel for k in generate_kernels(plan, planned_for()).values()])
    # Sizes of this plan are ints that carry formulas; kernels are generated for plain ints.
    return f"// sizes: {plan.sizes}\n{kernels_of_definition(rebound(plan.fusion, _number))}"


def _number(extent: Extent) -> int:
    assert isinstance(extent, int)
    return int(extent)
