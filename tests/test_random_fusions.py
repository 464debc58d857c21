"""Random fusions over the whole op table, compiled and run: every element within its error bound.

2,000 programs (tests/support/generator.py) with sizes of 0, 1 and primes, any strides, all dtypes;
every fourth is cut into several kernels. On the host every other batch is scheduled for an H200, so
that what runs is the text that the GPU would get. A part runs once more between guard pages, its
threads and blocks in other orders.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import check_between_guards, checked, every_other
from tests.support.cuts import with_cuts
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion

pytestmark = pytest.mark.slow
CASES = 2000
BATCH = 40
GUARDED = 160


def cases(first: int) -> list[Case]:
    return [random_case(seed) for seed in range(first, first + BATCH)]


def compiled_from(case: Case) -> CompiledFusion:
    return CompiledFusion(with_cuts(case.fusion, case.seed) if case.seed % 4 == 3 else case.fusion)


@blocks(CASES, BATCH, always=80)
def test_random_fusions_equal_float64(device: torch.device, first: int) -> None:
    fusions = ((case, compiled_from(case)) for case in cases(first))
    ran = list(checked(fusions, every_other(device, first // BATCH), device))
    assert len(ran) == BATCH


@blocks(GUARDED, BATCH, always=80)
def test_no_access_out_of_bounds_and_no_order_of_threads_matters(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    guarded = ((case, compiled_from(case)) for case in cases(first))
    batch = every_other(torch.device("cpu"), first // BATCH)
    assert check_between_guards(guarded, batch, monkeypatch) > BATCH // 2
