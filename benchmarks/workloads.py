"""The rows of the table: programs with their shapes, in the sizes that they are measured in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import programs
from tests.zoo import rope

Program = Callable[..., Any]
Size = Literal["full", "host", "small"]
"""full: what a GPU is measured with; host: what a CPU is; small: for the tests of this folder."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument: normal numbers, or uniform ones in [0, 1) where none may be negative;
    with `below`, integers from 0 on that are less.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    positive: bool = False
    below: int = 0

    def make(self, device: torch.device | str) -> Tensor:
        if self.below:
            return torch.randint(self.below, self.shape, device=device, dtype=self.dtype)
        make = torch.rand if self.positive else torch.randn
        return make(self.shape, device=device).to(self.dtype)


Inputs = Callable[[int], Sequence[Input]]
Rows = Mapping[Size, int]


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table.

    program   takes the inputs; for a backward, what its forward saves, and then the gradients of
              the forward's outputs
    inputs    those of the forward, for a number of rows
    rows      the number of rows of each size
    forward   for a backward: the function that it is the gradient of
    wrt       for a backward: positions of the inputs whose gradients the program returns
    gradient  for a backward that takes outputs: torch's own, which autograd calls
    saved     for a backward: what its forward saves, a function of the forward's inputs: these
              first, unless there is a `gradient`; without, these alone
    """

    name: str
    program: Program
    inputs: Inputs
    rows: Rows
    forward: Program | None = None
    wrt: tuple[int, ...] = ()
    gradient: Program | None = None
    saved: Program | None = None

    def arguments(self, size: Size, device: torch.device | str) -> list[Tensor]:
        """Random arguments of the program; fake ones under FakeTensorMode."""
        return self.arguments_for([spec.make(device) for spec in self.inputs(self.rows[size])])

    def arguments_for(self, given: list[Tensor]) -> list[Tensor]:
        """Those of the program where these are the forward's inputs; gradients are random."""
        if self.forward is None:
            return given
        saved = list(self.saved(*given)) if self.saved else given
        return saved + [torch.randn_like(y) for y in self.forward(*given)]

    def in_torch(self, arguments: Sequence[Tensor]) -> Callable[[], Any]:
        """What torch itself runs for this: the program, or autograd through the forward."""
        if self.forward is None or self.gradient:
            return partial(self.gradient or self.program, *arguments)
        inputs = [t.detach() for t in arguments[: len(self.inputs(1))]]
        leaves = [inputs[k].requires_grad_() for k in self.wrt]
        outputs = self.forward(*inputs)
        gradients = arguments[-len(outputs) :]
        return lambda: torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)


# ---- shapes


