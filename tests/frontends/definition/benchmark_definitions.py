"""The workloads of nvFuser's benchmarks, as definitions in the style of its users.

Sizes are open where theirs are, names are nvFuser's, and each stands against what torch computes in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.zoo.rope import turned as turned_eager
from thunder_fuser.nvfuser import DataType, FusionDefinition, compute_tensor_descriptor
from thunder_fuser.nvfuser.pytorch_utils import torch_dtype_to_nvfuser_dtype

Tensors = Sequence[torch.Tensor]
B16, F32 = torch.bfloat16, torch.float32
HALF = (DataType.Half, DataType.BFloat16)
EPS = 1e-5
KEPT = 0.8
"""Share of elements that dropout keeps."""


@dataclass(frozen=True)
class Benchmark:
    """`define` writes the definition for inputs of these kinds, `eager` is on float64 inputs."""

    name: str
    define: Callable[..., None]
    inputs: Tensors
    eager: Callable[..., Sequence[torch.Tensor]]
    static_sizes: bool = False

    def definition(self) -> FusionDefinition:
        with FusionDefinition() as fd:
            self.define(fd, *map(defined_like(fd, self.static_sizes), self.inputs))
        return fd

    def expected(self) -> list[torch.Tensor]:
        exact = [x.double() if x.is_floating_point() else x for x in self.inputs]
        return [x.detach() for x in self.eager(*exact)]


def defined_like(fd: FusionDefinition, static_sizes: bool) -> Callable[[torch.Tensor], Any]:
    """An input with open sizes, wherever they are not 1; or with its own."""

    def define(x: torch.Tensor) -> Any:
        contiguity, order = compute_tensor_descriptor(x.shape, x.stride())
        return fd.define_tensor(
            shape=[n if static_sizes or n == 1 else -1 for n in x.shape],
            contiguity=contiguity,
            dtype=torch_dtype_to_nvfuser_dtype(x.dtype),
            is_cpu=False,
            stride_order=order,
        )

    return define


def wide(fd: FusionDefinition, *tensors: Any) -> list[Any]:
    return [fd.ops.cast(t, DataType.Float) if t.dtype() in HALF else t for t in tensors]


def out(fd: FusionDefinition, like: Any, *tensors: Any) -> None:
    """Outputs in the dtype of an input."""
    for t in tensors:
        fd.add_output(fd.ops.cast(t, dtype=like.dtype()) if like.dtype() in HALF else t)


def row(fd: FusionDefinition, x: Any, like: Any) -> Any:
    """A vector along the last dimension."""
    return fd.ops.broadcast_in_dim(x, shape=like.shape(), broadcast_dims=[1])


def column(fd: FusionDefinition, x: Any, like: Any) -> Any:
    """A number for each row, as two broadcasts."""
    V = fd.define_vector([like.size(0), 1], dtype=DataType.Int)
    x = fd.ops.broadcast_in_dim(x, shape=V, broadcast_dims=[0])
    return fd.ops.broadcast_in_dim(x, shape=like.shape(), broadcast_dims=[0, 1])


def gradients(f: Callable[..., torch.Tensor], grad: torch.Tensor, *inputs: torch.Tensor) -> Tensors:
    """Of the sum of f(inputs) * grad."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(f(*leaves), leaves, grad)


# ---- pointwise


def bias_gelu(fd: FusionDefinition, x: Any, bias: Any) -> None:
    a, b = wide(fd, x, bias)
    a = fd.ops.add(a, row(fd, b, a))
    cubed = fd.ops.mul(fd.ops.mul(a, a), a)
    S0, S1 = fd.define_scalar(math.sqrt(2 / math.pi)), fd.define_scalar(0.044715)
    inner = fd.ops.mul(S0, fd.ops.add(a, fd.ops.mul(S1, cubed)))
    out(fd, x, fd.ops.mul(fd.ops.mul(a, 0.5), fd.ops.add(fd.ops.tanh(inner), 1.0)))


def gelu_slope(fd: FusionDefinition, a: Any) -> Any:
    S0, S1 = fd.define_scalar(math.sqrt(2 / math.pi)), fd.define_scalar(0.044715)
    square = fd.ops.mul(a, a)
    t = fd.ops.tanh(fd.ops.mul(fd.ops.mul(a, S0), fd.ops.add(1.0, fd.ops.mul(S1, square))))
    steep = fd.ops.add(fd.ops.neg(fd.ops.mul(t, t)), 1.0)
    inner = fd.ops.mul(S0, fd.ops.add(fd.ops.mul(3 * 0.044715, square), 1.0))
    first = fd.ops.mul(fd.ops.mul(a, 0.5), fd.ops.mul(steep, inner))
    return fd.ops.add(first, fd.ops.mul(fd.ops.add(t, 1.0), 0.5))


def bias_gelu_bwd(fd: FusionDefinition, x: Any, grad: Any, bias: Any) -> None:
    a, g, b = wide(fd, x, grad, bias)
    V = fd.define_vector([1, a.size(-1)], dtype=DataType.Int)
    a = fd.ops.add(a, fd.ops.broadcast_in_dim(b, shape=V, broadcast_dims=[1]))
    out(fd, x, fd.ops.mul(g, gelu_slope(fd, a)))


def gelu_bwd_reduction(axis: int) -> Callable[..., None]:
    def define(fd: FusionDefinition, x: Any, grad: Any) -> None:
        a, g = wide(fd, x, grad)
        out(fd, x, fd.ops.sum(fd.ops.mul(g, gelu_slope(fd, a)), dims=[axis], keepdim=False))

    return define


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def silu_mul(fd: FusionDefinition, x: Any, y: Any) -> None:
    a, b = wide(fd, x, y)
    S = fd.ops.reciprocal(fd.ops.add(1.0, fd.ops.exp(fd.ops.neg(a))))
    out(fd, x, fd.ops.mul(fd.ops.mul(a, S), b))


def silu_mul_bwd(fd: FusionDefinition, grad: Any, x: Any, y: Any) -> None:
    g, a, b = wide(fd, grad, x, y)
    S = fd.ops.reciprocal(fd.ops.add(1.0, fd.ops.exp(fd.ops.neg(a))))
    slope = fd.ops.mul(S, fd.ops.add(1.0, fd.ops.mul(a, fd.ops.sub(1.0, S))))
    out(fd, x, fd.ops.mul(fd.ops.mul(g, b), slope), fd.ops.mul(g, fd.ops.mul(a, S)))


