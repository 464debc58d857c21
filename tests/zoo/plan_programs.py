"""Programs in torch whose plans are held to figures: what they compute, on what, and the figures.

Limits are what was asked for, not what was found: the table of docs/thunder.md has that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.programs import batch_norm, batch_norm_last, column_sum, full_sum, transpose_add
from tests.frontends.thunder.programs import fake
from tests.zoo.rope import turned

BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Limit:
    """What the fusions of a forward or a backward may take: launches, and bytes / ideal."""

    kernels: int
    traffic: float = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """`function` on bf16 tensors of `shapes`, then those of `constants`, which want no gradient,
    then classes of the shapes `targets`.

    backward  None: the inputs need no gradients
    saved     bytes that a backward may get, besides inputs and results
    golden    the name of the file that holds its plans
    """

    name: str
    function: Callable[..., Any]
    shapes: Sequence[Sequence[int]]
    forward: Limit = Limit(1)
    backward: Limit | None = Limit(1)
    saved: int = 0
    constants: Sequence[Sequence[int]] = ()
    targets: Sequence[Sequence[int]] = ()
    golden: str = ""

    def __str__(self) -> str:
        return self.name

    def inputs(self) -> list[Tensor]:
        found = fake(*self.shapes, dtype=BF16, grad=self.backward is not None)
        found += fake(*self.constants, dtype=BF16)
        return found + fake(*self.targets, dtype=torch.int64)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def residual_norm(x: Tensor, r: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return h, rms_norm(h, weight)


def norm_of_sum(x: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x + r, weight)


def modulated(x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """AdaLN: scale and shift are of a sample."""
    return layer_norm(x, weight, bias) * (1 + scale) + shift


def dropout_norm(x: Tensor, r: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return residual_norm(F.dropout(x, 0.1), r, weight)


def norm_dropout(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.dropout(layer_norm(x, weight, bias), 0.5)


def relu_of_batch_norm_last(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Channels last before and behind; x [batch, height, width, channels]."""
    return F.relu(batch_norm_last(x, weight, bias)).permute(0, 2, 3, 1)


