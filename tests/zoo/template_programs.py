"""Definitions whose kernels are the modes of the reduction, scan and transpose templates."""

from __future__ import annotations

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower

Float, BFloat16 = DataType.Float, DataType.BFloat16


def rms_norm(rows: int, columns: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], True, BFloat16)
        weight = fd.define_tensor([columns], True, BFloat16)
        wide = fd.ops.cast(x, Float)
        squares = fd.ops.sum(fd.ops.mul(wide, wide), [1], True)
        scale = fd.ops.rsqrt(fd.ops.add(fd.ops.mul(squares, 1 / columns), 1e-6))
        y = fd.ops.mul(fd.ops.mul(wide, scale), fd.ops.cast(weight, Float))
        fd.add_output(fd.ops.cast(y, BFloat16))
    return fd


def softmax(rows: int, columns: int, dim: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([rows, columns], True, BFloat16), Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [dim], True)))
        y = fd.ops.div(e, fd.ops.sum(e, [dim], True))
        fd.add_output(fd.ops.cast(y, BFloat16))
    return fd


def sum_over(dims: list[int], *sizes: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor(list(sizes), True, Float), dims))
    return fd


def norm_of_all(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([count], True, Float)
        fd.add_output(fd.ops.sqrt(fd.ops.sum(fd.ops.mul(x, x), [0])))
    return fd


def norm_backward(rows: int, columns: int) -> FusionDefinition:
    """Of x * weight normalised: a gradient at each element, and one summed over the rows."""
    with FusionDefinition() as fd:
        x, g = (fd.define_tensor([rows, columns], True, Float) for _ in range(2))
        weight = fd.define_tensor([columns], True, Float)
        scaled = fd.ops.mul(g, weight)
        mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(scaled, x), [1], True), 1 / columns)
        fd.add_output(fd.ops.sub(scaled, fd.ops.mul(x, mean)))
        fd.add_output(fd.ops.sum(fd.ops.mul(g, x), [0]))
    return fd


def transposed(*sizes: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), True, BFloat16)
        y = fd.define_tensor(list(sizes[::-1]), True, BFloat16)
        fd.add_output(fd.ops.add(fd.ops.permute(x, [1, 0]), y))
    return fd


def scanned(rows: int, columns: int) -> FusionDefinition:
    """What comes before an element, and with it, of what is computed from memory."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([rows, columns], True, BFloat16), Float)
        y = fd.ops.cumsum(fd.ops.exp(x), 1)
        fd.add_output(fd.ops.cast(fd.ops.log(y), BFloat16))
    return fd


def kernel_of(definition: FusionDefinition) -> KernelIR:
    """The kernel of a definition that has one, for an H200."""
    plan = CompiledFusion(definition.fusion).plan()
    (segment,) = (s for s in plan.segments if s.kernels)
    return lower(schedule_segment(segment, H200), segment.body.updates)
