"""Random stencils: one tensor read at several offsets, in short rows, against float64.

Every other batch is scheduled for an H200. A part runs between guard pages.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, checked, every_other, fusions_of
from tests.support.generator_shifts import shift_case
from tests.support.seeds import blocks
from thunder_fuser.device_table import H200

CASES = 160
BATCH = 10
GUARDED = range(7_000, 7_016)


@blocks(CASES, BATCH, always=20)
def test_random_shifts_equal_float64(device: torch.device, first: int) -> None:
    cases = map(shift_case, range(first, first + BATCH))
    ran = list(checked(fusions_of(cases), every_other(device, first // BATCH), device))
    assert len(ran) == BATCH


def test_nothing_beside_a_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(torch.device("cpu"), H200)
    launches = check_between_guards(fusions_of(map(shift_case, GUARDED)), batch, monkeypatch)
    assert launches > len(GUARDED) / 2
