"""Random fusions with scans, compiled and run: every element within its error bound.

A third of the steps scans a dimension, others come before and behind it, and some fold it. Every
other batch is scheduled for an H200: the warps of a block hand each other what they have then. Rows
are as long as several tiles. A part runs between guard pages, with threads in other orders.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, checked, every_other, fusions_of
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.device_table import H200

CASES = 120
BATCH = 20
GUARDED = range(5_000, 5_014)
SIZES = (1, 2, 3, 5, 8, 17, 64, 127, 128, 129, 257, 1000, 1025, 4099)
SHORT_TILES = replace(H200, max_threads_per_block=64)


def case(seed: int) -> Case:
    return random_case(
        seed, scans=True, reductions=seed % 3 == 0, gathers=seed % 5 == 0, sizes=SIZES, steps=7
    )


@blocks(CASES, BATCH, always=40)
def test_random_scans_equal_float64(device: torch.device, first: int) -> None:
    cases = map(case, range(first, first + BATCH))
    batch = every_other(device, first // BATCH, SHORT_TILES)
    kernels = several = fused = 0
    for _, plan, _ in checked(fusions_of(cases), batch, device):
        segments = [s for s in plan.segments if s.kind == "scan"]
        kernels += len(segments)
        several += sum(len(s.folds) > 1 for s in segments)
        fused += sum(len(s.fusion.exprs) > len(s.folds) for s in segments)
    assert kernels > BATCH // 2
    assert several > 1
    assert fused > BATCH // 4


def test_no_access_out_of_bounds_and_no_order_of_threads_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = Batch(torch.device("cpu"), SHORT_TILES)
    launches = check_between_guards(fusions_of(map(case, GUARDED)), batch, monkeypatch)
    assert launches > len(GUARDED)