def scale_bias_relu(fd: FusionDefinition, bias: Any, scale: Any, x: Any) -> None:
    b, s, a = wide(fd, bias, scale, x)
    y = fd.ops.add(fd.ops.mul(a, row(fd, s, a)), row(fd, b, a))
    positive = fd.ops.gt(y, fd.define_scalar(0.0, dtype=DataType.Double))
    out(fd, x, fd.ops.where(positive, y, 0.0))
    fd.add_output(positive)


def scale_bias_relu_bwd(fd: FusionDefinition, scale: Any, mask: Any, grad: Any) -> None:
    s, g = wide(fd, scale, grad)
    S0 = fd.define_scalar(0.0, dtype=DataType.Double)
    out(fd, grad, fd.ops.mul(fd.ops.where(mask, g, S0), row(fd, s, g)))


def broadcast_add(axis: int) -> Callable[..., None]:
    def define(fd: FusionDefinition, bias: Any, x: Any) -> None:
        b, a = wide(fd, bias, x)
        mask = [k != 1 - axis for k in range(2)]
        out(fd, x, fd.ops.add(a, fd.ops.broadcast(b, mask)))

    return define


def pointwise_mul(fd: FusionDefinition, x: Any, y: Any) -> None:
    a, b = wide(fd, x, y)
    out(fd, x, fd.ops.mul(a, b))


def many_pointwise(fd: FusionDefinition, x: Any, y: Any) -> None:
    a, b = wide(fd, x, y)
    for _ in range(20):
        a = fd.ops.tanh(fd.ops.add(a, b))
    out(fd, x, a)


def many_pointwise_eager(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    for _ in range(20):
        x = torch.tanh(x + y)
    return [x]


def transposed(fd: FusionDefinition, x: Any, y: Any) -> None:
    a, b = wide(fd, x, y)
    total = fd.ops.permute(fd.ops.add(a, b), dims=[0, 2, 1])
    out(fd, x, fd.ops.relu(total))


# ---- reductions


def reduction(axis: int) -> Callable[..., None]:
    def define(fd: FusionDefinition, x: Any) -> None:
        (a,) = wide(fd, x)
        out(fd, x, fd.ops.sum(a, dims=[axis], keepdim=False))

    return define


def reduction_epilogue(fd: FusionDefinition, x: Any, epilogue: Any) -> None:
    a, e = wide(fd, x, epilogue)
    out(fd, x, fd.ops.add(fd.ops.sum(a, dims=[0], keepdim=False), e))


def reduction_prologue(fd: FusionDefinition, x: Any, y: Any) -> None:
    a, b = wide(fd, x, y)
    out(fd, x, fd.ops.sum(fd.ops.mul(fd.ops.exp(a), b), dims=[1], keepdim=False))


def softmax(axis: int) -> Callable[..., None]:
    def define(fd: FusionDefinition, x: Any) -> None:
        (a,) = wide(fd, x)
        mask = [k == axis for k in range(2)]
        top = fd.ops.max(a, dims=[axis], keepdim=False, dtype=DataType.Null)
        a = fd.ops.exp(fd.ops.sub(a, fd.ops.broadcast(top, mask)))
        total = fd.ops.sum(a, dims=[axis], keepdim=False, dtype=DataType.Null)
        out(fd, x, fd.ops.mul(a, fd.ops.reciprocal(fd.ops.broadcast(total, mask))))

    return define


def softmax_bwd(axis: int) -> Callable[..., None]:
    def define(fd: FusionDefinition, y: Any, grad: Any) -> None:
        a, g = wide(fd, y, grad)
        mask = [k == axis for k in range(2)]
        total = fd.ops.sum(fd.ops.mul(a, g), dims=[axis], keepdim=False)
        out(fd, y, fd.ops.mul(a, fd.ops.sub(g, fd.ops.broadcast(total, mask))))

    return define


def softmax_bwd_eager(y: torch.Tensor, grad: torch.Tensor, axis: int) -> Tensors:
    return [y * (grad - (y * grad).sum(axis, keepdim=True))]


def cross_entropy(fd: FusionDefinition, logits: Any, labels: Any) -> None:
    (a,) = wide(fd, logits)
    top = fd.ops.max(a, dims=[1], keepdim=False, dtype=DataType.Null)
    total = fd.ops.sum(fd.ops.exp(fd.ops.sub(a, column(fd, top, a))), dims=[1], keepdim=False)
    lse = fd.ops.add(fd.ops.log(total), top)
    V = fd.define_vector([logits.size(0), 1], dtype=DataType.Int)
    index = fd.ops.broadcast_in_dim(labels, shape=V, broadcast_dims=[0])
    (picked,) = wide(fd, fd.ops.squeeze(fd.ops.gather(logits, index, dim=1), dims=[1]))
    out(fd, logits, fd.ops.sub(lse, picked))


# ---- norms over rows


def layernorm(fd: FusionDefinition, x: Any, weight: Any, bias: Any) -> None:
    a, w, b = wide(fd, x, weight, bias)
    var, mean = fd.ops.var_mean(a, dims=[1], correction=0, keepdim=False)
    V = fd.define_vector([a.size(0), 1], dtype=DataType.Int)
    var = fd.ops.broadcast_in_dim(var, shape=V, broadcast_dims=[0])
    invstd = fd.ops.rsqrt(fd.ops.add(var, fd.define_scalar(EPS, dtype=DataType.Double)))
    spread = fd.ops.broadcast_in_dim(invstd, shape=a.shape(), broadcast_dims=[0, 1])
    y = fd.ops.mul(fd.ops.sub(a, column(fd, mean, a)), spread)
    out(fd, x, fd.ops.add(fd.ops.mul(y, row(fd, w, a)), row(fd, b, a)))
    fd.add_output(mean)
    fd.add_output(invstd)


def layernorm_eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    invstd = (x.var(1, correction=0, keepdim=True) + EPS).rsqrt()
    return [F.layer_norm(x, x.shape[1:], w, b, EPS), x.mean(1), invstd]


def layernorm_bwd(
    fd: FusionDefinition, x: Any, grad: Any, mean: Any, invstd: Any, weight: Any
) -> None:
    a, g, w = wide(fd, x, grad, weight)
    spread = fd.ops.broadcast_in_dim(invstd, shape=a.shape(), broadcast_dims=[0, 1])
    y = fd.ops.mul(fd.ops.sub(a, column(fd, mean, a)), spread)
    scaled = fd.ops.mul(g, row(fd, w, a))
    S = fd.ops.reciprocal(a.size(1))
    first = fd.ops.mul(fd.ops.sum(scaled, dims=[1], keepdim=False), S)
    second = fd.ops.mul(fd.ops.sum(fd.ops.mul(scaled, y), dims=[1], keepdim=False), S)
    centred = fd.ops.sub(
        fd.ops.sub(scaled, column(fd, first, a)), fd.ops.mul(y, column(fd, second, a))
    )
    grads = [fd.ops.sum(fd.ops.mul(g, y), dims=[0]), fd.ops.sum(g, dims=[0])]
    out(fd, x, fd.ops.mul(centred, spread), *grads)


def layernorm_bwd_eager(
    x: torch.Tensor, g: torch.Tensor, m: torch.Tensor, i: torch.Tensor, w: torch.Tensor
) -> Tensors:
    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:], w, b, EPS)

    return gradients(norm, g, x, w, torch.zeros_like(w))


