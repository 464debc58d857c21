"""Normalisations and softmax as definitions, forward and backward, against what torch computes.

Backward definitions take the saved statistics (or the saved output) as inputs. Weights have shape
[1, columns], statistics [rows, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.frontends.definition.operations.ops import Ops

Float = DataType.Float
EPSILON = 1e-5

Define = Callable[..., list[Tensor]]
Eager = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Norm:
    """operands   of `define` and `eager`, a letter each: x like the rows, w a row, s one value each
    results    letters likewise
    """

    name: str
    define: Define
    eager: Eager
    operands: str
    results: str

    def shape(self, letter: str, rows: int, columns: int) -> list[int]:
        return {"x": [rows, columns], "w": [1, columns], "s": [rows, 1]}[letter]

    def definition(self, rows: int, columns: int, dtype: DataType) -> FusionDefinition:
        """With static sizes; statistics are Float."""
        with FusionDefinition() as fd:
            operands = [
                fd.define_tensor(
                    self.shape(letter, rows, columns), True, Float if letter == "s" else dtype
                )
                for letter in self.operands
            ]
            wide = [fd.ops.cast(t, Float) for t in operands]
            for letter, result in zip(self.results, self.define(fd.ops, *wide), strict=True):
                fd.add_output(result if letter == "s" else fd.ops.cast(result, dtype))
        return fd

    def inputs(self, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(columns)
        return [
            torch.randn(self.shape(letter, rows, columns), generator=generator)
            .abs_()
            .add_(0.5)
            .to(torch.float32 if letter == "s" else dtype)
            if letter == "s"
            else torch.randn(self.shape(letter, rows, columns), generator=generator).to(dtype)
            for letter in self.operands
        ]


def _mean(o: Ops, x: Tensor) -> Tensor:
    return o.div(o.sum(x, [1], keepdim=True), x.size(1))


def rms_norm(o: Ops, x: Tensor, w: Tensor) -> list[Tensor]:
    scale = o.rsqrt(o.add(_mean(o, o.mul(x, x)), EPSILON))
    return [o.mul(o.mul(x, scale), w), scale]


def rms_norm_backward(o: Ops, x: Tensor, w: Tensor, dy: Tensor, scale: Tensor) -> list[Tensor]:
    g, xhat = o.mul(dy, w), o.mul(x, scale)
    return [o.mul(o.sub(g, o.mul(xhat, _mean(o, o.mul(g, xhat)))), scale)]


def layer_norm(o: Ops, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    var, mean = o.var_mean(x, [1], 0, True)
    scale = o.rsqrt(o.add(var, EPSILON))
    return [o.add(o.mul(o.mul(o.sub(x, mean), scale), w), b), mean, scale]


def layer_norm_backward(
    o: Ops, x: Tensor, w: Tensor, dy: Tensor, mean: Tensor, scale: Tensor
) -> list[Tensor]:
    g, xhat = o.mul(dy, w), o.mul(o.sub(x, mean), scale)
    along = o.add(_mean(o, g), o.mul(xhat, _mean(o, o.mul(g, xhat))))
    return [o.mul(o.sub(g, along), scale)]


def _softmax(o: Ops, x: Tensor) -> list[Tensor]:
    e = o.exp(o.sub(x, o.max(x, [1], keepdim=True)))
    return [o.div(e, o.sum(e, [1], keepdim=True))]


def _log_softmax(o: Ops, x: Tensor) -> list[Tensor]:
    shifted = o.sub(x, o.max(x, [1], keepdim=True))
    return [o.sub(shifted, o.log(o.sum(o.exp(shifted), [1], keepdim=True)))]


def _softmax_backward(o: Ops, y: Tensor, dy: Tensor) -> list[Tensor]:
    p = o.mul(y, dy)
    return [o.sub(p, o.mul(y, o.sum(p, [1], keepdim=True)))]


def eager_rms_norm(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale = torch.rsqrt(x.mul(x).mean(1, True) + EPSILON)
    return x * scale * w, scale


def eager_rms_norm_backward(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    g, xhat = dy * w, x * scale
    return ((g - xhat * (g * xhat).mean(1, True)) * scale,)


def eager_layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    scale = torch.rsqrt(var + EPSILON)
    return (x - mean) * scale * w + b, mean, scale


def eager_layer_norm_backward(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    g, xhat = dy * w, (x - mean) * scale
    return ((g - g.mean(1, True) - xhat * (g * xhat).mean(1, True)) * scale,)


def _eager_softmax_backward(y: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    p = y * dy
    return (p - y * p.sum(1, True),)


NORMS: Sequence[Norm] = (
    Norm("rms_norm", rms_norm, eager_rms_norm, "xw", "xs"),
    Norm("rms_norm_backward", rms_norm_backward, eager_rms_norm_backward, "xwxs", "x"),
    Norm("layer_norm", layer_norm, eager_layer_norm, "xww", "xss"),
    Norm("layer_norm_backward", layer_norm_backward, eager_layer_norm_backward, "xwxss", "x"),
    Norm("softmax", _softmax, lambda x: (torch.softmax(x, 1),), "x", "x"),
    Norm("log_softmax", _log_softmax, lambda x: (torch.log_softmax(x, 1),), "x", "x"),
    Norm("softmax_backward", _softmax_backward, _eager_softmax_backward, "xx", "x"),
)
