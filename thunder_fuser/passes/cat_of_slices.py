"""cat_of_slices: a cat of adjacent slices becomes one slice; a slice of one piece of a cat reads
the piece; a cat of one piece is a copy.

Requires: static sizes; slices that are one view each (view_chains).
Result: no cat of adjacent slices of one tensor, and no slice within one piece of a cat.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from thunder_fuser.ir.domain import Resize, Transform, replay, static
from thunder_fuser.ir.fusion import CatOp, CopyOp, Expr, Fusion, PadOp, TensorView, Val, ViewOp
from thunder_fuser.ir.view_programs import Program, axis_after, simplified, view_name
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


class _Slice(NamedTuple):
    """Elements begin..end along the cat's dimension of `program` applied to `base`."""

    base: TensorView
    program: Program
    begin: int
    end: int


class _Piece(NamedTuple):
    """An operand of a cat: a tensor, or adjacent ones as one slice (then `tensor` is None)."""

    tensor: TensorView | None
    slice: _Slice | None


@where(lambda expr: isinstance(expr, CatOp))
def cat_of_slices(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    for expr in rewrite.walk():
        match expr:
            case CatOp():
                done = _rejoined(expr, rewrite)
            case ViewOp() | CopyOp() | PadOp():
                done = _slice_of_piece(expr, rewrite)
            case _:
                done = False
        if not done:
            rewrite.copy(expr)
    return rewrite.result()


def _placed(
    rewrite: Rewrite, out: TensorView, base: TensorView, steps: Program, fill: Val | None = None
) -> bool:
    """Replace `out` by that view of `base`, if it is equal in all respects; True if done."""
    program = simplified(base.domain.logical, steps)
    if replay(base.domain.logical, program) != out.domain.logical:
        return False
    new = rewrite.tensor(base)
    if program and (fill is not None or rewrite.may_share(out, new, program)):
        name = view_name(program, pads=fill is not None)
        allocation = out.domain.allocation
        value = None if fill is None else rewrite[fill]
        new = rewrite.view(name, new, program, fill=value, allocation=allocation)
    elif program or not rewrite.may_become(out, new):
        return False
    rewrite.replace(out, new)
    return True


# ---- cat of slices


def _rejoined(expr: CatOp, rewrite: Rewrite) -> bool:
    first = expr.inputs[0]
    # Not of an expanded dimension, which would be expanded in the copy, too.
    if len(expr.inputs) == 1 and first.domain.logical == expr.output.domain.logical:
        rewrite.replace(expr.output, rewrite.builder.set(rewrite.tensor(first)))
        return True
    pieces: list[_Piece] = []
    for tensor in expr.inputs:
        piece = _Piece(tensor, _as_slice(rewrite.producer(tensor), expr.dim))
        together = _together(pieces[-1].slice, piece.slice) if pieces else None
        if together is None:
            pieces.append(piece)
        else:
            pieces[-1] = _Piece(None, together)
    if len(pieces) == len(expr.inputs):
        return False
    if len(pieces) == 1 and (only := pieces[0].slice) is not None:
        return _placed(rewrite, expr.output, only.base, _steps(only, expr.dim))
    made = [_made(piece, expr.dim, rewrite) for piece in pieces]
    rewrite.replace(expr.output, rewrite.builder.cat(made, expr.dim))
    return True


def _as_slice(expr: Expr | None, dim: int) -> _Slice | None:
    """`expr` as a slice of its input along `dim`, if it is one.

    Steps on other dimensions may follow the slice, as it commutes with them.
    """
    if not isinstance(expr, ViewOp | CopyOp):
        return None
    dims = expr.input.domain.logical
    steps = expr.output.domain.transforms
    for k, step in enumerate(steps):
        if isinstance(step, Resize) and _place_after(step.axis, steps[k + 1 :]) == dim:
            left, right = static(step.left), static(step.right)
            if left > 0 or right > 0:
                return None
            size = static(replay(dims, steps[:k])[step.axis].size)
            return _Slice(expr.input, steps[:k] + steps[k + 1 :], -left, size + right)
    return None


def _place_after(axis: int, steps: Program) -> int | None:
    for step in steps:
        moved = axis_after(axis, step)
        if moved is None:
            return None
        axis = moved
    return axis


def _together(a: _Slice | None, b: _Slice | None) -> _Slice | None:
    if a is None or b is None or a[:2] != b[:2] or a.end != b.begin:
        return None
    return _Slice(a.base, a.program, a.begin, b.end)


def _steps(piece: _Slice, dim: int) -> Program:
    size = static(replay(piece.base.domain.logical, piece.program)[dim].size)
    return (*piece.program, Resize(dim, -piece.begin, piece.end - size))


def _made(piece: _Piece, dim: int, rewrite: Rewrite) -> TensorView:
    if piece.tensor is not None or piece.slice is None:
        assert piece.tensor is not None
        return rewrite.tensor(piece.tensor)
    base = piece.slice.base
    program = simplified(base.domain.logical, _steps(piece.slice, dim))
    new = rewrite.tensor(base)
    return rewrite.view(view_name(program, pads=False), new, program) if program else new


# ---- slice of a cat


def _slice_of_piece(expr: ViewOp | CopyOp | PadOp, rewrite: Rewrite) -> bool:
    cat = rewrite.producer(expr.input)
    if not isinstance(cat, CatOp):
        return False
    steps = expr.output.domain.transforms
    fill = expr.fill if isinstance(expr, PadOp) else None
    k = next((k for k, step in enumerate(steps) if _is_cut_along(step, cat.dim)), None)
    # After another kind of step, the axis of that number may be another dimension.
    if k is None or not all(isinstance(step, Resize) for step in steps[:k]):
        return False
    cut = steps[k]
    assert isinstance(cut, Resize)
    begin, end = -static(cut.left), cat.output.sizes[cat.dim] + static(cut.right)
    ends = list(accumulate(piece.sizes[cat.dim] for piece in cat.inputs))
    for piece, stop in zip(cat.inputs, ends, strict=True):
        start = stop - piece.sizes[cat.dim]
        if start <= begin < end <= stop:
            inside = Resize(cat.dim, start - begin, end - stop)
            program = (*steps[:k], inside, *steps[k + 1 :])
            return _placed(rewrite, expr.output, piece, program, fill)
    return False


def _is_cut_along(step: Transform, dim: int) -> bool:
    return (
        isinstance(step, Resize)
        and step.axis == dim
        and static(step.left) <= 0
        and static(step.right) <= 0
    )
