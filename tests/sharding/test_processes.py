"""Definitions on real processes: gloo, two ranks, local shards and DTensors (ranks.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SECONDS = 180


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch lacks gloo")
def test_two_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.sharding.ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "meeting")],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [text.splitlines()[-1:] for text in told] == [["done"]] * 2, "\n".join(told)