def matrices(count: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    return lambda rows: [Input((rows, columns), dtype)] * count


def _with_bias(columns: int) -> Inputs:
    return lambda rows: [Input((rows, columns)), Input((columns,))]


def _rope(batch: int, width: int, rotated: int) -> Inputs:
    return lambda time: [Input((batch, time, width)), *[Input((time, rotated))] * 2]


def _adamw(width: int) -> Sequence[Input]:
    """The weights of a Llama-3-8B layer, `width` being 4096: 218 million parameters."""
    attention = [(width, width)] * 2 + [(width // 4, width)] * 2
    shapes = [*attention, *[(width * 7 // 2, width)] * 3, *[(width,)] * 2]
    kinds = [(torch.bfloat16, False)] * 2 + [(torch.float32, False), (torch.float32, True)]
    return [Input(shape, dtype, positive) for dtype, positive in kinds for shape in shapes]


def _norm(columns: int, weights: int, rows: int = 1) -> Inputs:
    """`rows` tensors of rows, then `weights` with one element a column."""
    return lambda count: [Input((count, columns))] * rows + [Input((columns,))] * weights


def _images(last: bool) -> Inputs:
    def inputs(batch: int) -> Sequence[Input]:
        sizes = (batch, 56, 56, 256) if last else (batch, 256, 56, 56)
        return [Input(sizes), Input((256,)), Input((256,))]

    return inputs


def _classes(classes: int) -> Inputs:
    """Logits, and the class that each row has."""
    return lambda rows: [Input((rows, classes)), Input((rows,), torch.int64, below=classes)]


def _rows(full: int, host: int, small: int) -> Rows:
    return {"full": full, "host": host, "small": small}


# ---- rows


def _both(
    name: str,
    forward: Program,
    backward: Program,
    inputs: Inputs,
    rows: Rows,
    wrt: tuple[int, ...] = (0,),
    gradient: Program | None = None,
    saved: Program | None = None,
) -> tuple[Workload, Workload]:
    return (
        Workload(name, forward, inputs, rows),
        Workload(f"{name} backward", backward, inputs, rows, forward, wrt, gradient, saved),
    )


def _from_result(
    name: str, forward: Program, backward: Program, gradient: Program
) -> tuple[Workload, Workload]:
    """Of rows of logits, whose gradient is one of the result."""
    inputs = matrices(1, 32768)
    return _both(name, forward, backward, inputs, _WIDE, gradient=gradient, saved=forward)


def _gelu(name: str, approximate: str) -> tuple[Workload, Workload]:
    forward = partial(programs.bias_gelu, approximate=approximate)
    backward = partial(programs.gelu_backward, approximate=approximate)
    return _both(name, forward, backward, _with_bias(16384), _TALL, (0, 1))


def _rotations(
    name: str, groups: int, values: bool, inputs: Inputs, rows: Rows
) -> tuple[Workload, Workload]:
    forward = partial(rope.rope, groups=groups, per_group=4, values=values)
    backward = partial(rope.rope_backward, groups=groups, per_group=4)
    return _both(name, forward, backward, inputs, rows)


def _of_softmax(y: Tensor, dy: Tensor) -> tuple[Tensor]:
    return (torch._softmax_backward_data(dy, y, -1, y.dtype),)


def _of_log_softmax(y: Tensor, dy: Tensor) -> tuple[Tensor]:
    return (torch._log_softmax_backward_data(dy, y, -1, y.dtype),)


_TALL = _rows(8192, 512, 3)
_LONG = _rows(8192, 1024, 4)
_WIDE = _rows(4096, 256, 3)
_RESIDUAL = (programs.residual, programs.residual_backward)
_RMS = (programs.rms_norm, programs.rms_norm_backward)
_LAYER = (programs.layer_norm, programs.layer_norm_backward)
_SOFTMAX = (programs.softmax, programs.softmax_backward)
_LOG_SOFTMAX = (programs.log_softmax, programs.log_softmax_backward)
_LOSS = (programs.cross_entropy, programs.cross_entropy_backward)

WORKLOADS: tuple[Workload, ...] = (
    # Single operations are controls: nothing can be fused.
    Workload("relu", torch.relu, matrices(1, 16384), _TALL),
    Workload("exp", torch.exp, matrices(1, 16384), _TALL),
    Workload("add", torch.add, matrices(2, 16384), _TALL),
    Workload("add float32", torch.add, matrices(2, 16384, torch.float32), _TALL),
    *_gelu("bias + GELU (tanh)", "tanh"),
    *_gelu("bias + GELU (erf)", "none"),
    *_both("SwiGLU", programs.swiglu, programs.swiglu_backward, matrices(2, 14336), _TALL, (0, 1)),
    *_both("residual chain", *_RESIDUAL, matrices(4, 8192), _LONG, (0, 2, 3)),
    *_rotations("RoPE of Fuser 2577", 4, True, _rope(2, 768, 8), _rows(1024, 1024, 4)),
    *_rotations("RoPE of Llama-3-8B", 8, False, _rope(1, 6144, 128), _LONG),
    Workload("AdamW, 9 tensors", programs.adamw, _adamw, _rows(4096, 768, 16)),
    Workload("cat + relu", programs.cat_relu, matrices(2, 8192), _LONG),
    Workload(
        "token shift",
        programs.token_shift,
        lambda time: [Input((4, time, 4096)), Input((4096,))],
        _TALL,
    ),
    Workload(
        "heads first",
        programs.heads_first,
        lambda time: [Input((1, time, 64, 128)), Input((128,))],
        _LONG,
    ),
    Workload(
        "transpose + add",
        programs.transpose_add,
        lambda side: [Input((side, side))] * 2,
        _rows(16384, 4096, 24),
    ),
    Workload(
        "permuted sum",
        programs.permuted_sum,
        lambda side: [Input((side, side, side))] * 2,
        _rows(512, 256, 12),
    ),
    *_both("RMSNorm", *_RMS, _norm(4096, 1), _LONG, (0, 1)),
    *_both("LayerNorm", *_LAYER, _norm(4096, 2), _LONG, (0, 1, 2)),
    # Rows of an odd number of elements begin at any alignment, and end within a vector.
    *_both("LayerNorm, 4097 columns", *_LAYER, _norm(4097, 2), _LONG, (0, 1, 2)),
    Workload("residual + RMSNorm", programs.residual_rms_norm, _norm(4096, 1, rows=2), _LONG),
    *_from_result("softmax", *_SOFTMAX, _of_softmax),
    *_from_result("log_softmax", *_LOG_SOFTMAX, _of_log_softmax),
    *_both("cross-entropy", *_LOSS, _classes(128256), _WIDE, saved=programs.saved_by_cross_entropy),
    Workload(
        "cross-entropy, 50257 classes", programs.cross_entropy, _classes(50257), _rows(8192, 512, 4)
    ),
    Workload("BatchNorm", programs.batch_norm, _images(last=False), _rows(64, 8, 2)),
    Workload(
        "BatchNorm, channels last", programs.batch_norm_last, _images(last=True), _rows(64, 8, 2)
    ),
    Workload("column sum", programs.column_sum, matrices(1, 4096), _rows(65536, 4096, 5)),
    Workload("full sum", programs.full_sum, matrices(1, 16384), _rows(16384, 1024, 3)),
)
