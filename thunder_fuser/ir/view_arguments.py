"""Recovery of user-level arguments from domain transforms: the inverse of the builder's views.

A view stores its transforms, not its arguments. The printer wants the arguments; transforms without
any have a textual form of their own, as passes join chains of views into transforms that no single
view could have made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType

from thunder_fuser.errors import FuserError, FuserTypeError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Extent,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    constant_if_known,
)
from thunder_fuser.ir.fusion import MoveOp, PadOp, Val
from thunder_fuser.ir.integer.radix import operands_of_max

Argument = int | bool | Val | Sequence[Extent]
Arguments = dict[str, Argument]
"""Arguments by nvFuser's keyword, in the order of the builder's parameters."""


def view_arguments(expr: MoveOp) -> Arguments | None:
    """Arguments (after the tensor) with which the builder makes exactly this view, or None.

    Derived from the transforms and then checked by building: a wrong guess only costs readability.
    """
    derive = _DERIVE.get(expr.op)
    found = None if derive is None else derive(expr)
    if found is None:
        return None
    builder = FusionBuilder()
    try:
        made = getattr(builder, expr.op)(expr.input, *found.values())
    except FuserError:
        return None
    same = made.domain == expr.output.domain and made.dtype is expr.output.dtype
    return found if same and _is_filled(builder, expr) else None


def _is_filled(builder: FusionBuilder, expr: MoveOp) -> bool:
    (made,) = builder.build().exprs
    return made.inputs[1:] == expr.inputs[1:]


def stride_order_of(allocation: Sequence[int]) -> list[int]:
    """nvFuser's stride_order: each dimension's position in memory, counted from the innermost."""
    last = len(allocation) - 1
    return [last - allocation.index(k) for k in range(len(allocation))]


# ---- programs as tuples

_WORDS: Mapping[str, type[Transform]] = MappingProxyType(
    {
        "split": Split,
        "merge": Merge,
        "resize": Resize,
        "new_broadcast": NewBroadcast,
        "squeeze": Squeeze,
        "expand": Expand,
        "assume": Assume,
        "reorder": Reorder,
    }
)
_WORD_OF: Mapping[type[Transform], str] = MappingProxyType({v: k for k, v in _WORDS.items()})


def transform_fields(step: Transform) -> tuple[str, list[Extent | Sequence[int]]]:
    """A transform as its name and field values: the arguments of `transform_of`."""
    return _WORD_OF[type(step)], [getattr(step, f.name) for f in fields(step)]


def transform_of(word: str, *numbers: Extent | Sequence[int]) -> Transform:
    """The transform of a tuple such as ("split", 0, 4, 8); FuserTypeError for others."""
    kind = _WORDS.get(word)
    if kind is None:
        raise FuserTypeError(f"there is no transform {word!r}; there are {', '.join(_WORDS)}")
    if len(numbers) != len(fields(kind)):
        names = ", ".join(f.name for f in fields(kind))
        raise FuserTypeError(f"transform {word} takes ({names}), got {len(numbers)} numbers")
    values = [x if isinstance(x, int) or not isinstance(x, Sequence) else tuple(x) for x in numbers]
    return kind(*values)  # type: ignore[arg-type]


# ---- one derivation a view


def _no_arguments(expr: MoveOp) -> Arguments:
    return {}


def _permute(expr: MoveOp) -> Arguments | None:
    match expr.output.domain.transforms:
        case (Reorder(order),):
            return {"dims": order}
    return None


def _stride_order(expr: MoveOp) -> Arguments:
    return {"stride_order": stride_order_of(expr.output.domain.allocation)}


def _new_axes(expr: MoveOp) -> list[int]:
    return [s.axis for s in expr.output.domain.transforms if isinstance(s, NewBroadcast)]


def _broadcast(expr: MoveOp) -> Arguments:
    new = _new_axes(expr)
    return {"is_broadcast_dim": [k in new for k in range(expr.output.rank)]}


def _broadcast_in_dim(expr: MoveOp) -> Arguments:
    new = _new_axes(expr)
    return {
        "shape": expr.output.domain.shape,
        "broadcast_dims": [k for k in range(expr.output.rank) if k not in new],
    }


def _expand(expr: MoveOp) -> Arguments:
    return {"shape": expr.output.domain.shape}


def _squeeze(expr: MoveOp) -> Arguments:
    axes = [s.axis for s in expr.output.domain.transforms if isinstance(s, Squeeze)]
    found: Arguments = {"dims": sorted(axes)}
    ids = expr.input.domain.logical
    if any(axis < len(ids) and ids[axis].expanded is not None for axis in axes):
        found["squeeze_expanded"] = True
    return found


def _reshape(expr: MoveOp) -> Arguments:
    return {"new_shape": expr.output.domain.shape}


def _slice(expr: MoveOp) -> Arguments | None:
    sizes = expr.input.domain.shape
    starts: list[Extent] = [0] * len(sizes)
    ends, strides = list(sizes), [1] * len(sizes)
    steps = expr.output.domain.transforms
    while steps:
        match steps[:4]:
            case (Resize(), Split(axis, _, int(stride)), Resize(), Squeeze()):
                strides[axis] = stride
                steps = steps[4:]
            case (Resize(axis, left, right), *_):
                starts[axis] = _unclamped(constant_if_known(-left), sizes[axis])
                ends[axis] = _unclamped(constant_if_known(sizes[axis] + right), sizes[axis])
                steps = steps[1:]
            case _:
                return None
    return {"start_indices": starts, "end_indices": ends, "strides": strides}


def _unclamped(index: Extent, size: Extent) -> Extent:
    """A slice's index before it was clamped to the size of its dimension."""
    if isinstance(index, int):
        return index
    others = [x for x in operands_of_max(-index) if not x.equals(-size)]
    return constant_if_known(-others[0]) if len(others) == 1 else index


def _pad(expr: MoveOp) -> Arguments | None:
    rank = expr.input.rank
    widths: list[Extent] = []
    for step in expr.output.domain.transforms:
        if not isinstance(step, Resize):
            return None
        skipped = rank - 1 - step.axis - len(widths) // 2
        widths += [*([0] * (2 * skipped)), step.left, step.right]
    if not isinstance(expr, PadOp):
        return None
    return {"pad_widths": widths, "value": expr.fill}


_DERIVE: Mapping[str, Callable[[MoveOp], Arguments | None]] = MappingProxyType(
    {
        "set": _no_arguments,
        "segment_set": _no_arguments,
        "permute": _permute,
        "stride_order": _stride_order,
        "broadcast": _broadcast,
        "broadcast_in_dim": _broadcast_in_dim,
        "expand": _expand,
        "squeeze": _squeeze,
        "reshape": _reshape,
        "slice": _slice,
        "pad": _pad,
    }
)
