"""The definition of NVIDIA/Fuser issue 2473: a modulated layer norm's backward, five results.

Sums over a batch's sequence, over all of them, and over features: nvFuser makes two kernels of it
with 470 MB between them; what must move is 353,132,544 bytes, and one kernel of rows can do it.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.segment.plan import SegmentedFusion

BFloat16, Float, Null = DataType.BFloat16, DataType.Float, DataType.Null


FULL = (56, 1024, 1024)


def definition(batch: int | None, s: int, h: int) -> FusionDefinition:
    """Sizes are constants of the trace that it was made from, as in the issue's script; the first
    may be left open.
    """
    with FusionDefinition() as fd:
        ops = fd.ops

        def tensor(shape: list[int], contiguity: list[bool | None], dtype: DataType = BFloat16):  # type: ignore[no-untyped-def]
            return fd.define_tensor(shape=shape, contiguity=contiguity, dtype=dtype)

        weight = tensor([-1, -1, -1], [None, None, True])
        bias = tensor([-1, -1, -1], [None, None, True])
        scale = tensor([-1, 1, -1], [True, None, True])
        g = tensor([-1, -1, -1], [True, True, True])
        mean = tensor([-1, -1], [True, True], Float)
        rstd = tensor([-1, -1, 1], [True, True, None], Float)
        x = tensor([-1, -1, -1], [True, True, True])
        b = x.size(0) if batch is None else batch

        def wide(t, dims):  # type: ignore[no-untyped-def]
            return ops.broadcast_in_dim(t, shape=[b, s, h], broadcast_dims=dims)

        def column(t):  # type: ignore[no-untyped-def]
            return ops.broadcast_in_dim(t, shape=[b, s, 1], broadcast_dims=[0, 1])

        def summed_again(t):  # type: ignore[no-untyped-def]
            kept = ops.broadcast_in_dim(ops.cast(t, BFloat16), [b, 1, h], [0, 2])
            return ops.cast(ops.sum(ops.cast(kept, Float), dims=[1], dtype=Null), BFloat16)

        x32, g32, w32 = (ops.cast(t, Float) for t in (x, g, weight))
        centred = ops.sub(x32, wide(column(mean), [0, 1, 2]))
        normal = ops.mul(centred, wide(rstd, [0, 1, 2]))
        affine = ops.add(ops.mul(normal, w32), ops.cast(bias, Float))
        factor = ops.cast(ops.add(1.0, ops.cast(scale, Float)), BFloat16)
        modulated = ops.mul(ops.cast(wide(factor, [0, 1, 2]), Float), g32)
        fd.add_output(summed_again(ops.sum(g32, dims=[1])))
        fd.add_output(summed_again(ops.sum(ops.mul(affine, g32), dims=[1])))
        fd.add_output(ops.cast(ops.sum(modulated, dims=[0, 1]), BFloat16))
        fd.add_output(ops.cast(ops.sum(ops.mul(normal, modulated), dims=[0, 1]), BFloat16))
        weighted = ops.mul(w32, modulated)
        through = ops.mul(wide(rstd, [0, 1, 2]), weighted)
        of_rstd = column(ops.sum(ops.mul(centred, weighted), dims=[2]))
        of_mean = column(ops.sum(ops.neg(through), dims=[2]))
        of_variance = ops.mul(ops.mul(-0.5, of_rstd), ops.pow(rstd, 3.0))
        mean_part = ops.mul(1 / h, wide(column(ops.sum(of_mean, dims=[2])), [0, 1, 2]))
        spread = wide(column(ops.sum(of_variance, dims=[2])), [0, 1, 2])
        variance_part = ops.mul(ops.mul(ops.mul(2.0, spread), centred), ops.reciprocal(float(h)))
        total = ops.add(through, ops.add(mean_part, variance_part))
        fd.add_output(ops.cast(total, BFloat16))
    return fd


def inputs(b: int, s: int, h: int, device: torch.device | str) -> list[torch.Tensor]:
    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    return [
        *(random(h).expand(b, s, h) for _ in range(2)),
        random(b, 1, h),
        random(b, s, h),
        random(b, s, dtype=torch.float32),
        random(b, s, 1, dtype=torch.float32),
        random(b, s, h),
    ]


def exact(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """In float64, with 16 bits where the definition rounds to them."""
    weight, bias, scale, g, mean, rstd, x = (t.double() for t in given)
    h = x.shape[-1]

    def rounded(t: torch.Tensor) -> torch.Tensor:
        return t.bfloat16().double()

    centred = x - mean[..., None]
    normal = centred * rstd
    modulated = rounded(1 + scale) * g
    weighted = weight * modulated
    of_rstd = (centred * weighted).sum(2, keepdim=True)
    of_mean = -(rstd * weighted).sum(2, keepdim=True)
    return [
        g.sum(1),
        ((normal * weight + bias) * g).sum(1),
        modulated.sum((0, 1)),
        (normal * modulated).sum((0, 1)),
        rstd * weighted + of_mean / h + 2 * (-0.5 * of_rstd * rstd**3) * centred / h,
    ]


def full_plan() -> SegmentedFusion:
    with FakeTensorMode():
        given = inputs(*FULL, "cuda")
    return definition(*FULL).plan(given)
