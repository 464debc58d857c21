"""Thunder's DDP and FSDP with our executor, in two processes (data_parallel_ranks.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sharding.processes import together


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch lacks gloo")
def test_two_processes(tmp_path: Path) -> None:
    together("tests.sharding.data_parallel_ranks", 2, tmp_path)
