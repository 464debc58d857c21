"""Strides that torch's operations would give, and so the order of dimensions that results take.

What a kernel computes has no strides of its own; whoever asked for it expects torch's, because a
later `view` depends on them. Torch's rules are few: a pointwise result lies as its operands do
(TensorIterator's order of dimensions), a view steps over the memory that it looks at, a reshape
that has no view is a row-major copy, a pad keeps channels last, all others are row-major.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

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
    """Where torch would have a tensor.

    strides  in elements
    source   the number of the tensor input that it is a view of; None in memory of its own
    """

    strides: _Strides
    source: int | None = None

    def is_at(self, sizes: Sequence[int], strides: Sequence[int], source: int | None) -> bool:
        """Whether a view of such an input, or of what is computed, lies there. Strides of single
        elements say nothing.
        """
        steps = zip(sizes, strides, self.strides, strict=True)
        is_same = source is None or source == self.source
        return is_same and all(n == 1 or ours == torchs for n, ours, torchs in steps)


def torch_memory(
    fusion: Fusion,
    layouts: Mapping[TensorView, Layout],
    promised: Sequence[TorchMemory] = (),
) -> dict[TensorView, TorchMemory]:
    """Where torch's operations would have each tensor. `layouts` of the inputs.

    An explicit stride_order wins. The new value of an updated input lies where the input does.
    `promised`: of outputs where it is known already; the order of what they are views of follows.
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
                # Thunder converts what it has broadcast, torch what it will broadcast.
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
    """The order of what a chain of views ends at, by that of the tensor at its begin; None where it
    does not follow. Dimensions that are merged are neighbours.
    """
    found: Sequence[int] | None = order
    for tensor in chain[:-1]:
        expr = fusion.definitions()[tensor]
        found = _order_behind(expr, found) if isinstance(expr, MoveOp) and found else None
    return None if found is None else tuple(found)


def _order_behind(expr: MoveOp, order: Sequence[int]) -> tuple[int, ...] | None:
    """The order of what a view looks at, by that of the view; None where it does not follow."""
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
    """Whether strides give that order to the dimensions."""
    return iteration_order(sizes, [strides]) == tuple(order)


def iteration_order(sizes: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost, as TensorIterator orders them.

    An insertion sort by strides, the first operand's first. A stride of 0 says nothing, so that the
    order is not transitive, and the algorithm is part of the rule.
    """
    inner_first = list(reversed(range(len(sizes))))
    for k in range(1, len(sizes)):
        moving = k
        for other in reversed(range(k)):
            side = _side(inner_first[other], inner_first[moving], sizes, operands)
            if side < 0:
                break
            if side > 0:
                inner_first[other], inner_first[moving] = inner_first[moving], inner_first[other]
                moving = other
    return tuple(reversed(inner_first))


def _side(a: int, b: int, sizes: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """1 where dimension `a` lies outside of `b`, -1 where inside, 0 where nothing tells."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if sizes[a] > sizes[b]:
            return 1
    return 0


def over_single_elements(sizes: Sequence[int], strides: Sequence[int]) -> _Strides:
    """Strides with those of single elements as torch's unsqueeze makes them."""
    found = list(strides)
    for k in reversed(range(len(sizes))):
        if sizes[k] == 1:
            found[k] = sizes[k + 1] * found[k + 1] if k + 1 < len(sizes) else 1
    return tuple(found)


def _input(tensor: TensorView, layout: Layout) -> _Strides:
    """Of an input that stands for views of what is bound to it, too."""
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
        return dense_strides(out.sizes, iteration_order(out.sizes, operands))
    if isinstance(expr, MoveOp) and expr.input in known:
        return _view(expr, known[expr.input])
    if isinstance(expr, CatOp):
        formats = {_channels_last(t.sizes, known[t]) for t in expr.inputs if t in known}
        shared = formats.pop() if len(formats) == 1 else None
        return dense_strides(out.sizes, shared or range(out.rank))
    return _row_major(out.sizes)


def _rounded_again(fusion: Fusion) -> set[Val]:
    """What is computed with in float and rounded to 16 bits before anyone else reads it: torch's
    kernels do so in registers, and read 16 bits as they lie. A program that converts an expanded
    tensor itself and rounds what it computes looks the same.
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
    """The operands whose strides a result has.

    What a select never takes is there for its strides, and converted for nothing else; so are those
    of selects that it chooses from, all of one kernel.
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
    """The steps of an operand through all dimensions of the result."""
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
    """Whether torch's call gives a view, and not a copy."""
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
    """What torch's expand puts in front of a tensor steps over all that it shows behind."""
    new = {s.axis for s in expr.output.domain.transforms if isinstance(s, NewBroadcast)}
    in_front = next(k for k in range(len(sizes) + 1) if k not in new)
    strides[:in_front] = [0 if n > 1 else 1 for n in sizes[:in_front]]
    for k in reversed(range(min(in_front, len(sizes) - 1))):
        strides[k] *= sizes[k + 1] * strides[k + 1]


def _take(step: Transform, sizes: list[int], strides: list[int], *, pads: bool) -> bool:
    """One step of a view on the sizes and strides of a tensor; whether it leaves a view."""
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
    """The order (batch, spatial dimensions, channels) if the strides suggest it to torch."""
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
