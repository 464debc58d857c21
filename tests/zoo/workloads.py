"""Programs that people run, as definitions: what plans, kernels and numbers are tested on.

A definition is a function over FusionBuilder whose arguments are its inputs, and comes with the
torch function that says what it means. Full sizes are planned from shapes alone; small ones run.
Arithmetic is in float32 between one cast in and one cast out, as nvFuser's users write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks import programs
from tests.zoo.rope import define_rope, define_rope_backward, rope, rope_backward
from tests.zoo.workload_definitions import (
    adamw,
    cat_relu,
    channels_last,
    constant_across_a_cut,
    gelu_backward,
    gelu_erf,
    gelu_tanh,
    heads_first,
    relu_slices,
    residual,
    residual_backward,
    sin_cos,
    swiglu,
    swiglu_backward,
    token_shift,
    transpose_add,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import dense_strides
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion

Float, BFloat16 = DataType.Float, DataType.BFloat16


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor: dense, `order` being its dimensions from the outermost in memory inwards."""

    shape: tuple[int, ...]
    dtype: DataType = BFloat16
    order: tuple[int, ...] | None = None
    positive: bool = False

    def make(self, device: torch.device) -> torch.Tensor:
        order = self.order or range(len(self.shape))
        numbers = torch.rand if self.positive else torch.randn
        memory = torch.empty_strided(
            self.shape, dense_strides(self.shape, order), dtype=self.dtype.torch, device=device
        )
        return memory.copy_(numbers(self.shape))


@dataclass(frozen=True, slots=True)
class Workload:
    """`define(builder, *inputs)` adds the outputs; `torch` takes the same inputs and returns them,
    or updates the inputs in place. `full` and `small` are arguments of `inputs`.
    """

    name: str
    define: Callable[..., None]
    torch: Callable[..., Any]
    inputs: Callable[[int], Sequence[Input]]
    full: int
    small: int

    def fusion(self, size: int, builder: FusionBuilder | None = None) -> Fusion:
        """For inputs of `inputs(size)`, in an empty builder."""
        builder = builder or FusionBuilder()
        views = [builder.tensor(x.shape, x.dtype, allocation=x.order) for x in self.inputs(size)]
        self.define(builder, *views)
        return builder.build()

    def tensors(self, size: int, device: torch.device) -> list[torch.Tensor]:
        return [x.make(device) for x in self.inputs(size)]

    def __str__(self) -> str:
        return self.name


def _matrices(count: int, columns: int, dtype: DataType = BFloat16) -> Any:
    return lambda rows: [Input((rows, columns), dtype)] * count


def _squares(rank: int, dtype: DataType) -> Any:
    return lambda side: [Input((side,) * rank, dtype)] * 2


def _with_bias(columns: int, gradients: int = 0) -> Any:
    return lambda rows: [
        Input((rows, columns)),
        Input((columns,)),
        *[Input((rows, columns))] * gradients,
    ]


def _rope(batch: int, groups: int, size: int, rotated: int) -> Any:
    return lambda time: [
        Input((batch, time, groups * 6 * size)),
        *[Input((time, rotated))] * 2,
    ]


def _rope_backward(batch: int, groups: int, size: int, rotated: int) -> Any:
    forward = _rope(batch, groups, size, rotated)
    return lambda time: [*forward(time)[1:], *[Input((batch, groups * 4, time, size))] * 2]


