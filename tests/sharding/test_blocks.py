"""LitGPT's attention and MLP with their backwards, tensor and sequence parallel: as many bytes as
Megatron's, simulated and in four processes (block_ranks.py), against torch on one device.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.sharding.blocks import BATCH, HALVES, LENGTH, WIDTH, is_right, sharded
from tests.sharding.checks import kinds
from tests.sharding.processes import together
from thunder_fuser.sharding import DeviceMesh, simulate

ACTIVATION = BATCH * LENGTH * WIDTH * 8


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("half", HALVES)
def test_tensor_parallel_reduces_once_forward_and_once_backward(half: str, d: int) -> None:
    found, named = sharded(HALVES[half], DeviceMesh((d,), ("tp",)), sequence=False)
    assert kinds(found) == ["all_reduce"] * 2
    assert found.bytes == 2 * 2 * ACTIVATION * (d - 1) // d
    is_right(HALVES[half], found, named, partial(simulate, found))


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("half", HALVES)
def test_sequence_parallel_gathers_and_scatters_as_much(half: str, d: int) -> None:
    """And reduces the gradient of the norm's weight, of which each device has some rows."""
    found, named = sharded(HALVES[half], DeviceMesh((d,), ("tp",)), sequence=True)
    assert kinds(found) == ["all_gather"] * 2 + ["all_reduce"] + ["reduce_scatter"] * 2
    assert found.bytes == 2 * 2 * ACTIVATION * (d - 1) // d + 2 * WIDTH * 8 * (d - 1) // d
    is_right(HALVES[half], found, named, partial(simulate, found))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch lacks gloo")
def test_four_processes(tmp_path: Path) -> None:
    together("tests.sharding.block_ranks", 4, tmp_path)
