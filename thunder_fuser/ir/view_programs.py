"""Simplification of domain transforms: the shortest known equivalent of a chain of views.

Steps on different dimensions commute. They are brought into one order (resizes, then steps that
only regroup elements, then expansions, then one permutation), in which steps that cancel or repeat
each other become adjacent and are joined. The result's dimensions, kinds included, and the source
of every element stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Extent,
    IterDomain,
    Merge,
    NewBroadcast,
    Reduce,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    replay,
    static,
)
from thunder_fuser.ir.reshape import reshape_program

Program = tuple[Transform, ...]
Dims = tuple[IterDomain, ...]


def simplified(root: Sequence[IterDomain], transforms: Sequence[Transform]) -> Program:
    """Equivalent transforms on `root`, whose sizes are static."""
    steps = tuple(transforms)
    while True:
        shorter = _with_pair_rewritten(root, steps)
        if shorter is None:
            shorter = _with_run_rewritten(root, steps)
        if shorter is None:
            return steps
        steps = shorter


def _with_pair_rewritten(root: Sequence[IterDomain], steps: Program) -> Program | None:
    dims = tuple(root)
    for k, step in enumerate(steps):
        if _is_idle(step, dims):
            return steps[:k] + steps[k + 1 :]
        if k + 1 < len(steps):
            pair = _joined(step, steps[k + 1])
            if pair is None:
                pair = _swapped(step, steps[k + 1])
            if pair is not None:
                return steps[:k] + pair + steps[k + 2 :]
        dims = replay(dims, (step,))
    return None


def _is_idle(step: Transform, dims: Dims) -> bool:
    match step:
        case Resize(axis, left, right):
            # Resizing an expanded dimension also makes it an ordinary one.
            unchanged = replay(dims, (step,))[axis] == dims[axis]
            return unchanged and static(left) == 0 and static(right) == 0
        case Reorder(order):
            return order == tuple(range(len(order)))
        case _:
            return False


# ---- adjacent steps that join


def _joined(first: Transform, second: Transform) -> Program | None:
    match first, second:
        case Reorder(inner), Reorder(outer):
            return (Reorder(tuple(inner[k] for k in outer)),)
        case Expand(a, _), Squeeze(b) if a == b:
            return (second,)
        case Resize(a, left, right), Resize(b, more_left, more_right) if a == b:
            if _loses(left, more_left) or _loses(right, more_right):
                return None
            return (Resize(a, left + more_left, right + more_right),)
        case _:
            return None


def _loses(first: Extent, second: Extent) -> bool:
    """True for a cut followed by padding: the elements cut off are lost, they do not cancel."""
    return static(first) < 0 < static(second)


# ---- adjacent steps that commute


def axis_after(axis: int, step: Transform) -> int | None:
    """Position of a dimension after a step; None if the step changes it."""
    match step:
        case Split(a):
            return None if axis == a else axis + (axis > a)
        case Merge(a):
            return None if axis in (a, a + 1) else axis - (axis > a)
        case Resize(a) | Expand(a) | Assume(a):
            return None if axis == a else axis
        case NewBroadcast(a):
            return axis + (axis >= a)
        case Squeeze(a) | Reduce(a):
            return None if axis == a else axis - (axis > a)
        case Reorder(order):
            return order.index(axis)


def axis_before(axis: int, step: Transform) -> int | None:
    """Position of a dimension before a step; None if the step made or changed it."""
    match step:
        case Split(a):
            return None if axis in (a, a + 1) else axis - (axis > a)
        case Merge(a):
            return None if axis == a else axis + (axis > a)
        case Resize(a) | Expand(a) | Assume(a):
            return None if axis == a else axis
        case NewBroadcast(a):
            return None if axis == a else axis - (axis > a)
        case Squeeze(a) | Reduce(a):
            return axis + (axis >= a)
        case Reorder(order):
            return order[axis]


def _swapped(first: Transform, second: Transform) -> Program | None:
    """The two steps swapped into canonical order; None if they are in it, or do not commute."""
    match first, second:
        case Resize(a), Resize(b):
            return (second, first) if b < a else None
        case _, Resize(b, left, right):
            axis = axis_before(b, first)
            return None if axis is None else (Resize(axis, left, right), first)
        case Expand(a), Expand(b):
            return (second, first) if b < a else None
        case Expand(a, size), Split() | Merge() | NewBroadcast() | Squeeze():
            axis = axis_after(a, second)
            return None if axis is None else (second, Expand(axis, size))
        case Reorder(order), _:
            return _permuted_later(order, second)
        case _:
            return None


def _permuted_later(order: tuple[int, ...], step: Transform) -> Program | None:
    """The equivalent of a permutation followed by `step` with `step` first, or None."""
    match step:
        case Expand(a, size):
            return Expand(order[a], size), Reorder(order)
        case Squeeze(a):
            gone = order[a]
            kept = [k for k in order if k != gone]
            return Squeeze(gone), Reorder(tuple(k - (k > gone) for k in kept))
        case NewBroadcast(a):
            new = order[a] if a < len(order) else len(order)
            moved = [k + (k >= new) for k in order]
            return NewBroadcast(new), Reorder((*moved[:a], new, *moved[a:]))
        case Split(a, outer, inner):
            cut = order[a]
            moved = [k + (k > cut) for k in order]
            return Split(cut, outer, inner), Reorder((*moved[: a + 1], cut + 1, *moved[a + 1 :]))
        case Merge(a) if order[a + 1] == order[a] + 1:
            joined = order[a]
            kept = [k for k in order if k != joined + 1]
            return Merge(joined), Reorder(tuple(k - (k > joined) for k in kept))
        case _:
            return None


# ---- runs that only regroup


def _with_run_rewritten(root: Sequence[IterDomain], steps: Program) -> Program | None:
    """Replace a run of steps that keep the row-major order by a reshape, if that is shorter."""
    dims = tuple(root)
    begin = 0
    while begin < len(steps):
        after, end = dims, begin
        while end < len(steps) and _regroups(steps[end], after):
            after = replay(after, steps[end : end + 1])
            end += 1
        shorter = _regrouping(dims, after)
        if shorter is not None and len(shorter) < end - begin:
            return steps[:begin] + shorter + steps[end:]
        end = max(end, begin + 1)
        dims = replay(dims, steps[begin:end])
        begin = end
    return None


def _regroups(step: Transform, dims: Dims) -> bool:
    match step:
        case Merge() | NewBroadcast():
            return True
        case Split(axis, outer, inner):
            return static(dims[axis].size) == static(outer) * static(inner)
        case Squeeze(axis):
            return dims[axis].size == 1
        case _:
            return False


def _regrouping(before: Dims, after: Dims) -> Program | None:
    if before == after:
        return ()
    sizes = [d.size for d in after]
    if 0 in sizes:
        return None
    program = tuple(reshape_program(before, sizes))
    return program if replay(before, program) == after else None


# ---- names

_NAMES: tuple[tuple[str, tuple[type[Transform], ...]], ...] = (
    ("permute", (Reorder,)),
    ("squeeze", (Squeeze,)),
    ("broadcast", (NewBroadcast,)),
    ("expand", (Expand,)),
    ("broadcast_in_dim", (NewBroadcast, Expand)),
    ("slice", (Resize,)),
    ("reshape", (Squeeze, Merge, Split, NewBroadcast)),
)


def pads(program: Program) -> bool:
    """True if a step adds elements, so that the view has to have a value for them."""
    return any(
        isinstance(step, Resize) and (static(step.left) > 0 or static(step.right) > 0)
        for step in program
    )


def view_name(program: Program, *, pads: bool) -> str:
    """The name of the view with such steps; the most general one if no single view has them.

    No steps are a permutation: a stride_order would ask for a memory order as well.
    """
    for name, steps in _NAMES:
        if all(isinstance(step, steps) for step in program):
            return "pad" if name == "slice" and pads else name
    return "reshape"
