"""The definitions of tests/zoo/workloads.py: functions that add a program to a builder."""

from __future__ import annotations

from tests.zoo.arithmetic import Arithmetic, sliced
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView

Float, BFloat16 = DataType.Float, DataType.BFloat16


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
    before = b.pad(sliced(b, x, 1, 0, x.sizes[1] - 1), [0, 0, 1, 0])
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
    b.output(op.relu(sliced(b, sliced(b, cut, 1, 16, 48), 1, 8, 16)))


def constant_across_a_cut(b: FusionBuilder, x: TensorView) -> None:
    """A constant on both sides of a cut goes through no memory (NVIDIA/Fuser #4269)."""
    op = Arithmetic(b)
    constant = b.full(x.sizes, 2.0, Float)
    cut = b.segment_set(op.add(x, constant))
    b.output(op.add(cut, constant))