def llama_layer(width: int) -> list[tuple[int, ...]]:
    """The weights of a Llama-3-8B layer, `width` being 4096: 218 million parameters."""
    attention = [(width, width)] * 2 + [(width // 4, width)] * 2
    return [*attention, *[(width * 7 // 2, width)] * 3, *[(width,)] * 2]


def _adamw(width: int) -> list[Input]:
    shapes = llama_layer(width)
    moments = [Input(s, Float, positive=p) for p in (False, True) for s in shapes]
    return [Input(s) for _ in range(2) for s in shapes] + moments


def _relu_slices(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.relu(x)[:, 16:48][:, 8:16])


def _constant(x: torch.Tensor) -> torch.Tensor:
    return (x + 2.0) + 2.0


def _scaled(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * scale[:, None, None] + bias[:, None, None]).to(x.dtype)


def _exchanged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y + x.transpose(-1, -2)


def _rope_gradient(groups: int, *args: torch.Tensor) -> Any:
    cos, sin, dq, dk = args
    batch, _, time, size = dq.shape
    shape = (batch, time, groups * 6 * size)
    qkv = torch.empty(shape, dtype=dq.dtype, device=dq.device)
    return rope_backward(qkv, cos, sin, dq, dk, groups=groups, per_group=4)


def _gelu_backward(
    x: torch.Tensor, bias: torch.Tensor, dy: torch.Tensor, approximate: str
) -> tuple[torch.Tensor]:
    """The pointwise part: without the bias's gradient, which is a reduction."""
    return programs.gelu_backward(x, bias, dy, approximate)[:1]


WORKLOADS = (
    Workload("swiglu", swiglu, programs.swiglu, _matrices(2, 14336), 8192, 3),
    Workload(
        "swiglu_backward",
        swiglu_backward,
        programs.swiglu_backward,
        _matrices(3, 14336),
        8192,
        3,
    ),
    *(
        Workload(
            f"bias_gelu_{name}",
            forward,
            partial(programs.bias_gelu, approximate=approximate),
            _with_bias(16384),
            8192,
            3,
        )
        for name, forward, approximate in (("erf", gelu_erf, "none"), ("tanh", gelu_tanh, "tanh"))
    ),
    *(
        Workload(
            f"bias_gelu_{name}_backward",
            partial(gelu_backward, approximate=approximate),
            partial(_gelu_backward, approximate=approximate),
            _with_bias(16384, gradients=1),
            8192,
            3,
        )
        for name, approximate in (("erf", "none"), ("tanh", "tanh"))
    ),
    Workload("residual", residual, programs.residual, _matrices(4, 8192), 16384, 3),
    Workload(
        "residual_backward",
        residual_backward,
        programs.residual_backward,
        _matrices(6, 8192),
        16384,
        3,
    ),
    Workload("adamw", adamw, programs.adamw, _adamw, 4096, 16),
    Workload(
        "rope_2577",
        partial(define_rope, groups=4, values=True),
        partial(rope, groups=4, per_group=4, values=True),
        _rope(2, 4, 32, 8),
        1024,
        5,
    ),
    Workload(
        "rope_llama",
        partial(define_rope, groups=8, values=False),
        partial(rope, groups=8, per_group=4, values=False),
        _rope(1, 8, 128, 128),
        8192,
        3,
    ),
    Workload(
        "rope_llama_backward",
        partial(define_rope_backward, groups=8),
        partial(_rope_gradient, 8),
        _rope_backward(1, 8, 128, 128),
        8192,
        3,
    ),
    Workload("relu_slices", relu_slices, _relu_slices, _matrices(1, 64, Float), 1024, 3),
    Workload(
        "constant_across_a_cut",
        constant_across_a_cut,
        _constant,
        lambda count: [Input((count,), Float)],
        1024,
        100,
    ),
    Workload(
        "sin_cos",
        sin_cos,
        lambda x: (torch.sin(x), torch.cos(x)),
        _matrices(1, 4096, Float),
        8192,
        3,
    ),
    Workload(
        "heads_first",
        heads_first,
        programs.heads_first,
        lambda time: [Input((1, time, 64, 128)), Input((128,))],
        8192,
        3,
    ),
    Workload(
        "token_shift",
        token_shift,
        programs.token_shift,
        lambda time: [Input((4, time, 4096)), Input((4096,))],
        8192,
        3,
    ),
    *(
        Workload(
            f"{name}_{dtype.ctype}", transpose_add, _exchanged, _squares(rank, dtype), full, 40
        )
        for name, rank, full in (("transpose_add", 2, 16384), ("transpose_cube", 3, 512))
        for dtype in (BFloat16, Float)
    ),
    Workload("cat_relu", cat_relu, programs.cat_relu, _matrices(2, 8192), 8192, 3),
    Workload(
        "channels_last",
        channels_last,
        _scaled,
        lambda side: [
            Input((8, 64, side, side), BFloat16, (0, 2, 3, 1)),
            *[Input((64,), Float)] * 2,
        ],
        112,
        5,
    ),
)
BY_NAME = {w.name: w for w in WORKLOADS}
PARAMETERS = sum(math.prod(shape) for shape in llama_layer(4096))
