"""Random fusions that draw random numbers, compiled and run: every element within its error bound,
and those of `uniform` exact.

Numbers are read through views, at computed indices, by reductions, and several times. Every other
batch is scheduled for an H200. A part runs between guard pages, with threads in other orders.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, executable
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.ir.fusion import RandomOp

CASES = 240
BATCH = 60
GUARDED = range(5_000, 5_040)


def case(seed: int) -> Case:
    return random_case(seed, draws=True, reductions=seed % 3 == 0, gathers=seed % 4 == 0)


@blocks(CASES, BATCH, always=60)
def test_random_draws_equal_the_reference(device: torch.device, first: int) -> None:
    for_gpu = device.type == "cpu" and first // BATCH % 2 == 1
    batch = Batch(device, H200 if for_gpu else None)
    planned = []
    draws = 0
    for seed in range(first, first + BATCH):
        made = case(seed)
        inputs = made.fresh_inputs(device)
        compiled = executable(CompiledFusion(made.fusion), inputs, batch, device)
        draws += sum(isinstance(e, RandomOp) for e in compiled.plan.fusion.exprs)
        planned.append((made, inputs, compiled))
    for made, inputs, compiled in planned:
        outputs = compiled(inputs)
        made.check(outputs, made.updated(inputs))
    assert draws > BATCH


def test_no_access_out_of_bounds_and_no_order_of_threads_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = map(case, GUARDED)
    guarded = ((c, CompiledFusion(c.fusion)) for c in made)
    launches = check_between_guards(guarded, Batch(torch.device("cpu"), H200), monkeypatch)
    assert launches > len(GUARDED) // 2
