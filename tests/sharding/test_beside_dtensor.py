"""Plans against torch's DTensors: the same programs from the same placements (dtensor_ranks.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sharding.processes import together


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch lacks gloo")
def test_plans_send_no_more_than_dtensors(tmp_path: Path) -> None:
    """Numbers are compared by the ranks. What torch sends more for, it decides an operation at a
    time; what we do, takes a replicated addend of a partial sum as whole.
    """
    told = together("tests.sharding.dtensor_ranks", 2, tmp_path)
    less, equal, more, failed, ours, torchs = map(int, told.splitlines()[-1].split())
    assert less + equal + more > 50 > failed
    assert more <= (less + equal + more) // 20
    assert ours <= 0.75 * torchs