def rms(fd: FusionDefinition, a: Any) -> Any:
    square = fd.ops.sum(fd.ops.mul(a, a), dims=[1], keepdim=False)
    V = fd.define_vector([a.size(0), 1], dtype=DataType.Int)
    mean = fd.ops.mul(
        fd.ops.broadcast_in_dim(square, shape=V, broadcast_dims=[0]), fd.ops.reciprocal(a.size(1))
    )
    return fd.ops.sqrt(fd.ops.add(mean, fd.define_scalar(EPS, dtype=DataType.Double)))


def scaled_by_rms(fd: FusionDefinition, a: Any, w: Any, root: Any) -> Any:
    spread = fd.ops.broadcast_in_dim(root, shape=a.shape(), broadcast_dims=[0, 1])
    return fd.ops.mul(fd.ops.mul(a, fd.ops.reciprocal(spread)), row(fd, w, a))


def rmsnorm(fd: FusionDefinition, x: Any, weight: Any) -> None:
    a, w = wide(fd, x, weight)
    root = rms(fd, a)
    out(fd, x, scaled_by_rms(fd, a, w, root))
    fd.add_output(root)


def rms_eager(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    root = (x.square().mean(1, keepdim=True) + EPS).sqrt()
    return [x / root * w, root]


def rmsnorm_add(fd: FusionDefinition, x: Any, residual: Any, weight: Any) -> None:
    a, r, w = wide(fd, x, residual, weight)
    total = fd.ops.add(a, r)
    out(fd, x, total, scaled_by_rms(fd, total, w, rms(fd, total)))


def rms_gradient(fd: FusionDefinition, a: Any, g: Any, w: Any, root: Any) -> tuple[Any, Any]:
    """Of the input and of the weight."""
    inverse = fd.ops.reciprocal(
        fd.ops.broadcast_in_dim(root, shape=a.shape(), broadcast_dims=[0, 1])
    )
    scaled = fd.ops.mul(g, row(fd, w, a))
    dot = fd.ops.sum(fd.ops.mul(scaled, a), dims=[1], keepdim=False, dtype=DataType.Null)
    dot = fd.ops.mul(column(fd, dot, a), fd.ops.reciprocal(a.size(1)))
    cubed = fd.ops.pow(inverse, fd.define_scalar(3.0, dtype=DataType.Double))
    grad = fd.ops.sub(fd.ops.mul(scaled, inverse), fd.ops.mul(fd.ops.mul(a, dot), cubed))
    return grad, fd.ops.sum(fd.ops.mul(g, fd.ops.mul(a, inverse)), dims=[0], keepdim=False)


def rmsnorm_bwd(fd: FusionDefinition, x: Any, root: Any, grad: Any, weight: Any) -> None:
    a, g, w = wide(fd, x, grad, weight)
    out(fd, x, *rms_gradient(fd, a, g, w, root))


def rmsnorm_bwd_eager(
    x: torch.Tensor, root: torch.Tensor, g: torch.Tensor, w: torch.Tensor
) -> Tensors:
    return gradients(lambda x, w: rms_eager(x, w)[0], g, x, w)


# ---- with dropout, whose mask is an input or drawn


def dropped(fd: FusionDefinition, a: Any, kept: float) -> tuple[Any, Any]:
    S0, S1 = fd.define_scalar(0.0), fd.define_scalar(1.0)
    drawn = fd.ops.uniform(S0, S1, shape=a.shape(), dtype=DataType.Float)
    mask = fd.ops.lt(drawn, fd.define_scalar(kept, dtype=DataType.Double))
    return fd.ops.mul(fd.ops.mul(a, mask), fd.define_scalar(1 / kept)), mask


def dropout_layernorm(fd: FusionDefinition, x: Any, y: Any, weight: Any, bias: Any) -> None:
    a, r, w, b = wide(fd, x, y, weight, bias)
    kept, mask = dropped(fd, a, 1.0)  # as the benchmark validates it
    total = fd.ops.add(r, kept)
    var, mean = fd.ops.var_mean(total, dims=[1], correction=0, keepdim=True)
    invstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    z = fd.ops.mul(fd.ops.sub(total, mean), invstd)
    out(fd, x, fd.ops.add(fd.ops.mul(z, row(fd, w, a)), row(fd, b, a)))
    for t in (mean, invstd, mask):
        fd.add_output(t)


def dropout_layernorm_eager(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> Tensors:
    z, mean, invstd = layernorm_eager(x + y, w, b)
    return [z, mean[:, None], invstd, torch.ones_like(x, dtype=torch.bool)]


def dropout_rmsnorm(fd: FusionDefinition, x: Any, y: Any, weight: Any) -> None:
    a, r, w = wide(fd, x, y, weight)
    kept, mask = dropped(fd, a, 1.0)
    total = fd.ops.add(r, kept)
    root = rms(fd, total)
    out(fd, x, scaled_by_rms(fd, total, w, root))
    fd.add_output(mask)
    fd.add_output(root)


def dropout_rmsnorm_eager(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Tensors:
    z, root = rms_eager(x + y, w)
    return [z, torch.ones_like(x, dtype=torch.bool), root]


def dropout_rmsnorm_bwd(
    fd: FusionDefinition, x: Any, y: Any, mask: Any, root: Any, grad: Any, weight: Any
) -> None:
    a, r, g, w = wide(fd, x, y, grad, weight)
    m = fd.ops.cast(mask, dtype=DataType.Float)
    S = fd.define_scalar(1 / KEPT, dtype=DataType.Double)
    total = fd.ops.add(r, fd.ops.mul(fd.ops.mul(a, m), S))
    whole, of_weight = rms_gradient(fd, total, g, w, root)
    out(fd, x, fd.ops.mul(fd.ops.mul(whole, S), m), whole, of_weight)


def dropout_rmsnorm_bwd_eager(
    x: torch.Tensor, y: torch.Tensor, m: torch.Tensor, root: torch.Tensor, g: torch.Tensor,
    w: torch.Tensor,
) -> Tensors:  # fmt: skip
    return gradients(lambda x, y, w: rms_eager(y + x * m / KEPT, w)[0], g, x, y, w)


def dropout_layernorm_bwd(
    fd: FusionDefinition, x: Any, y: Any, mask: Any, mean: Any, invstd: Any, grad: Any, weight: Any
) -> None:
    a, r, g, w = wide(fd, x, y, grad, weight)
    m = fd.ops.cast(mask, dtype=DataType.Float)
    S = fd.define_scalar(1 / KEPT, dtype=DataType.Double)
    total = fd.ops.add(r, fd.ops.mul(fd.ops.mul(a, m), S))
    shape, share = a.shape(), fd.ops.reciprocal(a.size(1))
    centre = fd.ops.broadcast_in_dim(fd.ops.broadcast(mean, [False, True]), shape, [0, 1])
    scale = fd.ops.broadcast_in_dim(invstd, shape=shape, broadcast_dims=[0, 1])
    z = fd.ops.mul(fd.ops.sub(total, centre), scale)
    scaled = fd.ops.mul(g, row(fd, w, a))
    along = fd.ops.mul(fd.ops.sum(scaled, dims=[1], keepdim=False), share)
    dot = fd.ops.mul(fd.ops.sum(fd.ops.mul(scaled, z), dims=[1], keepdim=False), share)
    whole = fd.ops.sub(scaled, column(fd, along, a))
    whole = fd.ops.mul(fd.ops.sub(whole, fd.ops.mul(z, column(fd, dot, a))), scale)
    of_weight = fd.ops.sum(fd.ops.mul(g, z), dims=[0], keepdim=False)
    of_bias = fd.ops.sum(g, dims=[0], keepdim=False)
    out(fd, x, fd.ops.mul(fd.ops.mul(whole, S), m), whole, of_weight, of_bias)


def dropout_layernorm_bwd_eager(
    x: torch.Tensor, y: torch.Tensor, m: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor,
    g: torch.Tensor, w: torch.Tensor,
) -> Tensors:  # fmt: skip
    def norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(y + x * m / KEPT, w.shape, w, b, EPS)

    return gradients(norm, g, x, y, w, torch.zeros_like(w))


# ---- attention


def hf_attention(fd: FusionDefinition, x: Any, mask: Any) -> None:
    """add, reshape, softmax, dropout"""
    a, m = wide(fd, x, mask)
    a = fd.ops.add(a, m)
    V = fd.define_vector(
        [fd.ops.mul(a.size(0), a.size(1)), a.size(2), a.size(3)], dtype=DataType.Int
    )
    a = fd.ops.reshape(a, new_shape=V)
    top = fd.ops.max(a, dims=[2], keepdim=True)
    a = fd.ops.exp(fd.ops.sub(a, top))
    a = fd.ops.mul(a, fd.ops.reciprocal(fd.ops.sum(a, dims=[2], keepdim=True)))
    kept, drawn = dropped(fd, a, 1.0)
    out(fd, x, kept, a)
    fd.add_output(drawn)


def hf_attention_eager(x: torch.Tensor, mask: torch.Tensor) -> Tensors:
    a = (x + mask).flatten(0, 1).softmax(-1)
    return [a, a, torch.ones_like(a, dtype=torch.bool)]


def hf_attention_bwd(batch: int, heads: int) -> Callable[..., None]:
    def define(fd: FusionDefinition, grad: Any, attn: Any, mask: Any) -> None:
        g, a = wide(fd, grad, attn)
        g = fd.ops.mul(fd.ops.mul(g, fd.define_scalar(1 / KEPT)), fd.ops.cast(mask, DataType.Float))
        total = fd.ops.sum(fd.ops.mul(a, g), dims=[2], keepdim=False, dtype=DataType.Null)
        V = fd.define_vector([a.size(0), a.size(1), 1], dtype=DataType.Int)
        total = fd.ops.broadcast_in_dim(total, shape=V, broadcast_dims=[0, 1])
        total = fd.ops.broadcast_in_dim(total, shape=a.shape(), broadcast_dims=[0, 1, 2])
        y = fd.ops.mul(a, fd.ops.sub(g, total))
        V = fd.define_vector([batch, heads, a.size(1), a.size(2)])
        out(fd, grad, fd.ops.reshape(y, new_shape=V))

    return define


def hf_attention_bwd_eager(batch: int, heads: int) -> Callable[..., Tensors]:
    def eager(g: torch.Tensor, a: torch.Tensor, mask: torch.Tensor) -> Tensors:
        (y,) = softmax_bwd_eager(a, g * mask / KEPT, -1)
        return [y.unflatten(0, (batch, heads))]

    return eager


def nanogpt_attention(fd: FusionDefinition, x: Any, bias: Any) -> None:
    """masked_fill, softmax, dropout"""
    (a,) = wide(fd, x)
    a = fd.ops.mul(a, fd.define_scalar(1 / math.sqrt(16), dtype=DataType.Double))
    hidden = fd.ops.eq(bias, fd.define_scalar(0.0, dtype=DataType.Double))
    hidden = fd.ops.broadcast_in_dim(hidden, shape=a.shape(), broadcast_dims=[0, 1, 2, 3])
    a = fd.ops.where(hidden, fd.define_scalar(float("-inf"), dtype=DataType.Double), a)
    a = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, dims=[3], keepdim=True)))
    a = fd.ops.mul(a, fd.ops.reciprocal(fd.ops.sum(a, dims=[3], keepdim=True)))
    kept, drawn = dropped(fd, a, 1.0)
    out(fd, x, kept)
    fd.add_output(drawn)
    out(fd, x, a)
    fd.add_output(hidden)


