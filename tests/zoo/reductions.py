"""Training's reductions with totals, as definitions against what torch computes.

Backward definitions take the saved statistics as inputs, and give the gradients of weight and bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests.zoo.norms import (
    EPSILON,
    eager_layer_norm_backward,
    eager_rms_norm,
    eager_rms_norm_backward,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.frontends.definition.operations.ops import Ops

Float = DataType.Float

Define = Callable[..., list[Tensor]]
Eager = Callable[..., tuple[torch.Tensor, ...]]
Shape = Callable[[int, int], list[int]]

SHAPES: dict[str, Shape] = {
    "x": lambda rows, columns: [rows, columns],
    "w": lambda rows, columns: [1, columns],
    "s": lambda rows, columns: [rows, 1],
}


@dataclass(frozen=True)
class Reduction:
    """define and eager take what `operands` says, a letter each: x has the rows, w is one of them,
    s has one Float of each.

    traffic  bytes, counted by hand, of the kernel for a number of rows and columns in bf16
    full     rows and columns of the size that a GPU is measured with
    """

    name: str
    define: Define
    eager: Eager
    operands: str
    traffic: Callable[[int, int], int]
    full: tuple[int, int]

    def definition(self, rows: int, columns: int, dtype: DataType) -> FusionDefinition:
        """With static sizes; results have the operands' dtype, but for Float statistics."""
        with FusionDefinition() as fd:
            operands = [
                fd.define_tensor(
                    SHAPES[letter](rows, columns), True, Float if letter == "s" else dtype
                )
                for letter in self.operands
            ]
            wide = [fd.ops.cast(t, Float) for t in operands]
            for result in self.define(fd.ops, *wide):
                fd.add_output(fd.ops.cast(result, dtype))
        return fd

    def inputs(self, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(rows + columns)
        made = [
            torch.randn(SHAPES[letter](rows, columns), generator=generator)
            for letter in self.operands
        ]
        return [
            x.abs() + 0.5 if letter == "s" else x.to(dtype)
            for x, letter in zip(made, self.operands, strict=True)
        ]


def _rms_backward(o: Ops, x: Tensor, w: Tensor, dy: Tensor, scale: Tensor) -> list[Tensor]:
    dx = rms_norm_backward(o, x, w, dy, scale)
    return [*dx, o.sum(o.mul(dy, o.mul(x, scale)), [0])]


def _layer_backward(
    o: Ops, x: Tensor, w: Tensor, dy: Tensor, mean: Tensor, scale: Tensor
) -> list[Tensor]:
    dx = layer_norm_backward(o, x, w, dy, mean, scale)
    xhat = o.mul(o.sub(x, mean), scale)
    return [*dx, o.sum(o.mul(dy, xhat), [0]), o.sum(dy, [0])]


def _layer_backward_anew(o: Ops, x: Tensor, w: Tensor, dy: Tensor) -> list[Tensor]:
    """With statistics that are computed from the rows once more: four folds in three stages."""
    mean = o.div(o.sum(x, [1], True), x.size(1))
    centred = o.sub(x, mean)
    variance = o.div(o.sum(o.mul(centred, centred), [1], True), x.size(1))
    return _layer_backward(o, x, w, dy, mean, o.rsqrt(o.add(variance, EPSILON)))


def _gelu_backward(o: Ops, x: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
    z = o.add(x, b)
    cdf = o.mul(0.5, o.add(1.0, o.erf(o.mul(z, 0.5**0.5))))
    pdf = o.mul(o.exp(o.mul(-0.5, o.mul(z, z))), 0.3989422804014327)
    dz = o.mul(dy, o.add(cdf, o.mul(z, pdf)))
    return [dz, o.sum(dz, [0])]


def _residual_rms(o: Ops, x: Tensor, r: Tensor, w: Tensor) -> list[Tensor]:
    h = o.add(x, r)
    return [h, rms_norm(o, h, w)[0]]


def _loss(o: Ops, x: Tensor, y: Tensor) -> list[Tensor]:
    """The mean over rows of a squared distance's root: a total of values of rows."""
    d = o.sub(x, y)
    rows = o.sqrt(o.sum(o.mul(d, d), [1]))
    return [o.div(o.sum(rows, [0]), x.size(0))]


def _eager_rms_backward(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    dx = eager_rms_norm_backward(x, w, dy, scale)
    return *dx, (dy * (x * scale)).sum(0)


def _eager_layer_backward(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    dx = eager_layer_norm_backward(x, w, dy, mean, scale)
    return *dx, (dy * ((x - mean) * scale)).sum(0), dy.sum(0)


def _eager_layer_backward_anew(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    return _eager_layer_backward(x, w, dy, mean, torch.rsqrt(variance + EPSILON))


def _eager_gelu_backward(
    x: torch.Tensor, b: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    dz = torch.ops.aten.gelu_backward(dy, x + b)
    return dz, dz.sum(0)


def _eager_residual_rms(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    h = x + r
    return h, eager_rms_norm(h, w)[0]


REDUCTIONS: Sequence[Reduction] = (
    Reduction(
        "rms_norm_backward",
        _rms_backward,
        _eager_rms_backward,
        "xwxs",
        lambda r, c: 3 * 2 * r * c + 2 * 2 * c + 4 * r,
        (8192, 4096),
    ),
    Reduction(
        "layer_norm_backward",
        _layer_backward,
        _eager_layer_backward,
        "xwxss",
        lambda r, c: 3 * 2 * r * c + 3 * 2 * c + 2 * 4 * r,
        (8192, 4096),
    ),
    Reduction(
        "gelu_backward",
        _gelu_backward,
        _eager_gelu_backward,
        "xwx",
        lambda r, c: 3 * 2 * r * c + 2 * 2 * c,
        (8192, 16384),
    ),
    Reduction(
        "residual_rms_norm",
        _residual_rms,
        _eager_residual_rms,
        "xxw",
        lambda r, c: 4 * 2 * r * c + 2 * c,
        (8192, 4096),
    ),
    Reduction(
        "column_sum",
        lambda o, x: [o.sum(x, [0])],
        lambda x: (x.sum(0),),
        "x",
        lambda r, c: 2 * r * c + 2 * c,
        (65536, 4096),
    ),
    Reduction(
        "full_sum",
        lambda o, x: [o.sum(x)],
        lambda x: (x.sum(),),
        "x",
        lambda r, c: 2 * r * c + 2,
        (65536, 4096),
    ),
    Reduction(
        "loss",
        _loss,
        lambda x, y: ((x - y).square().sum(1).sqrt().mean(),),
        "xx",
        lambda r, c: 2 * 2 * r * c + 2,
        (4096, 8192),
    ),
    Reduction(
        "layer_norm_backward_anew",
        _layer_backward_anew,
        _eager_layer_backward_anew,
        "xwx",
        lambda r, c: 3 * 2 * r * c + 3 * 2 * c,
        (8192, 4096),
    ),
)
