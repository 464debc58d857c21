"""Random definitions with open and computed sizes against torch with numbers in their place."""

from __future__ import annotations

import pytest
import torch

from tests.frontends.definition.rebuilding import rebuilt
from tests.support.batch import Batch, executable
from tests.support.generator_sizes import Ambiguous, Mistake, Program
from tests.support.seeds import blocks
from thunder_fuser import passes
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.ir.printer import equal
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.binding.bind import bind

PROGRAMS = 120
"""In each test."""


def check(seed: int) -> tuple[int, int]:
    """How many sets of sizes meant something, and how many nothing: then an error says so."""
    program = Program(seed)
    try:
        fusion = program.define().fusion
    except FuserValueError:
        # Known to mean nothing as it is written down, but perhaps for tensors without elements.
        for inputs in map(program.inputs, range(6)):
            if 0 not in (n for x in inputs if isinstance(x, torch.Tensor) for n in x.shape):
                with pytest.raises((Mistake, Ambiguous)):
                    program.run(inputs)
        return 0, 1
    again = rebuilt(fusion)
    assert equal(again, fusion) or program.chooses(), f"seed {seed}\n{fusion}\n{again}"
    found = [0, 0]
    for k in range(6):
        inputs = program.inputs(k)
        try:
            expected = program.run(inputs)
        except Ambiguous:
            continue
        except Mistake:
            # A size that is below zero whatever the inputs are is found as they are put in.
            with pytest.raises(FuserError):
                specialise(fusion, bind(fusion, inputs).sizes)
            found[1] += 1
            continue
        static, printed = (specialise(f, bind(f, inputs).sizes) for f in (fusion, again))
        for computed in (static, passes.run(static, verify=True), printed):
            for ours, right in zip(evaluate(computed, inputs).outputs, expected, strict=True):
                assert torch.equal(ours, right), f"seed {seed}, inputs {k}\n{fusion}"
        found[0] += 1
    return found[0], found[1]


@pytest.mark.parametrize("first", [0, PROGRAMS])
def test_sizes_are_what_they_are_in_torch(first: int) -> None:
    counted = [check(seed) for seed in range(first, first + PROGRAMS)]
    assert sum(good for good, _ in counted) > PROGRAMS
    assert sum(bad for _, bad in counted) > PROGRAMS / 2


@pytest.mark.slow
@blocks(40 * PROGRAMS, PROGRAMS, always=0, first=1000)
def test_more_sizes(first: int) -> None:
    test_sizes_are_what_they_are_in_torch(first)


def test_plans_without_inputs() -> None:
    """A definition with open sizes is planned, or refused because no usual sizes fit it."""
    planned = 0
    for seed in range(PROGRAMS // 2):
        try:
            plan = CompiledFusion(Program(seed).define().fusion).plan()
        except FuserValueError:
            continue
        assert "T0_" not in str(plan)
        planned += 1
    assert planned > PROGRAMS / 5


def test_kernels_compute_it(device: torch.device) -> None:
    batch = Batch(device)
    calls = []
    for seed in range(12):
        program = Program(seed)
        for k in range(6):
            try:
                expected = program.run(program.inputs(k))
                inputs = [
                    x.to(device) if isinstance(x, torch.Tensor) else x for x in program.inputs(k)
                ]
                run = executable(CompiledFusion(program.define().fusion), inputs, batch, device)
            except (Mistake, Ambiguous, FuserValueError):
                continue
            calls.append((run, inputs, expected))
            break
    for run, inputs, expected in calls:
        for ours, right in zip(run(inputs), expected, strict=True):
            assert torch.equal(ours.cpu(), right)
    assert len(calls) > 6