def nanogpt_attention_eager(x: torch.Tensor, bias: torch.Tensor) -> Tensors:
    hidden = (bias == 0).expand(x.shape)
    a = (x / 4).masked_fill(hidden, -math.inf).softmax(-1)
    return [a, torch.ones_like(a, dtype=torch.bool), a, hidden]


def nanogpt_attention_bwd(
    fd: FusionDefinition, grad: Any, attn: Any, mask: Any, hidden: Any
) -> None:
    g, a = wide(fd, grad, attn)
    g = fd.ops.mul(fd.ops.mul(g, fd.define_scalar(1 / KEPT)), mask)
    y = fd.ops.mul(a, fd.ops.sub(g, fd.ops.sum(fd.ops.mul(a, g), dims=[3], keepdim=True)))
    y = fd.ops.where(hidden, fd.define_scalar(0.0), y)
    out(fd, grad, fd.ops.mul(y, fd.define_scalar(1 / math.sqrt(16), dtype=DataType.Double)))


def nanogpt_attention_bwd_eager(
    g: torch.Tensor, a: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor
) -> Tensors:
    (y,) = softmax_bwd_eager(a, g * mask / KEPT, -1)
    return [y.masked_fill(hidden, 0) / 4]


# ---- norms over channels


def channel_norm(axes: Sequence[int], channel: int) -> Callable[..., None]:
    """Batch norm folds all but the channels; instance norm keeps the batch, too."""

    def define(fd: FusionDefinition, x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> None:
        a, w, b = wide(fd, x, weight, bias)
        folded = [k in axes for k in range(a.ndim)]
        others = [k != channel for k in range(a.ndim)]
        found_var, found_mean = fd.ops.var_mean(a, dims=list(axes), correction=0, keepdim=False)
        invstd = fd.ops.rsqrt(fd.ops.add(found_var, fd.define_scalar(EPS, dtype=DataType.Double)))
        y = fd.ops.mul(
            fd.ops.sub(a, fd.ops.broadcast(found_mean, folded)), fd.ops.broadcast(invstd, folded)
        )
        y = fd.ops.add(fd.ops.mul(y, fd.ops.broadcast(w, others)), fd.ops.broadcast(b, others))
        out(fd, x, y)
        fd.add_output(found_mean)
        fd.add_output(invstd)

    return define


def channel_norm_eager(axes: Sequence[int], channel: int) -> Callable[..., Tensors]:
    def eager(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor
    ) -> Tensors:
        shape = [-1 if k == channel else 1 for k in range(x.dim())]
        found, invstd = x.mean(axes, keepdim=True), (x.var(axes, False, keepdim=True) + EPS).rsqrt()
        y = (x - found) * invstd * w.view(shape) + b.view(shape)
        return [y, x.mean(axes), (x.var(axes, False) + EPS).rsqrt()]

    return eager


def channel_norm_bwd(axes: Sequence[int], channel: int) -> Callable[..., None]:
    def define(
        fd: FusionDefinition, x: Any, grad: Any, weight: Any, mean: Any, invstd: Any
    ) -> None:
        a, g, w = wide(fd, x, grad, weight)
        folded = [k in axes for k in range(a.ndim)]
        others = [k != channel for k in range(a.ndim)]
        count = fd.define_scalar(1)
        for axis in axes:
            count *= a.size(axis)
        share = fd.ops.reciprocal(count)
        centred = fd.ops.sub(a, fd.ops.broadcast(mean, folded))
        total = fd.ops.sum(g, dims=list(axes), keepdim=False)
        dot = fd.ops.sum(fd.ops.mul(g, centred), dims=list(axes), keepdim=False)
        scale = fd.ops.mul(fd.ops.mul(dot, share), fd.ops.mul(invstd, invstd))
        y = fd.ops.sub(g, fd.ops.mul(fd.ops.broadcast(scale, folded), centred))
        y = fd.ops.sub(y, fd.ops.broadcast(fd.ops.mul(total, share), folded))
        y = fd.ops.mul(y, fd.ops.mul(fd.ops.broadcast(w, others), fd.ops.broadcast(invstd, folded)))
        of_weight = fd.ops.mul(dot, invstd)
        if 0 not in axes:
            of_weight, total = (fd.ops.sum(t, 0, keepdim=False) for t in (of_weight, total))
        out(fd, x, y, of_weight, total)

    return define


def channel_norm_bwd_eager(axes: Sequence[int], channel: int) -> Callable[..., Tensors]:
    def eager(
        x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor
    ) -> Tensors:
        def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return channel_norm_eager(axes, channel)(x, w, b, b, b)[0]

        return gradients(norm, g, x, w, torch.zeros_like(w))

    return eager


def groupnorm(fd: FusionDefinition, x: Any, weight: Any, bias: Any) -> None:
    """Through [N, groups, C / groups, H, W], whose sizes are computed."""
    shape, groups = x.shape(), 4
    G = fd.define_scalar(groups, dtype=DataType.Int)
    C = fd.ops.div(x.size(1), G)
    V = fd.define_vector([x.size(0), groups, C, x.size(2), x.size(3)], dtype=DataType.Int)
    a = fd.ops.reshape(x, new_shape=V)
    a, w, b = wide(fd, a, weight, bias)
    var, mean = fd.ops.var_mean(a, dims=[2, 3, 4], correction=0, keepdim=False)
    V = fd.define_vector([a.size(0), groups, 1, 1, 1], dtype=DataType.Int)
    var = fd.ops.broadcast_in_dim(var, shape=V, broadcast_dims=[0, 1])
    mean = fd.ops.broadcast_in_dim(mean, shape=V, broadcast_dims=[0, 1])
    invstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    whole, every = a.shape(), [0, 1, 2, 3, 4]
    y = fd.ops.mul(
        fd.ops.sub(a, fd.ops.broadcast_in_dim(mean, shape=whole, broadcast_dims=every)),
        fd.ops.broadcast_in_dim(invstd, shape=whole, broadcast_dims=every),
    )
    for t, op in ((w, fd.ops.mul), (b, fd.ops.add)):
        C = fd.ops.div(t.size(0), G)
        t = fd.ops.reshape(t, new_shape=fd.define_vector([1, groups, C, 1, 1]))
        y = op(y, fd.ops.broadcast_in_dim(t, shape=whole, broadcast_dims=every))
    y = fd.ops.cast(y, dtype=x.dtype()) if x.dtype() in HALF else y
    fd.add_output(fd.ops.reshape(y, new_shape=shape))


def groupnorm_bwd(
    fd: FusionDefinition, x: Any, grad: Any, weight: Any, mean: Any, invstd: Any
) -> None:
    """Of the input, whose rows are a group, and of the weight and the bias, whose are a channel."""
    groups = 4
    G = fd.define_scalar(groups, dtype=DataType.Int)
    C = fd.ops.div(x.size(1), G)
    V = fd.define_vector([x.size(0), groups, C, x.size(2), x.size(3)], dtype=DataType.Int)
    a, g, w = wide(fd, fd.ops.reshape(x, new_shape=V), fd.ops.reshape(grad, new_shape=V), weight)
    w = fd.ops.reshape(w, new_shape=fd.define_vector([1, groups, C, 1, 1]))
    share = fd.define_scalar(1)
    for axis in (2, 3, 4):
        share *= a.size(axis)
    share = fd.ops.reciprocal(share)
    z, scaled = fd.ops.mul(fd.ops.sub(a, mean), invstd), fd.ops.mul(g, w)
    along = fd.ops.mul(fd.ops.sum(scaled, dims=[2, 3, 4], keepdim=True), share)
    dot = fd.ops.mul(fd.ops.sum(fd.ops.mul(scaled, z), dims=[2, 3, 4], keepdim=True), share)
    y = fd.ops.mul(fd.ops.sub(fd.ops.sub(scaled, along), fd.ops.mul(z, dot)), invstd)
    of_channels = [
        fd.ops.reshape(fd.ops.sum(t, dims=[0, 3, 4]), new_shape=weight.shape())
        for t in (fd.ops.mul(g, z), g)
    ]
    out(fd, x, fd.ops.reshape(y, new_shape=x.shape()), *of_channels)


def groupnorm_bwd_eager(
    x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor
) -> Tensors:
    return gradients(lambda x, w, b: F.group_norm(x, 4, w, b, EPS), g, x, w, torch.zeros_like(w))


def adaptive_layernorm(fd: FusionDefinition, x: Any, scale: Any, shift: Any) -> None:
    a, s, b = wide(fd, x, scale, shift)
    var, mean = fd.ops.var_mean(a, dims=[2], correction=0, keepdim=True)
    y = fd.ops.mul(fd.ops.sub(a, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-6)))
    V = fd.define_vector([a.size(0), 1, a.size(2)], dtype=DataType.Int)
    s, b = (fd.ops.broadcast_in_dim(t, shape=V, broadcast_dims=[0, 2]) for t in (s, b))
    out(fd, x, fd.ops.add(fd.ops.mul(y, fd.ops.add(1.0, s)), b))