def channel_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As a ConvNeXt has it; x [batch, channels, height, width], the result with channels last."""
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, -1)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def permuted_add(x: Tensor, y: Tensor) -> Tensor:
    return x.permute(0, 2, 1) + y


def sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), torch.cos(x)


def qkv_bias(x: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return tuple(p + b for p, b in zip(x.chunk(3, -1), bias.chunk(3, -1), strict=True))


# ---- a transformer's layers

HEADS, SIZE, HIDDEN = 16, 64, 2816
WIDTH = HEADS * SIZE
BATCH, LENGTH = 2, 2048
MLP_WEIGHTS = [(WIDTH,), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)]
BLOCK_WEIGHTS = [(WIDTH,), (3 * WIDTH, WIDTH), (WIDTH, WIDTH), *MLP_WEIGHTS]
HIDDEN_STATE, TABLE = (BATCH, LENGTH, WIDTH), (LENGTH, SIZE)


def mlp(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    h = rms_norm(x, norm)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def llama_block(x: Tensor, *tensors: Tensor) -> Tensor:
    """RMSNorm, rotary attention, RMSNorm, SwiGLU, with residuals."""
    (norm, projection, out), others, (cos, sin) = tensors[:3], tensors[3:-2], tensors[-2:]
    batch, length, width = x.shape
    qkv = F.linear(rms_norm(x, norm), projection).view(batch, length, 3, HEADS, SIZE)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    q, k = turned(q, cos, sin), turned(k, cos, sin)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + F.linear(seen.transpose(1, 2).reshape(batch, length, width), out)
    return mlp(x, *others)


def llama_layers(x: Tensor, *tensors: Tensor) -> Tensor:
    weights, (cos, sin) = tensors[:-2], tensors[-2:]
    for k in range(0, len(weights), len(BLOCK_WEIGHTS)):
        x = llama_block(x, *weights[k : k + len(BLOCK_WEIGHTS)], cos, sin)
    return x


def llama_inputs(count: int) -> list[Tensor]:
    parameters = fake(HIDDEN_STATE, *BLOCK_WEIGHTS * count, dtype=BF16, grad=True)
    return parameters + fake(TABLE, TABLE, dtype=BF16)


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for k in range(0, len(weights), len(MLP_WEIGHTS)):
        x = mlp(x, *weights[k : k + len(MLP_WEIGHTS)])
    return x


def layer_inputs(count: int) -> list[Tensor]:
    return fake(HIDDEN_STATE, *MLP_WEIGHTS * count, dtype=BF16, grad=True)


# ---- the figures

N, D = 8192, 4096
NORM = [(N, D), (D,)]
IMAGE = [(64, 256, 56, 56), (256,), (256,)]
SMALL = [(16, 64), (64,)]
SAMPLE = (56, 1, 1024)
STATISTICS = 2 * 4 * 256
# Half of it are scores of attention, which a matrix product reads.
LLAMA_SAVED = 396_394_496

PROGRAMS = (
    Program("RMSNorm [8192, 4096]", rms_norm, NORM, Limit(1, 1.005), Limit(1, 1.04), 4 * N),
    Program(
        "LayerNorm [8192, 4096]", layer_norm, [*NORM, (D,)], Limit(1, 1.005), Limit(1, 1.04), 8 * N
    ),
    Program(
        "x + r, and its RMSNorm", residual_norm, [(N, D), *NORM], Limit(1), Limit(1, 1.04), 4 * N
    ),
    Program("softmax [4096, 32768]", softmax, [(D, 8 * D)]),
    Program("log_softmax [4096, 32768]", log_softmax, [(D, 8 * D)]),
    Program(
        "cross-entropy [4096, 128256]",
        F.cross_entropy,
        [(4096, 128256)],
        Limit(1, 1.005),
        Limit(1, 1.005),
        saved=8 + 8 * 4096,
        targets=[(4096,)],
    ),
    Program(
        "bias + GELU [8192, 16384]", bias_gelu, [(N, 2 * N), (2 * N,)], backward=Limit(1, 1.02)
    ),
    Program("SwiGLU [8192, 14336]", swiglu, [(N, 14336)] * 2),
    Program("column sum [65536, 4096]", column_sum, [(65536, 4096)], Limit(1, 1.01), Limit(0)),
    Program("sum of 2^28 elements", full_sum, [(1 << 28,)], Limit(1, 1.01), Limit(0)),
    Program(
        "transpose + add [16384, 16384]", transpose_add, [(2 * N, 2 * N)] * 2, Limit(1), Limit(0)
    ),
    Program("permuted add [512, 512, 512]", permuted_add, [(512,) * 3] * 2, Limit(1), Limit(0)),
    Program("BatchNorm [64, 256, 56, 56]", batch_norm, IMAGE, saved=STATISTICS),
    Program(
        "BatchNorm, channels last",
        batch_norm_last,
        [(64, 56, 56, 256), (256,), (256,)],
        # Few long rows side by side in memory: blocks share them, and what they fold is read again.
        Limit(2, 1.501),
        # The gradient lies in torch's order, what was normalised has channels last.
        Limit(2, 1.667),
        STATISTICS,
    ),
    Program(
        "BatchNorm and ReLU, channels last",
        relu_of_batch_norm_last,
        [(64, 56, 56, 256), (256,), (256,)],
        Limit(2, 1.501),
        Limit(2, 1.667),
        STATISTICS,
    ),
    Program(
        "LayerNorm of channels [64, 256, 56, 56]",
        channel_norm,
        IMAGE,
        # Between convolutions and products: read with channels first, written with channels last.
        Limit(2, 2.0),
        Limit(2, 1.667),
        8 * 64 * 56 * 56,
    ),
    Program("sin(x), cos(x)", sin_cos, [(N, D)], golden="sin_cos"),
    Program(
        "q, k, v of one projection, + bias",
        qkv_bias,
        [(N, 3 * D), (3 * D,)],
        backward=Limit(1, 1.0),
        golden="qkv",
    ),
    Program(
        "LayerNorm, modulated [56, 1024, 1024]",
        modulated,
        [(56, 1024, 1024), SAMPLE, SAMPLE, (1024,), (1024,)],
        Limit(1, 1.03),
        Limit(1, 1.03),
        8 * 56 * 1024,
        golden="modulated_norm",
    ),
    Program(
        "dropout(x) + r, and its RMSNorm",
        dropout_norm,
        [(D, D), (D, D), (D,)],
        Limit(1, 1.02),
        Limit(1, 1.05),
        4 * D,
        golden="dropout_norm",
    ),
    Program(
        "LayerNorm, dropout [16, 64]",
        norm_dropout,
        [*SMALL, (64,)],
        saved=128,
        golden="norm_dropout",
    ),
    Program(
        "RMSNorm of x + r [16, 64]", norm_of_sum, [(16, 64), *SMALL], saved=64, golden="norm_of_sum"
    ),
    Program(
        "Llama block [2, 2048, 1024]",
        llama_block,
        [HIDDEN_STATE, *BLOCK_WEIGHTS],
        Limit(6, 1.05),
        Limit(7, 1.10),
        LLAMA_SAVED,
        [TABLE, TABLE],
        golden="llama_block",
    ),
)
BLOCK = next(p for p in PROGRAMS if p.function is llama_block)
