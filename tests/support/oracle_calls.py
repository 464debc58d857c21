"""The error bounds of what torch computes: of what is linear in its operands, the call itself says
how far errors go; of what compares elements, an answer is right only where nothing is uncertain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_fuser.ir.builder.opaque import shapes_of
from thunder_fuser.ir.dtypes import Category, compute_dtype
from thunder_fuser.ir.fusion import OpaqueOp
from thunder_fuser.ir.tables import opaque


def bound(
    expr: OpaqueOp,
    values: Sequence[torch.Tensor],
    errors: Sequence[torch.Tensor],
    result: torch.Tensor,
) -> torch.Tensor:
    """How far from `result` a call of values that are uncertain by `errors` may be before it is
    stored.
    """
    row, attributes = opaque.lookup(expr.op), dict(expr.attributes)
    nowhere = torch.zeros(result.shape, dtype=torch.float64)
    is_exact = not any(bool((error > 0).any()) for error in errors)
    if row.answer is opaque.Answer.CHOICE:
        return nowhere if is_exact else nowhere + torch.inf
    sure = all(
        not bool((e > 0).any())
        for v, e in zip(expr.inputs, errors, strict=True)
        if v.dtype.category < Category.FLOAT
    )
    if row.answer is not opaque.Answer.LINEAR or not sure:
        return nowhere + torch.inf

    def called(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
        tensors = dict(zip(expr.parameters, numbers, strict=True))
        found: torch.Tensor = row.evaluate(tensors, attributes, double=True)[expr.result]
        return found

    sizes = [x.abs() if x.is_floating_point() else x for x in values]
    reach = [x + e if x.is_floating_point() else x for x, e in zip(sizes, errors, strict=True)]
    largest = called(reach)
    come = largest - called(sizes) if not is_exact else nowhere
    if result.is_floating_point():
        shapes = shapes_of(dict(zip(expr.parameters, expr.inputs, strict=True)))
        info = torch.finfo(compute_dtype(expr.output.dtype).torch)
        terms = row.terms(shapes, attributes)
        come = come + (terms + 1) * info.eps * largest * bool(terms)
        # Each product may be below the least number.
        come = come + terms * info.smallest_normal * info.eps * (largest > 0)
        if "bias" in expr.parameters:
            # A library may round the product before it adds the bias.
            come = come + torch.finfo(expr.output.dtype.torch).eps * largest
        come = torch.where(largest > info.max / 4, torch.inf, come)
    return come.double().nan_to_num(nan=torch.inf, posinf=torch.inf)
