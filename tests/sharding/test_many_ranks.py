"""Programs on eight processes (many_ranks.py, transformer_ranks.py): gloo on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sharding.processes import together


@pytest.mark.parametrize(
    "module",
    ["many_ranks", pytest.param("transformer_ranks", marks=pytest.mark.campaign)],
)
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch lacks gloo")
def test_eight_ranks(module: str, tmp_path: Path) -> None:
    together(f"tests.sharding.{module}", 8, tmp_path)
