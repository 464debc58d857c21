"""Random fusions with indexed reads, compiled and run: every element within its error bound.

Indices are inputs, or computed by the same kernel; what is read is memory, or computed at the
index; some programs fold dimensions besides. Every other batch is scheduled for an H200. A part
runs between guard pages, with threads in other orders.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, checked, every_other, fusions_of
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.device_table import H200
from thunder_fuser.ir.fusion import GatherOp

CASES = 240
BATCH = 20
GUARDED = range(5_000, 5_024)


def case(seed: int) -> Case:
    return random_case(seed, gathers=True, reductions=seed % 3 == 0)


@blocks(CASES, BATCH, always=40)
def test_random_gathers_equal_float64(device: torch.device, first: int) -> None:
    cases = map(case, range(first, first + BATCH))
    batch = every_other(device, first // BATCH)
    gathers = computed = 0
    for made, plan, _ in checked(fusions_of(cases), batch, device):
        reads = [e for e in plan.fusion.exprs if isinstance(e, GatherOp)]
        gathers += len(reads)
        computed += sum(e.index not in made.fusion.inputs for e in reads)
    assert gathers > BATCH // 2
    assert computed > BATCH // 8


def test_no_access_out_of_bounds_and_no_order_of_threads_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = Batch(torch.device("cpu"), H200)
    launches = check_between_guards(fusions_of(map(case, GUARDED)), batch, monkeypatch)
    assert launches > len(GUARDED) // 2
