"""Rows of clusters that are so long that each thread folds its part of them in several parts."""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.schedules import row_schedules
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType

CPU = torch.device("cpu")


def _normalised(rows: int, columns: int, dtype: DataType) -> FusionDefinition:
    """A LayerNorm without weights; of its operand the largest element's position, of its result
    each row's maximum.
    """
    with FusionDefinition() as fd:
        given = fd.define_tensor([rows, columns], True, dtype)
        x = fd.ops.cast(given, DataType.Float)
        variance, mean = fd.ops.var_mean(x, [1], 0, True)
        normed = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-3)))
        fd.add_output(normed)
        fd.add_output(fd.ops.argmax(given, [1]))
        fd.add_output(fd.ops.max(normed, [1]))
    return fd


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (1, 65_537, DataType.Float),
        (2, 73_728, DataType.Float),
        (1, 131_072, DataType.BFloat16),
    ],
)
def test_each_block_folds_its_own_columns(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, dtype: DataType
) -> None:
    monkeypatch.setattr("thunder_fuser.compile.planned_for", lambda _: H200)
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(dtype.torch)
    fusion = CompiledFusion(_normalised(rows, columns, dtype).fusion.plain)
    run = executable(fusion, [x], Batch(CPU, H200), CPU)
    (schedule,) = row_schedules(run.plan, H200)
    assert schedule.is_folded_in_parts
    assert schedule.mapping.shares_rows
    normed, position, largest = run([x])
    exact = x.double()
    deviations = exact - exact.mean(1, keepdim=True)
    expected = deviations * (exact.var(1, correction=0, keepdim=True) + 1e-3).rsqrt()
    torch.testing.assert_close(normed.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(largest.double(), expected.amax(1), rtol=1e-5, atol=1e-5)
    assert torch.equal(position, exact.argmax(1))
