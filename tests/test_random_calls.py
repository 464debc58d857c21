"""Random fusions with torch calls in them, planned and run: every element within its bound.

Kernels go before, between and behind the calls, some of which share what they read. No kernel
encloses a call: what a call waits for is there before, and what waits for it comes later.
"""

from __future__ import annotations

import torch

from tests.support.batch import Batch, checked, fusions_of
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.plan import SegmentedFusion

DTYPES = (DataType.Float, DataType.Float, DataType.BFloat16, DataType.Double, DataType.Int)
CASES = 120
BATCH = 20


def case(seed: int) -> Case:
    return random_case(
        seed,
        calls=True,
        reductions=seed % 3 == 0,
        gathers=seed % 5 == 0,
        steps=10,
        max_numel=4000,
        dtypes=DTYPES,
    )


@blocks(CASES, BATCH, always=40)
def test_random_calls_equal_float64(device: torch.device, first: int) -> None:
    cases = map(case, range(first, first + BATCH))
    calls = between = 0
    for _, plan, _ in checked(fusions_of(cases), Batch(device), device):
        check_order(plan)
        kinds = [s.kind for s in plan.segments]
        calls += kinds.count("opaque")
        where = [k for k, kind in enumerate(kinds) if kind == "opaque"]
        between += any(s.kernels for s in plan.segments[: where[-1]]) if where else 0
    assert calls > BATCH // 2
    assert between > BATCH // 6


def check_order(plan: SegmentedFusion) -> None:
    """Nothing is read before it is written, or after its memory is given back."""
    placement = plan.placement
    there = {placement.root(t) for t in plan.fusion.tensor_inputs}
    ends = {buffer.tensor: buffer.last for buffer in plan.buffers}
    for segment in plan.segments:
        for tensor in map(placement.root, segment.inputs):
            assert tensor in there, f"{segment} reads {tensor}, which nobody has written\n{plan}"
            last = ends.get(tensor)
            assert last is None or last >= segment.index, f"{segment} reads freed {tensor}\n{plan}"
        there.update(map(placement.root, segment.outputs))
