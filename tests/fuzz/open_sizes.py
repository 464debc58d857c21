"""Random definitions whose sizes are open, and computed, planned for devices of many kinds.

Each is called with inputs of several sizes: with those that mean something its kernels give what
torch gives with numbers in the place of the sizes; with others an error says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.fuzz.fusions import FusionVerdict
from tests.fuzz.kernels import Rehearsal, compiled_together, devices
from tests.support.batch import executable
from tests.support.generator_sizes import Ambiguous, Mistake, Program
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.runtime.compilation.dynamic_sizes import DynamicSizes
from thunder_fuser.runtime.executable import Executable

_CPU = torch.device("cpu")
KINDS = 6
"""Sets of sizes that one definition is called with."""

_Call = tuple[Executable, Sequence[Any], Sequence[torch.Tensor]]


def judge_sizes(
    seeds: Sequence[int], device: int, *, optimised: bool = False
) -> list[FusionVerdict]:
    """One verdict for each seed: "right", "refused" where no sizes fit, or what is wrong."""
    chosen = devices()[device % len(devices())]
    found: list[FusionVerdict] = []
    with compiled_together(chosen, optimised=optimised) as rehearsal:
        planned = [(seed, *_planned(seed, rehearsal)) for seed in seeds]
        for seed, calls, problem in planned:
            problem = problem or next(filter(None, map(_wrong, calls)), "")
            outcome = "values" if problem else "right" if calls else "refused"
            text = f"{problem}\n{Program(seed).define().fusion}" if problem else ""
            found.append(FusionVerdict(seed, chosen.name, outcome, text))
    return found


def _planned(seed: int, rehearsal: Rehearsal) -> tuple[list[_Call], str]:
    """The calls of a definition that mean something, and what is wrong before anything runs."""
    program = Program(seed)
    calls: list[_Call] = []
    try:
        fusion = CompiledFusion(program.define().fusion)
    except FuserValueError:
        return [], ""
    history = DynamicSizes()
    for k in range(KINDS):
        inputs = program.inputs(k)
        try:
            expected = program.run(inputs)
        except (Ambiguous, Mistake) as error:
            if isinstance(error, Mistake) and not _refuses(fusion, inputs):
                return [], f"inputs {k} mean nothing, and are taken"
            continue
        try:
            run = executable(fusion, inputs, rehearsal.batch, _CPU, history.of(k).adapted)
            calls.append((run, inputs, expected))
        except Exception as error:
            return [], f"inputs {k}: {type(error).__name__}: {error}"
    return calls, ""


def _refuses(fusion: CompiledFusion, inputs: Sequence[Any]) -> bool:
    try:
        fusion.plan(inputs)
    except FuserError:
        return True
    return False


def _wrong(call: _Call) -> str:
    run, inputs, expected = call
    for k, (ours, right) in enumerate(zip(run(inputs), expected, strict=True)):
        if not torch.equal(ours, right):
            return f"result {k}: expected {right.tolist()}, got {ours.tolist()}"
    return ""
