"""Integers computed from indices: their values are torch's, in 32 bits where all of them fit."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser.compile import generate_kernels
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.host.target import HOST

ROWS, COLUMNS = 33, 40
EDGE = 2**31
COMPARISONS = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


def mask(
    op: str, start: int, step: int = 1, factor: int = 1, returned: bool = False
) -> FusionDefinition:
    """A mask of the positions of rows and columns; the columns' are times `factor`, and can be
    returned, too.
    """
    with FusionDefinition() as fd:
        x = fd.define_tensor([ROWS, COLUMNS], True, DataType.Float)
        rows = fd.ops.iota(ROWS, start, 1, DataType.Int)
        columns = fd.ops.mul(fd.ops.iota(COLUMNS, start, step, DataType.Int), factor)
        left = fd.ops.broadcast_in_dim(rows, [ROWS, COLUMNS], [0])
        right = fd.ops.broadcast_in_dim(columns, [ROWS, COLUMNS], [1])
        fd.add_output(fd.ops.where(getattr(fd.ops, op)(left, right), x, 0.0))
        if returned:
            fd.add_output(columns)
    return fd


def source(definition: FusionDefinition) -> str:
    device = HOST.device_info(torch.device("cpu"))
    kernels = generate_kernels(definition.plan(), device).values()
    return "".join(kernel.kernel.source for kernel in kernels)


@pytest.mark.parametrize(
    ("start", "step", "factor"),
    [
        (0, 1, 1),
        (-5, 1, 1),
        (7, -2, 3),
        # The last positions that fit into 32 bits, the first that do not, and products beyond.
        (EDGE - COLUMNS, 1, 1),
        (EDGE - COLUMNS + 1, 1, 1),
        (-EDGE - 3, 1, 1),
        (EDGE // 2, 1, 3),
        (1, 1, 2**40),
        (2**62, 1, 2),
    ],
)
@pytest.mark.parametrize("op", ["ge", pytest.param("eq", marks=pytest.mark.campaign), "lt"])
def test_masks_of_positions(op: str, start: int, step: int, factor: int) -> None:
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(start, start + ROWS)
    columns = torch.arange(COLUMNS) * step * factor + start * factor
    masked, found = mask(op, start, step, factor, returned=True).execute([x])
    assert torch.equal(found, columns)
    expected = torch.where(COMPARISONS[op](rows[:, None], columns), x, 0.0)
    assert torch.equal(masked, expected)


@pytest.mark.parametrize("op", COMPARISONS)
def test_small_positions_are_compared_in_32_bits(op: str) -> None:
    assert "long long" not in source(mask(op, 0))


def test_large_positions_are_compared_in_64_bits() -> None:
    assert "const long long t" in source(mask("ge", EDGE))
