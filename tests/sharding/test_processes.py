"""Definitions on real processes: gloo, two ranks, local shards and DTensors (ranks.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sharding.processes import together


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch lacks gloo")
def test_two_ranks(tmp_path: Path) -> None:
    together("tests.sharding.ranks", 2, tmp_path)
