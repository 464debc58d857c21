"""Strides that torch's operations would give, and with them the memory order of results.

A kernel's result may have any strides; the user expects torch's, because a later `view` depends on
them. Torch's rules are few: a pointwise result takes the order of its operands (TensorIterator's
order of dimensions), a view has strides over its base's memory, a reshape that has no view is a
row-major copy, a pad keeps channels last, all others are row-major.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.tensor_iterator import iteration_order, strides_of_operands_alike
from thunder_fuser.ir.domain import (
    Expand,
    Layout,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    dense_strides,
    static,
)
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    Expr,
    Fusion,
    MoveOp,
    PadOp,
    PointwiseOp,
    Scalar,
    TensorView,
    Val,
    ViewOp,
)

_Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """Memory layout that torch would give a tensor.

    strides  in elements
    source   index of the tensor input that it is a view of; None for memory of its own
    """

    strides: _Strides
    source: int | None = None

    def is_at(self, sizes: Sequence[int], strides: Sequence[int], source: int | None) -> bool:
        """True if a view of input `source`, or with None a computed tensor, has these strides.
        Strides of dimensions of size 1 are ignored.
        """
        steps = zip(sizes, strides, self.strides, strict=True)
        is_same = source is None or source == self.source
        return is_same and all(n == 1 or ours == torchs for n, ours, torchs in steps)


def torch_memory(
    fusion: Fusion,
    layouts: Mapping[TensorView, Layout],
    promised: Sequence[TorchMemory] = (),
) -> dict[TensorView, TorchMemory]:
    """The layout that torch's operations would give each tensor. `layouts` are the inputs'.

    An explicit stride_order takes precedence. The new value of an updated input has the input's
    layout. `promised` are known layouts of outputs; the order of tensors that they view follows.
    """
    inputs = fusion.tensor_inputs
    strides = {t: _input(t, layouts[t]) for t in inputs}
    sources: dict[Val, int] = {t: k for k, t in enumerate(inputs)}
    targets = {u.value: u.target for u in fusion.updates}
    known = dict(zip(fusion.outputs, promised, strict=False))
    orders = {t: iteration_order(t.sizes, [own.strides]) for t, own in known.items()}
    for expr in reversed(fusion.exprs) if orders else ():
        if isinstance(expr, MoveOp) and expr.output in orders and expr.input not in orders:
            shown = _order_behind(expr, orders[expr.output])
            if shown is not None:
                orders[expr.input] = shown
    repeated: set[Val] = set()
    in_registers = _rounded_again(fusion) if any(0 in s for s in strides.values()) else set()
    for expr in fusion.exprs:
        out = expr.output
        if isinstance(out, TensorView):
            target = targets.get(out)
            if isinstance(expr, MoveOp) and (expr.input in repeated or _repeats(expr)):
                repeated.add(out)
            if expr.inputs and expr.inputs[0] in repeated:
                # Thunder casts after a broadcast, torch before it.
                in_registers.add(out)
            found = strides[target] if target else _result(expr, out, strides, in_registers, fusion)
            order = orders.get(out)
            if out in known and target is None:
                found = known[out].strides
            elif order is not None and target is None and not _in_order(out.sizes, found, order):
                found = dense_strides(out.sizes, order)
            strides[out] = found
            if isinstance(expr, MoveOp) and expr.input in sources and _is_view(expr, strides):
                sources[out] = sources[expr.input]
    return {t: known.get(t) or TorchMemory(own, sources.get(t)) for t, own in strides.items()}


def memory_orders(memory: Mapping[TensorView, TorchMemory]) -> dict[TensorView, tuple[int, ...]]:
    """Dimensions of each tensor, outermost in memory first."""
    return {t: iteration_order(t.sizes, [own.strides]) for t, own in memory.items()}


def order_behind(
    chain: Sequence[TensorView], order: Sequence[int], fusion: Fusion
) -> tuple[int, ...] | None:
    """The memory order of the base at the end of a chain of views, from that of the tensor at its
    begin; None if it does not follow. Dimensions that are merged are adjacent.
    """
    found: Sequence[int] | None = order
    for tensor in chain[:-1]:
        expr = fusion.definitions()[tensor]
        found = _order_behind(expr, found) if isinstance(expr, MoveOp) and found else None
    return None if found is None else tuple(found)


def _order_behind(expr: MoveOp, order: Sequence[int]) -> tuple[int, ...] | None:
    """The memory order of a view's operand, from that of the view; None if it does not follow."""
    if not isinstance(expr, ViewOp) or expr.op == "stride_order":
        return None
    dims: list[tuple[int, ...]] = [(k,) for k in range(expr.input.rank)]
    gone: list[int] = []
    for step in expr.output.domain.transforms:
        match step:
            case Reorder(places):
                dims = [dims[k] for k in places]
            case NewBroadcast(axis):
                dims.insert(axis, ())
            case Squeeze(axis):
                gone += dims.pop(axis)
            case Merge(axis):
                dims[axis : axis + 2] = [dims[axis] + dims[axis + 1]]
            case Split():
                return None
    return (*gone, *(k for own in map(dims.__getitem__, order) for k in own))


