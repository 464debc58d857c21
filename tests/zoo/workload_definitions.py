"""The definitions of tests/zoo/workloads.py: functions that add a program to a builder."""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import TensorView, Val

Float, BFloat16 = DataType.Float, DataType.BFloat16
Call = Callable[..., TensorView]


class Arithmetic:
    """Pointwise operations as calls: `op.mul(x, y)`. Results of bfloat16 operands are float32."""

    def __init__(self, builder: FusionBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Call:
        def call(*operands: Val | Number) -> TensorView:
            made = self._builder.pointwise(name, *operands)
            assert isinstance(made, TensorView)
            return made

        return call

    def wide(self, *tensors: TensorView) -> list[TensorView]:
        return [self._cast(t, Float) for t in tensors]

    def narrow(self, x: TensorView, dtype: DataType = BFloat16) -> TensorView:
        return self._cast(x, dtype)

    def output(self, x: TensorView) -> None:
        self._builder.output(self.narrow(x))

    def _cast(self, x: TensorView, dtype: DataType) -> TensorView:
        made = self._builder.cast(x, dtype)
        assert isinstance(made, TensorView)
        return made


# ---- pointwise


def swiglu(b: FusionBuilder, gate: TensorView, up: TensorView) -> None:
    op = Arithmetic(b)
    g, u = op.wide(gate, up)
    op.output(op.mul(op.silu(g), u))


def swiglu_backward(b: FusionBuilder, gate: TensorView, up: TensorView, dy: TensorView) -> None:
    op = Arithmetic(b)
    g, u, d = op.wide(gate, up, dy)
    s = op.sigmoid(g)
    slope = op.mul(s, op.add(op.mul(g, op.sub(1.0, s)), 1.0))
    op.output(op.mul(op.mul(d, u), slope))
    op.output(op.mul(d, op.mul(g, s)))


def gelu_erf(b: FusionBuilder, x: TensorView, bias: TensorView) -> None:
    op = Arithmetic(b)
    h = op.add(*op.wide(x, bias))
    op.output(op.mul(op.mul(h, 0.5), op.add(op.erf(op.mul(h, 0.5**0.5)), 1.0)))


def gelu_tanh(b: FusionBuilder, x: TensorView, bias: TensorView) -> None:
    op = Arithmetic(b)
    h = op.add(*op.wide(x, bias))
    op.output(op.mul(op.mul(h, 0.5), op.add(op.tanh(_inner(op, h)), 1.0)))


def _inner(op: Arithmetic, h: TensorView) -> TensorView:
    cube = op.mul(h, op.mul(h, h))
    return op.mul(op.add(h, op.mul(cube, 0.044715)), 0.7978845608028654)


def gelu_backward(
    b: FusionBuilder, x: TensorView, bias: TensorView, dy: TensorView, approximate: str
) -> None:
    op = Arithmetic(b)
    x, bias, dy = op.wide(x, bias, dy)
    h = op.add(x, bias)
    square = op.mul(h, h)
    if approximate == "none":
        area = op.mul(op.add(op.erf(op.mul(h, 0.5**0.5)), 1.0), 0.5)
        density = op.mul(op.exp(op.mul(square, -0.5)), 0.3989422804014327)
        op.output(op.mul(dy, op.add(area, op.mul(h, density))))
        return
    t = op.tanh(_inner(op, h))
    slope = op.mul(op.add(op.mul(square, 3 * 0.044715), 1.0), 0.7978845608028654)
    steep = op.mul(op.mul(op.mul(h, 0.5), op.sub(1.0, op.mul(t, t))), slope)
    op.output(op.mul(dy, op.add(op.mul(op.add(t, 1.0), 0.5), steep)))


def residual(
    b: FusionBuilder, x: TensorView, attention: TensorView, mlp: TensorView, gate: TensorView
) -> None:
    op = Arithmetic(b)
    x, attention, mlp, gate = op.wide(x, attention, mlp, gate)
    h = op.add(x, attention)
    op.output(h)
    op.output(op.add(h, op.mul(mlp, op.sigmoid(gate))))


def residual_backward(b: FusionBuilder, *tensors: TensorView) -> None:
    op = Arithmetic(b)
    _, _, mlp, gate, dh, dy = tensors
    mlp, gate, dh, dy = op.wide(mlp, gate, dh, dy)
    s = op.sigmoid(gate)
    op.output(op.add(dh, dy))
    op.output(op.mul(dy, s))
    op.output(op.mul(op.mul(dy, mlp), op.mul(s, op.sub(1.0, s))))


def adamw(b: FusionBuilder, *tensors: TensorView) -> None:
    """One step over parameters, gradients, first and second moments, in place."""
    op = Arithmetic(b)
    rate, beta1, beta2, eps, decay, step = 1e-3, 0.9, 0.95, 1e-8, 0.1, 10
    count = len(tensors) // 4
    for k in range(count):
        p, g, m, v = tensors[k::count]
        wide_p, wide_g = op.wide(p, g)
        new_m = op.add(op.mul(m, beta1), op.mul(wide_g, 1 - beta1))
        new_v = op.add(op.mul(v, beta2), op.mul(op.mul(wide_g, wide_g), 1 - beta2))
        size = op.add(op.sqrt(op.mul(new_v, 1 / (1 - beta2**step))), eps)
        change = op.truediv(op.mul(new_m, rate / (1 - beta1**step)), size)
        new_p = op.sub(op.mul(wide_p, 1 - rate * decay), change)
        for value, target in ((op.narrow(new_p), p), (new_m, m), (new_v, v)):
            b.output(value, target)


def sin_cos(b: FusionBuilder, x: TensorView) -> None:
    op = Arithmetic(b)
    b.output(op.sin(x))
    b.output(op.cos(x))


# ---- with views


def rope(
    b: FusionBuilder,
    qkv: TensorView,
    cos: TensorView,
    sin: TensorView,
    groups: int,
    values: bool,
) -> None:
    """Queries, keys and, if asked for, values of one projection, rotated by their positions."""
    batch, time, width = qkv.sizes
    size = width // (groups * 6)
    heads = b.reshape(qkv, [batch, time, groups, 6, size])
    heads = b.permute(heads, [0, 2, 3, 1, 4])
    parts = []
    for first, last in ((0, 4), (4, 5), (5, 6)):
        part = _sliced(b, heads, 2, first, last)
        if last - first == 1:
            part = b.expand(part, [batch, groups, 4, time, size])
        parts.append(b.reshape(part, [batch, groups * 4, time, size]))
    query, key, value = parts
    b.output(_turned(b, query, cos, sin))
    b.output(_turned(b, key, cos, sin))
    if values:
        b.output(value)


def _turned(b: FusionBuilder, x: TensorView, cos: TensorView, sin: TensorView) -> TensorView:
    op = Arithmetic(b)
    size, n = x.sizes[-1], cos.sizes[-1]
    first, second = _sliced(b, x, -1, 0, n // 2), _sliced(b, x, -1, n // 2, n)
    rotated = b.cat([op.narrow(op.neg(second)), first], -1)
    turning = _sliced(b, x, -1, 0, n)
    y = op.narrow(op.add(op.mul(turning, cos), op.mul(rotated, sin)))
    return y if n == size else b.cat([y, _sliced(b, x, -1, n, size)], -1)


def rope_backward(
    b: FusionBuilder,
    cos: TensorView,
    sin: TensorView,
    dq: TensorView,
    dk: TensorView,
    groups: int,
) -> None:
    """The gradient of the projection, of whose values nobody asked for a gradient."""
    op = Arithmetic(b)
    batch, _, time, size = dq.sizes
    grouped = [b.reshape(g, [batch, groups, 4, time, size]) for g in (dq, dk)]
    heads = op.wide(*(_sliced(b, grouped[1], 2, k, k + 1) for k in range(4)))
    summed = heads[0]
    for head in heads[1:]:
        summed = op.add(summed, head)
    nothing = b.full([batch, groups, 1, time, size], 0.0, BFloat16)
    parts = [turned_back(b, g, cos, sin) for g in (grouped[0], summed)]
    joined = b.cat([*parts, nothing], 2)
    b.output(b.reshape(b.permute(joined, [0, 3, 1, 2, 4]), [batch, time, groups * 6 * size]))


def turned_back(b: FusionBuilder, g: TensorView, cos: TensorView, sin: TensorView) -> TensorView:
    op = Arithmetic(b)
    n = g.sizes[-1]
    by_sine = op.mul(g, sin)
    first, second = _sliced(b, by_sine, -1, 0, n // 2), _sliced(b, by_sine, -1, n // 2, n)
    return op.narrow(op.add(op.mul(g, cos), b.cat([second, op.neg(first)], -1)))


def heads_first(b: FusionBuilder, x: TensorView, scale: TensorView) -> None:
    op = Arithmetic(b)
    b.output(b.set(b.permute(op.narrow(op.mul(x, scale)), [0, 2, 1, 3])))


def transpose_add(b: FusionBuilder, x: TensorView, y: TensorView) -> None:
    """The last two dimensions of x exchanged; memory in the order of y."""
    op = Arithmetic(b)
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    b.output(b.cast(op.add(y, b.permute(x, order)), x.dtype))


def token_shift(b: FusionBuilder, x: TensorView, mix: TensorView) -> None:
    """Every position mixed with the one before it."""
    op = Arithmetic(b)
    before = b.pad(_sliced(b, x, 1, 0, x.sizes[1] - 1), [0, 0, 1, 0])
    op.output(op.add(x, op.mul(op.sub(before, x), mix)))


def cat_relu(b: FusionBuilder, x: TensorView, y: TensorView) -> None:
    b.output(Arithmetic(b).relu(b.cat([x, y], -1)))


def channels_last(b: FusionBuilder, x: TensorView, scale: TensorView, bias: TensorView) -> None:
    op = Arithmetic(b)
    per_channel = [b.broadcast(t, [False, True, True]) for t in (scale, bias)]
    op.output(op.relu(op.add(op.mul(x, per_channel[0]), per_channel[1])))


# ---- with cuts


def relu_slices(b: FusionBuilder, x: TensorView) -> None:
    """Two relu, and between them nothing that needs a kernel (NVIDIA/Fuser #2577)."""
    op = Arithmetic(b)
    cut = b.segment_set(op.relu(x))
    b.output(op.relu(_sliced(b, _sliced(b, cut, 1, 16, 48), 1, 8, 16)))


def keys_rotated_across_cuts(
    b: FusionBuilder, qkv: TensorView, cos: TensorView, sin: TensorView
) -> None:
    """The keys of that program, cut at what is rotated and at its first half: T15, T16 there."""
    op = Arithmetic(b)
    heads = b.permute(b.reshape(qkv, [2, 1024, 4, 6, 32]), [0, 2, 3, 1, 4])
    part = b.expand(_sliced(b, heads, 2, 4, 5), [2, 4, 4, 1024, 32])
    keys = b.reshape(part, [2, 16, 1024, 32])
    turning = b.segment_set(_sliced(b, keys, -1, 0, 8))
    first = b.segment_set(_sliced(b, turning, -1, 0, 4))
    rotated = b.cat([op.narrow(op.neg(_sliced(b, turning, -1, 4, 8))), first], -1)
    y = op.narrow(op.add(op.mul(turning, cos), op.mul(rotated, sin)))
    b.output(b.cat([y, _sliced(b, keys, -1, 8, 32)], -1))


def constant_across_a_cut(b: FusionBuilder, x: TensorView) -> None:
    """A constant on both sides of a cut goes through no memory (NVIDIA/Fuser #4269)."""
    op = Arithmetic(b)
    constant = b.full(x.sizes, 2.0, Float)
    cut = b.segment_set(op.add(x, constant))
    b.output(op.add(cut, constant))


def _sliced(b: FusionBuilder, x: TensorView, dim: int, first: int, last: int) -> TensorView:
    dim %= x.rank
    starts = [first if k == dim else 0 for k in range(x.rank)]
    ends = [last if k == dim else size for k, size in enumerate(x.sizes)]
    return b.slice(x, starts, ends)