def adaptive_layernorm_eager(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> Tensors:
    return [F.layer_norm(x, x.shape[2:], eps=1e-6) * (1 + s[:, None]) + b[:, None]]


def adaptive_layernorm_bwd(
    fd: FusionDefinition, x: Any, grad: Any, mean: Any, invstd: Any, scale: Any
) -> None:
    """Of the input, and of scale and shift, of which each sample has its own."""
    a, g, s = wide(fd, x, grad, scale)
    V = fd.define_vector([a.size(0), 1, a.size(2)], dtype=DataType.Int)
    s = fd.ops.add(1.0, fd.ops.broadcast_in_dim(s, shape=V, broadcast_dims=[0, 2]))
    z, scaled = fd.ops.mul(fd.ops.sub(a, mean), invstd), fd.ops.mul(g, s)
    share = fd.ops.reciprocal(a.size(2))
    along = fd.ops.mul(fd.ops.sum(scaled, dims=[2], keepdim=True), share)
    dot = fd.ops.mul(fd.ops.sum(fd.ops.mul(scaled, z), dims=[2], keepdim=True), share)
    y = fd.ops.mul(fd.ops.sub(fd.ops.sub(scaled, along), fd.ops.mul(z, dot)), invstd)
    out(fd, x, y, fd.ops.sum(fd.ops.mul(g, z), dims=[1]), fd.ops.sum(g, dims=[1]))


def adaptive_layernorm_bwd_eager(
    x: torch.Tensor, g: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, s: torch.Tensor
) -> Tensors:
    return gradients(
        lambda x, s, b: F.layer_norm(x, x.shape[2:], eps=EPS) * (1 + s[:, None]) + b[:, None],
        g, x, s, torch.zeros_like(s),
    )  # fmt: skip


def many_segments(fd: FusionDefinition, x: Any) -> None:
    """Sums and what scales by them, several times."""
    (a,) = wide(fd, x)
    for _ in range(3):
        a = fd.ops.segment_set(a)
        total = fd.ops.sum(fd.ops.exp(a), dims=[0], keepdim=False)
        a = fd.ops.div(a, fd.ops.broadcast(total, [True, False]))
    out(fd, x, a)


def many_segments_eager(x: torch.Tensor) -> Tensors:
    for _ in range(3):
        x = x / x.exp().sum(0)
    return [x]


# ---- rotary embeddings, embeddings


def turned(fd: FusionDefinition, x: Any, half: int) -> Any:
    """(-second half, first half), in the dtype of x, as traced models have it."""
    ends = [x.size(0), x.size(1), x.size(2)]
    first = fd.ops.slice(
        x,
        start_indices=[0, 0, 0, 0],
        end_indices=[*ends, half],
        strides=[1, 1, 1, 1],
        manual_normalization=0,
    )
    second = fd.ops.slice(
        x,
        start_indices=[0, 0, 0, half],
        end_indices=[*ends, 2 * half],
        strides=[1, 1, 1, 1],
        manual_normalization=0,
    )
    (negated,) = wide(fd, second)
    negated = fd.ops.cast(fd.ops.neg(negated), dtype=x.dtype())
    return fd.ops.cat([negated, first], dim=-1, manual_padding=0)


def rope(per_group: int, half: int) -> Callable[..., None]:
    """Queries and keys that lie with their heads inside; keys are repeated for their group."""

    def define(fd: FusionDefinition, q: Any, k: Any, cos: Any, sin: Any) -> None:
        found = []
        for x in (q, k):
            c, s = (
                fd.ops.broadcast_in_dim(t, shape=x.shape(), broadcast_dims=[0, 2, 3])
                for t in (cos, sin)
            )
            a, t, c, s = wide(fd, x, turned(fd, x, half), c, s)
            y = fd.ops.add(fd.ops.mul(a, c), fd.ops.mul(t, s))
            found.append(fd.ops.cast(y, dtype=x.dtype()))
        fd.add_output(found[0])
        keys = found[1]
        V = fd.define_vector([keys.size(0), keys.size(1), per_group, keys.size(2), keys.size(3)])
        repeated = fd.ops.broadcast_in_dim(keys, shape=V, broadcast_dims=[0, 1, 3, 4])
        repeated = fd.ops.reshape(repeated, new_shape=q.shape())
        fd.add_output(fd.ops.stride_order(repeated, stride_order=[3, 2, 1, 0]))

    return define


def rope_eager(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    per_group = q.shape[1] // k.shape[1]
    q, k = (turned_eager(x, cos[:, None], sin[:, None]) for x in (q, k))
    return [q, k.repeat_interleave(per_group, 1)]


def rope_bwd(half: int) -> Callable[..., None]:
    """The turn goes the other way, as pads that are added up."""

    def define(fd: FusionDefinition, grad: Any, cos: Any, sin: Any) -> None:
        c, s = (
            fd.ops.broadcast_in_dim(t, shape=grad.shape(), broadcast_dims=[0, 2, 3])
            for t in (cos, sin)
        )
        g, c, s = wide(fd, grad, c, s)
        through = fd.ops.mul(g, s)
        ends = [g.size(0), g.size(1), g.size(2)]
        first = fd.ops.slice(through, [0, 0, 0, 0], [*ends, half], manual_normalization=0)
        second = fd.ops.slice(through, [0, 0, 0, half], [*ends, 2 * half], manual_normalization=0)
        back = fd.ops.add(
            fd.ops.pad(second, [0, half]), fd.ops.pad(fd.ops.neg(first), [half, 0], 0.0)
        )
        out(fd, grad, fd.ops.add(fd.ops.mul(g, c), back))

    return define


def rope_bwd_eager(g: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return rope_eager(x, x, cos, sin)[0]

    return gradients(forward, g, torch.zeros_like(g))


def embedding(fd: FusionDefinition, index: Any, weight: Any) -> None:
    fd.add_output(fd.ops.embedding_fwd(index, weight, None, None, None, 0, 0))


# ---- all of them


def numbers(*shape: int, dtype: torch.dtype = B16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def masks(*shape: int) -> torch.Tensor:
    return numbers(*shape, dtype=F32, seed=9) < KEPT


def statistics(x: torch.Tensor, axes: Sequence[int], keepdim: bool = False) -> Tensors:
    """(mean, 1 / standard deviation) in float32."""
    x = x.float()
    var = x.var(axes, correction=0, keepdim=keepdim)
    return [x.mean(axes, keepdim=keepdim), (var + EPS).rsqrt()]


@dataclass(frozen=True, slots=True)
class Sizes:
    """matrix   rows and columns of a norm
    samples  samples and rows of each, of that many columns
    image    [N, C, H, W]
    scores   batch, heads, and how many positions see as many
    rotated  batch, time, heads of queries and of keys, and their size
    """

    matrix: tuple[int, int]
    samples: tuple[int, int]
    image: tuple[int, int, int, int]
    scores: tuple[int, int, int]
    rotated: tuple[int, int, int, int, int]


SMALL = Sizes((24, 40), (3, 7), (3, 8, 5, 6), (2, 3, 12), (2, 10, 6, 2, 16))
FULL = Sizes((8192, 4096), (8, 1024), (64, 256, 56, 56), (8, 32, 1024), (2, 4096, 24, 8, 128))


def benchmarks(sizes: Sizes = SMALL) -> list[Benchmark]:
    """Every workload once, in 16 bits and in 32 by turns."""
    R, C = sizes.matrix
    x, y, g = (numbers(R, C, seed=k) for k in range(3))
    x32, y32, g32 = (t.float() for t in (x, y, g))
    w, b = numbers(C, seed=3), numbers(C, seed=4)
    w32, b32 = w.float(), b.float()
    mean, invstd = statistics(x, [1])
    mask, labels = masks(R, C), torch.arange(R) * 7 % C
    root = (x.float().square().mean(1, keepdim=True) + EPS).sqrt()
    sum_ = y + x * mask / KEPT
    root_of_sum = (sum_.float().square().mean(1, keepdim=True) + EPS).sqrt()
    mean_of_sum, invstd_of_sum = statistics(sum_, [1])
    statistics_of_sum = mean_of_sum, invstd_of_sum[:, None]
    samples, sample_grad = (numbers(*sizes.samples, C, seed=k) for k in range(2))
    style, shift = (numbers(sizes.samples[0], C, seed=k) for k in range(2))
    image, image_grad = numbers(*sizes.image), numbers(*sizes.image, seed=1)
    image32, image_grad32 = image.float(), image_grad.float()
    channels = sizes.image[1]
    cw, cb = numbers(channels, seed=3), numbers(channels, seed=4)
    running = [torch.zeros(channels), torch.ones(channels)]
    B, H, T = sizes.scores
    scores, scores_mask = numbers(B, H, T, T), numbers(B, H, T, T, seed=1)
    attn = scores.float().softmax(-1)
    causal = torch.ones(T, T).tril().view(1, 1, T, T)
    NB, NT, heads, groups, width = sizes.rotated
    q = numbers(NB, NT, heads, width).transpose(1, 2)
    k = numbers(NB, NT, groups, width).transpose(1, 2)
    cos, sin = numbers(NB, NT, width, seed=1), numbers(NB, NT, width, seed=2)
    batch, instance, last = ([0, 2, 3], 1), ([2, 3], 1), ([0, 1, 2], 3)
    nhwc = image.permute(0, 2, 3, 1).contiguous()
    rows: list[tuple[Any, ...]] = [
        ("layernorm", layernorm, (x, w, b), layernorm_eager),
        ("layernorm_bwd", layernorm_bwd, (x, g, mean, invstd[:, None], w), layernorm_bwd_eager),
        ("rmsnorm", rmsnorm, (x32, w32), rms_eager),
        ("rmsnorm_bwd", rmsnorm_bwd, (x, root, g, w), rmsnorm_bwd_eager),
        ("rmsnorm_add", rmsnorm_add, (x, y, w), lambda x, r, w: [x + r, rms_eager(x + r, w)[0]]),
        ("softmax_inner", softmax(1), (x,), lambda x: [x.softmax(1)]),
        ("softmax_outer", softmax(0), (x32,), lambda x: [x.softmax(0)]),
        ("softmax_inner_bwd", softmax_bwd(1), (x32, g32), lambda y, g: softmax_bwd_eager(y, g, 1)),
        ("softmax_outer_bwd", softmax_bwd(0), (x, g), lambda y, g: softmax_bwd_eager(y, g, 0)),
        ("cross_entropy", cross_entropy, (x, labels),
         lambda x, t: [F.cross_entropy(x, t, reduction="none")]),
        ("bias_gelu", bias_gelu, (x, b), lambda x, b: [gelu(x + b)]),
        ("bias_gelu_bwd", bias_gelu_bwd, (x32, g32, b32),
         lambda x, g, b: gradients(lambda x: gelu(x + b), g, x)),
        ("gelu_bwd_column_sum", gelu_bwd_reduction(0), (x, g),
         lambda x, g: [gradients(gelu, g, x)[0].sum(0)]),
        ("gelu_bwd_row_sum", gelu_bwd_reduction(1), (x32, g32),
         lambda x, g: [gradients(gelu, g, x)[0].sum(1)]),
        ("silu_mul", silu_mul, (x, y), lambda x, y: [F.silu(x) * y]),
        ("silu_mul_bwd", silu_mul_bwd, (g, x, y),
         lambda g, x, y: gradients(lambda x, y: F.silu(x) * y, g, x, y)),
        ("scale_bias_relu", scale_bias_relu, (b32, w32, x32),
         lambda b, w, x: [F.relu(x * w + b), x * w + b > 0]),
        ("scale_bias_relu_bwd", scale_bias_relu_bwd, (w, mask, g),
         lambda w, m, g: [torch.where(m, g, 0.0) * w]),
        ("broadcast_add_rows", broadcast_add(0), (b, x), lambda b, x: [x + b]),
        ("broadcast_add_columns", broadcast_add(1), (numbers(R, dtype=F32), x32),
         lambda b, x: [x + b[:, None]]),
        ("pointwise_mul", pointwise_mul, (x, y), lambda x, y: [x * y]),
        ("many_pointwise_ops", many_pointwise, (x, y), many_pointwise_eager),
        ("transpose", transposed, (samples, sample_grad),
         lambda x, y: [F.relu(x + y).transpose(1, 2)]),
        ("reduction_rows", reduction(1), (x,), lambda x: [x.sum(1)]),
        ("reduction_columns", reduction(0), (x32,), lambda x: [x.sum(0)]),
        ("reduction_epilogue", reduction_epilogue, (x, b), lambda x, e: [x.sum(0) + e]),
        ("reduction_prologue", reduction_prologue, (x32, y32), lambda x, y: [(x.exp() * y).sum(1)]),
        ("dropout_layernorm", dropout_layernorm, (x, y, w, b), dropout_layernorm_eager),
        ("dropout_layernorm_bwd", dropout_layernorm_bwd,
         (x, y, mask, *statistics_of_sum, g, w), dropout_layernorm_bwd_eager),
        ("dropout_rmsnorm", dropout_rmsnorm, (x32, y32, w32), dropout_rmsnorm_eager),
        ("dropout_rmsnorm_bwd", dropout_rmsnorm_bwd, (x, y, mask, root_of_sum, g, w),
         dropout_rmsnorm_bwd_eager),
        ("huggingface_attn", hf_attention, (scores, scores_mask), hf_attention_eager),
        ("huggingface_attn_bwd", hf_attention_bwd(B, H),
         (numbers(B * H, T, T), attn.flatten(0, 1).to(B16), masks(B * H, T, T)),
         hf_attention_bwd_eager(B, H)),
        ("nanogpt_attn", nanogpt_attention, (scores, causal), nanogpt_attention_eager),
        ("nanogpt_attn_bwd", nanogpt_attention_bwd,
         (numbers(B, H, T, T, dtype=F32), attn, masks(B, H, T, T), masks(B, H, T, T)),
         nanogpt_attention_bwd_eager),
        ("batchnorm", channel_norm(*batch), (image, cw, cb, *running), channel_norm_eager(*batch)),
        ("batchnorm_bwd", channel_norm_bwd(*batch),
         (image, image_grad, cw, *statistics(image, batch[0])), channel_norm_bwd_eager(*batch)),
        ("batchnorm_channels_last", channel_norm(*last), (nhwc, cw, cb, *running),
         channel_norm_eager(*last)),
        ("instancenorm", channel_norm(*instance), (image32, cw.float(), cb.float(), *running),
         channel_norm_eager(*instance)),
        ("instancenorm_bwd", channel_norm_bwd(*instance),
         (image32, image_grad32, cw.float(), *statistics(image, instance[0])),
         channel_norm_bwd_eager(*instance)),
        ("groupnorm", groupnorm, (image, cw, cb), lambda x, w, b: [F.group_norm(x, 4, w, b, EPS)]),
        ("groupnorm_bwd", groupnorm_bwd,
         (image, image_grad, cw, *statistics(image.unflatten(1, (4, -1)), [2, 3, 4], keepdim=True)),
         groupnorm_bwd_eager),
        ("adaptive_layernorm", adaptive_layernorm,
         (samples, style, shift), adaptive_layernorm_eager),
        ("adaptive_layernorm_bwd", adaptive_layernorm_bwd,
         (samples, sample_grad, *statistics(samples, [2], keepdim=True), style),
         adaptive_layernorm_bwd_eager),
        ("many_segments", many_segments, (x32,), many_segments_eager),
        ("rope", rope(heads // groups, width // 2), (q, k, cos, sin), rope_eager, True),
        ("rope_bwd", rope_bwd(width // 2), (numbers(NB, heads, NT, width), cos, sin),
         rope_bwd_eager, True),
        ("embedding", embedding, (labels.view(4, -1), numbers(C, R)),
         lambda i, w: [F.embedding(i, w)]),
    ]  # fmt: skip
    return [Benchmark(*row) for row in rows]
