"""What runs with gloo on a CPU, on two GPUs with NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sharding.processes import together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.device_count() < 2,
        reason=f"NCCL needs two GPUs, here are {torch.cuda.device_count()}",
    ),
]


@pytest.mark.parametrize("ranks", ["data_parallel_ranks", "block_ranks"])
def test_two_gpus(ranks: str, tmp_path: Path) -> None:
    together(f"tests.sharding.{ranks}", 2, tmp_path, "nccl")
