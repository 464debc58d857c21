"""Random cats of what several kernels compute: numbers, and what every plan of them keeps to.

Every other batch is scheduled for an H200. A part runs between guard pages, so that nothing is
written beside a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, checked, every_other, fusions_of
from tests.support.generator_cats import cat_case
from tests.support.seeds import blocks
from thunder_fuser.device_table import H200
from thunder_fuser.passes.rewrite import memory_behind_results
from thunder_fuser.segment.plan import SegmentedFusion

CASES = 120
BATCH = 10
GUARDED = range(7_000, 7_016)


@blocks(CASES, BATCH, always=20)
def test_random_cats_equal_float64(device: torch.device, first: int) -> None:
    cases = map(cat_case, range(first, first + BATCH))
    sliced = 0
    for _, plan, outputs in checked(fusions_of(cases), every_other(device, first // BATCH), device):
        sliced += bool(plan.placement.slices)
        check_sharing(plan, outputs)
    assert sliced > BATCH / 4


def check_sharing(plan: SegmentedFusion, outputs: Sequence[torch.Tensor]) -> None:
    """Results share memory only where the program says that they are views of one tensor."""
    behind = memory_behind_results(plan.fusion)
    views = plan.fusion.outputs
    filled = [k for k, x in enumerate(outputs) if x.numel()]
    for a, b in combinations(filled, 2):
        storages = [outputs[k].untyped_storage().data_ptr() for k in (a, b)]
        assert storages[0] != storages[1] or behind[views[a]] == behind[views[b]]


def test_nothing_is_written_beside_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(torch.device("cpu"), H200)
    launches = check_between_guards(fusions_of(map(cat_case, GUARDED)), batch, monkeypatch)
    assert launches > len(GUARDED)
