"""Random cats of what several kernels compute: numbers, and what every plan of them keeps to.

Every other batch is scheduled for an H200. A part runs between guard pages, so that nothing is
written beside a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, executable
from tests.support.generator_cats import cat_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.passes.rewrite import memory_behind_results
from thunder_fuser.segment.plan import SegmentedFusion

CASES = 120
BATCH = 40
GUARDED = range(7_000, 7_024)


@blocks(CASES, BATCH, always=40)
def test_random_cats_equal_float64(device: torch.device, first: int) -> None:
    for_gpu = device.type == "cpu" and first // BATCH % 2 == 1
    batch = Batch(device, H200 if for_gpu else None)
    planned = []
    sliced = 0
    for seed in range(first, first + BATCH):
        case = cat_case(seed)
        inputs = case.fresh_inputs(device)
        compiled = executable(CompiledFusion(case.fusion), inputs, batch, device)
        sliced += bool(compiled.plan.placement.slices)
        planned.append((case, inputs, compiled))
    for case, inputs, compiled in planned:
        outputs = compiled(inputs)
        case.check(outputs)
        check_sharing(compiled.plan, outputs)
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
    cases = map(cat_case, GUARDED)
    guarded = ((case, CompiledFusion(case.fusion)) for case in cases)
    launches = check_between_guards(guarded, Batch(torch.device("cpu"), H200), monkeypatch)
    assert launches > len(GUARDED)
