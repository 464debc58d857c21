"""Orders in memory of what only torch calls read: one tensor for all of their views."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.compiled_fusion import CompiledFusion

ROWS, HEADS, SIZE, WIDTH = 32, 6, 16, 24


def _gradients(fd: FusionDefinition, is_cat: bool) -> None:
    """The gradients of a projection to heads: of its input, and of its weight."""
    parts = [
        fd.define_tensor([heads, ROWS, SIZE], dtype=DataType.Float)
        for heads in ((HEADS - 2, 1, 1) if is_cat else (HEADS,))
    ]
    x = fd.define_tensor([ROWS, WIDTH], dtype=DataType.Float)
    weight = fd.define_tensor([HEADS * SIZE, WIDTH], dtype=DataType.Float)
    wide = [fd.ops.exp(part) for part in parts]
    heads = fd.ops.cat(wide, 0) if is_cat else wide[0]
    matrix = fd.ops.reshape(fd.ops.permute(heads, [1, 0, 2]), [ROWS, HEADS * SIZE])
    fd.add_output(fd.ops.matmul(matrix, weight))
    turned = fd.ops.permute(heads, [0, 2, 1])
    fd.add_output(fd.ops.matmul(fd.ops.reshape(turned, [HEADS * SIZE, ROWS]), x))


@pytest.mark.parametrize("is_cat", [False, True])
def test_a_matrix_and_its_transpose_are_one_tensor(device: torch.device, is_cat: bool) -> None:
    """Written once, in the order in which both are views, although neither would be in its own."""
    with FusionDefinition() as fd:
        _gradients(fd, is_cat)
    plan = CompiledFusion(fd.fusion).plan()
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
    (kernel,) = (s for s in plan.segments if s.kernels)
    written = sum(t.bytes for t in kernel.outputs)
    assert written == ROWS * HEADS * SIZE * 4
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(t.sizes, generator=generator).to(device) for t in fd.fusion.tensor_inputs]
    *parts, x, weight = (t.double() for t in inputs)
    heads = torch.cat([p.exp() for p in parts])
    matrix = heads.permute(1, 0, 2).reshape(ROWS, -1)
    for made, expected in zip(fd.execute(inputs), (matrix @ weight, matrix.T @ x), strict=True):
        torch.testing.assert_close(made.double(), expected, rtol=1e-5, atol=1e-4)
