"""Random updates of windows of inputs: numbers, in results and in memory, and what plans write.

Every other batch is scheduled for an H200. A part runs between guard pages, so that nothing is
written beside a window.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, checked, every_other, fusions_of
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.device_table import H200

CASES = 240
BATCH = 30
GUARDED = range(9_000, 9_016)


def _case(seed: int) -> Case:
    return random_case(seed, steps=5, windows=True, updates=False, reductions=seed % 3 == 0)


@blocks(CASES, BATCH, always=60)
def test_random_windows_equal_float64(device: torch.device, first: int) -> None:
    cases = map(_case, range(first, first + BATCH))
    batch = every_other(device, first // BATCH)
    plans = [plan for _, plan, _ in checked(fusions_of(cases), batch, device)]
    assert sum(bool(plan.placement.slices) for plan in plans) > BATCH / 6


def test_nothing_is_written_beside_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(torch.device("cpu"), H200)
    launches = check_between_guards(fusions_of(map(_case, GUARDED)), batch, monkeypatch)
    assert launches > len(GUARDED) / 2