def _in_order(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """True if the strides order the dimensions like that."""
    return iteration_order(sizes, [strides]) == tuple(order)


def over_single_elements(sizes: Sequence[int], strides: Sequence[int]) -> _Strides:
    """Strides with those of dimensions of size 1 as torch's unsqueeze sets them."""
    found = list(strides)
    for k in reversed(range(len(sizes))):
        if sizes[k] == 1:
            found[k] = sizes[k + 1] * found[k + 1] if k + 1 < len(sizes) else 1
    return tuple(found)


def _input(tensor: TensorView, layout: Layout) -> _Strides:
    """Logical strides of an input, whose transforms are views of the bound tensor."""
    sizes = [static(d.size) for d in tensor.domain.root]
    steps = list(layout.bound_strides or over_single_elements(sizes, layout.strides))
    for step in tensor.domain.transforms:
        _take(step, sizes, steps, pads=False)
    return tuple(steps)


def _repeats(expr: MoveOp) -> bool:
    return any(isinstance(step, Expand) for step in expr.output.domain.transforms)


def _result(
    expr: Expr,
    out: TensorView,
    known: Mapping[TensorView, _Strides],
    in_registers: Container[Val],
    fusion: Fusion,
) -> _Strides:
    if out.domain.allocation != tuple(range(out.rank)) or expr.op == "stride_order":
        return dense_strides(out.sizes, out.domain.allocation)
    if isinstance(expr, PointwiseOp):
        operands = [
            _broadcast(known[v], v.sizes, out.sizes)
            for v in _laid_out_by(expr, fusion)
            if isinstance(v, TensorView) and v in known
        ]
        if expr.op == "cast" and operands and 0 in operands[0] and out in in_registers:
            return operands[0]
        found = strides_of_operands_alike(expr, out.sizes, operands)
        return found or dense_strides(out.sizes, iteration_order(out.sizes, operands))
    if isinstance(expr, MoveOp) and expr.input in known:
        return _view(expr, known[expr.input])
    if isinstance(expr, CatOp):
        formats = {_channels_last(t.sizes, known[t]) for t in expr.inputs if t in known}
        shared = formats.pop() if len(formats) == 1 else None
        return dense_strides(out.sizes, shared or range(out.rank))
    return _row_major(out.sizes)


def _rounded_again(fusion: Fusion) -> set[Val]:
    """Values computed in float and rounded to 16 bits before they are returned or read otherwise:
    torch's kernels do so in registers, and read 16-bit operands with their strides. A program that
    converts an expanded tensor itself and rounds its results looks the same.
    """
    found: set[Val] = set()
    uses = fusion.uses()
    for expr in reversed(fusion.exprs):
        value = expr.output
        readers = uses.get(value, []) if value not in fusion.outputs else []
        if readers and all(
            isinstance(r, PointwiseOp)
            and (r.output in found or (r.op == "cast" and r.output.dtype.is_reduced_precision))
            for r in readers
        ):
            found.add(value)
    return found


def _laid_out_by(expr: PointwiseOp, fusion: Fusion) -> Sequence[Val]:
    """The operands that determine a result's strides.

    The operand that a select never takes contributes its strides only, and is converted for nothing
    else; so are those of nested selects in the other branch, all of one kernel.
    """
    leaders = []
    led: Expr | None = expr
    while isinstance(led, PointwiseOp) and led.op == "where" and _is_never(led.inputs[0]):
        _, leader, other = led.inputs
        leaders.append(_unconverted(leader, fusion))
        led = fusion.definitions().get(_unconverted(other, fusion))
    return leaders or expr.inputs


def _is_never(condition: Val) -> bool:
    return isinstance(condition, Scalar) and condition.value is False


def _unconverted(value: Val, fusion: Fusion) -> Val:
    expr = fusion.definitions().get(value)
    if isinstance(expr, PointwiseOp) and expr.op == "cast":
        return expr.inputs[0]
    return value


def _row_major(sizes: Sequence[int]) -> _Strides:
    return dense_strides(sizes, range(len(sizes)))


def _broadcast(strides: _Strides, sizes: Sequence[int], shown: Sequence[int]) -> _Strides:
    """The strides of an operand broadcast to all dimensions of the result."""
    missing = len(shown) - len(sizes)
    steps = zip(strides, sizes, shown[missing:], strict=True)
    return (*[0] * missing, *(0 if n == 1 != wide else step for step, n, wide in steps))


def _view(expr: MoveOp, strides: _Strides) -> _Strides:
    out = expr.output
    if isinstance(expr, CopyOp) and len(strides) == out.rank:
        return dense_strides(out.sizes, iteration_order(out.sizes, [strides]))
    sizes = list(expr.input.sizes)
    steps = list(strides)
    for step in out.domain.transforms:
        _take(step, sizes, steps, pads=isinstance(expr, PadOp))
    if isinstance(expr, ViewOp) and expr.op == "broadcast_in_dim":
        _put_in_front(expr, sizes, steps)
    return tuple(steps)


def _is_view(expr: MoveOp, known: Mapping[TensorView, _Strides]) -> bool:
    """True if torch's call returns a view, not a copy."""
    if isinstance(expr, CopyOp):
        return False
    sizes, strides = list(expr.input.sizes), list(known[expr.input])
    steps = expr.output.domain.transforms
    is_view = all(_take(step, sizes, strides, pads=isinstance(expr, PadOp)) for step in steps)
    if expr.op == "stride_order":
        pairs = zip(sizes, strides, known[expr.output], strict=True)
        return all(n == 1 or before == after for n, before, after in pairs)
    return is_view


def _put_in_front(expr: ViewOp, sizes: Sequence[int], strides: list[int]) -> None:
    """Strides of dimensions prepended by torch's expand: each spans all dimensions inside it."""
    new = {s.axis for s in expr.output.domain.transforms if isinstance(s, NewBroadcast)}
    in_front = next(k for k in range(len(sizes) + 1) if k not in new)
    strides[:in_front] = [0 if n > 1 else 1 for n in sizes[:in_front]]
    for k in reversed(range(min(in_front, len(sizes) - 1))):
        strides[k] *= sizes[k + 1] * strides[k + 1]


def _take(step: Transform, sizes: list[int], strides: list[int], *, pads: bool) -> bool:
    """Apply one step of a view to sizes and strides in place; True if the result is a view."""
    match step:
        case Reorder(order):
            sizes[:] = [sizes[k] for k in order]
            strides[:] = [strides[k] for k in order]
        case Resize(axis, left, right):
            last = _channels_last(sizes, strides)
            sizes[axis] += static(left) + static(right)
            if pads and (static(left) > 0 or static(right) > 0):
                strides[:] = dense_strides(sizes, last or range(len(sizes)))
                return False
        case Expand(axis, size):
            sizes[axis], strides[axis] = static(size), 0
        case Split(axis, outer, inner):
            sizes[axis : axis + 1] = [static(outer), static(inner)]
            strides[axis : axis + 1] = [strides[axis] * static(inner), strides[axis]]
        case NewBroadcast(axis):
            inside = axis < len(sizes)
            strides.insert(axis, sizes[axis] * strides[axis] if inside else 1)
            sizes.insert(axis, 1)
        case Squeeze(axis):
            del sizes[axis], strides[axis]
        case Merge(axis):
            return _merge(axis, sizes, strides)
    return True


def _merge(axis: int, sizes: list[int], strides: list[int]) -> bool:
    (outer, inner), (far, near) = sizes[axis : axis + 2], strides[axis : axis + 2]
    sizes[axis : axis + 2] = [outer * inner]
    if inner == 1:
        strides[axis : axis + 2] = [far]
    elif outer == 1 or far == inner * near:
        strides[axis : axis + 2] = [near]
    else:
        strides[:] = _row_major(sizes)
        return False
    return True


def _channels_last(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """(batch, spatial dimensions, channels) if torch infers that order from strides; else None."""
    rank = len(sizes)
    if rank not in (4, 5) or strides[1] == 0:
        return None
    least = 0
    order = (0, *range(2, rank), 1)
    for k in reversed(order):
        if sizes[k] == 0 or strides[k] < least or (k == 0 and least == strides[1]):
            return None
        least = strides[k] * sizes[k]
    return order
