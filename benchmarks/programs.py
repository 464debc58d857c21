"""What is measured, as torch functions: the parts of language models that are no matrix products.

Each program is stated once: eager torch, torch.compile and thunder_fuser (through Thunder) all get
this function, and the truth is the same function on float64.  A backward program writes gradients
out, since one call must be one region; its truth is autograd's gradient of the forward.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# ---- forward


def bias_gelu(x: Tensor, bias: Tensor, approximate: str) -> tuple[Tensor]:
    return (functional.gelu(x + bias, approximate=approximate),)


def swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor]:
    return (functional.silu(gate) * up,)


def residual(x: Tensor, attention: Tensor, mlp: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    h = x + attention
    return h, h + mlp * torch.sigmoid(gate)


def adamw(*tensors: Tensor) -> None:
    """One step over parameters, gradients, first and second moments, in place."""
    rate, beta1, beta2, eps, decay, step = 1e-3, 0.9, 0.95, 1e-8, 0.1, 10
    count = len(tensors) // 4
    for k in range(count):
        p, g, m, v = tensors[k::count]
        new_m = beta1 * m + (1 - beta1) * g
        new_v = beta2 * v + (1 - beta2) * (g * g)
        scaled = (new_m / (1 - beta1**step)) / (torch.sqrt(new_v / (1 - beta2**step)) + eps)
        p.copy_(p * (1 - rate * decay) - rate * scaled)
        m.copy_(new_m)
        v.copy_(new_v)


def cat_relu(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.cat((x, y), dim=-1))


def token_shift(x: Tensor, mix: Tensor) -> Tensor:
    """Every position mixed with the one before it; x [batch, time, channels]."""
    before = functional.pad(x[:, :-1], (0, 0, 1, 0))
    return x + (before - x) * mix


def heads_first(x: Tensor, scale: Tensor) -> Tensor:
    """[batch, time, heads, size] -> [batch, heads, time, size], scaled."""
    return (x * scale).transpose(1, 2).contiguous()


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


# ---- forward, with reductions

EPSILON = 1e-5


def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor]:
    return (functional.rms_norm(x, weight.shape, weight, EPSILON),)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    return (functional.layer_norm(x, weight.shape, weight, bias, EPSILON),)


def residual_rms_norm(x: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + branch
    return h, functional.rms_norm(h, weight.shape, weight, EPSILON)


def softmax(x: Tensor) -> tuple[Tensor]:
    return (functional.softmax(x, dim=-1),)


def log_softmax(x: Tensor) -> tuple[Tensor]:
    return (functional.log_softmax(x, dim=-1),)


def cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor]:
    """The mean over rows; logits [rows, classes], target [rows]."""
    return (functional.cross_entropy(logits, target),)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalised by the statistics of the batch; x [batch, channels, height, width]."""
    return functional.batch_norm(x, None, None, weight, bias, training=True, eps=EPSILON)


def batch_norm_last(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same with channels last in memory; x [batch, height, width, channels]."""
    return batch_norm(x.permute(0, 3, 1, 2), weight, bias)


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def full_sum(x: Tensor) -> Tensor:
    return x.sum()


def permuted_sum(x: Tensor, y: Tensor) -> Tensor:
    """The last two dimensions change places, with pointwise work around it."""
    return x.transpose(1, 2) * 2 + y


# ---- backward: what the forward saves (inputs, outputs, statistics), then gradients of its outputs


def wide(*tensors: Tensor) -> list[Tensor]:
    """At least fp32: gradients are computed there and rounded once, as torch rounds its own."""
    return [t.float() if t.element_size() < 4 else t for t in tensors]


def gelu_backward(x: Tensor, bias: Tensor, dy: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    """Of x and the bias."""
    h, g = wide(x + bias, dy)
    if approximate == "none":
        density = torch.exp(-0.5 * h * h) * 0.3989422804014327
        slope = 0.5 * (1 + torch.erf(h * 0.7071067811865476)) + h * density
    else:
        t = torch.tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))
        inner = 0.7978845608028654 * (1 + 3 * 0.044715 * h * h)
        slope = 0.5 * (1 + t) + 0.5 * h * (1 - t * t) * inner
    dh = g * slope
    return dh.to(x.dtype), dh.sum(0).to(bias.dtype)


def rms_norm_backward(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Of x and the weight.  The statistics are computed again: the rows are read anyway."""
    h, w, g = wide(x, weight, dy)
    scale = torch.rsqrt((h * h).mean(-1, keepdim=True) + EPSILON)
    normal, weighted = h * scale, g * w
    along = (weighted * normal).mean(-1, keepdim=True)
    dx = (weighted - normal * along) * scale
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype)


def layer_norm_backward(
    x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, the weight and the bias."""
    h, w, g = wide(x, weight, dy)
    var, mean = torch.var_mean(h, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(var + EPSILON)
    normal, weighted = (h - mean) * scale, g * w
    along = weighted.mean(-1, keepdim=True)
    along = along + normal * (weighted * normal).mean(-1, keepdim=True)
    dx = (weighted - along) * scale
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype), g.sum(0).to(bias.dtype)


def softmax_backward(y: Tensor, dy: Tensor) -> tuple[Tensor]:
    """From the result of the forward, as torch's own and through Thunder."""
    p, g = wide(y, dy)
    return ((p * (g - (p * g).sum(-1, keepdim=True))).to(y.dtype),)


def log_softmax_backward(y: Tensor, dy: Tensor) -> tuple[Tensor]:
    """From the result of the forward, as torch's own and through Thunder."""
    p, g = wide(y, dy)
    return ((g - torch.exp(p) * g.sum(-1, keepdim=True)).to(y.dtype),)


IGNORED = -100
"""The target of a row that has no loss, and is not counted."""


def saved_by_cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Through Thunder: the inputs, the logarithm of each row's sum of exponentials, and how many
    rows are counted.
    """
    (x,) = wide(logits)
    return logits, target, torch.logsumexp(x, -1), (target != IGNORED).sum()


def cross_entropy_backward(
    logits: Tensor, target: Tensor, logsumexp: Tensor, counted: Tensor, dy: Tensor
) -> tuple[Tensor]:
    x, g = wide(logits, dy)
    classes = torch.arange(logits.shape[-1], device=logits.device)
    slope = torch.exp(x - logsumexp[:, None]) - (classes == target[:, None]).to(x.dtype)
    scale = torch.where(target != IGNORED, g / counted, 0.0)
    return ((slope * scale[:, None]).to(logits.dtype),)


def swiglu_backward(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    x, y, g = wide(gate, up, dy)
    s = torch.sigmoid(x)
    return (g * y * (s * (1 + x * (1 - s)))).to(gate.dtype), (g * (x * s)).to(up.dtype)


def residual_backward(
    x: Tensor, attention: Tensor, mlp: Tensor, gate: Tensor, dh: Tensor, dy: Tensor
) -> tuple[Tensor, ...]:
    """Of x (attention has the same), mlp and gate."""
    m, z, g = wide(mlp, gate, dy)
    s = torch.sigmoid(z)
    return dh + dy, (g * s).to(mlp.dtype), (g * m * (s * (1 - s))).to(gate.dtype)
