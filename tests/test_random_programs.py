"""Random programs (tests/fuzz), a few hundred of those that `python -m tests.fuzz` can make."""

from __future__ import annotations

import pytest

from tests.fuzz.definitions.generate import random_definition
from tests.fuzz.definitions.judge import judge_definitions
from tests.fuzz.folds import device_of_folds, missing_errors, program_of_folds
from tests.fuzz.fusions import judge_fusions
from tests.fuzz.generate import (
    program_of_functions,
    program_of_library,
    program_of_norms,
    program_with_calls,
    random_program,
)
from tests.fuzz.gpus import gpu_of, judge_on_gpus
from tests.fuzz.judge import judge
from tests.fuzz.kernels import devices
from tests.fuzz.open_sizes import judge_sizes
from tests.fuzz.states.generate import stateful_program
from tests.fuzz.states.judge import judge_states
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.tables import opaque

pytestmark = pytest.mark.slow

FUSIONS, FUNCTIONS, CALLS, SIZES = 100, 50, 25, 35
ON_GPUS, NORMS, FOLDS = 24, 10, 10
CALLS_OF_FUNCTIONAL, OF_LIBRARY, STATES = 10, 20, 40
DEFINITIONS, OF_ALL_OPERATIONS = 20, 500

each_device = pytest.mark.parametrize(
    "device", range(len(devices())), ids=lambda k: devices()[k].name
)


def seeds(device: int, count: int) -> range:
    """The share of a device."""
    each = count // len(devices())
    return range(device * each, (device + 1) * each)


@each_device
def test_fusions_are_within_their_bounds(device: int) -> None:
    verdicts = judge_fusions(seeds(device, FUSIONS), device)
    assert [v for v in verdicts if v.outcome != "right"] == []


@each_device
def test_functions_do_what_torch_does(device: int) -> None:
    """Numbers, dtypes, strides, shared memory, arguments afterwards, gradients; under `strict`,
    where nothing falls back to torch unseen.
    """
    verdicts = judge(list(map(random_program, seeds(device, FUNCTIONS))), device)
    assert [(v.program.seed, v.found) for v in verdicts if v.outcome == "wrong"] == []
    assert sum(v.outcome == "right" for v in verdicts) > len(verdicts) // 2


@each_device
def test_functions_with_calls_do_what_torch_does_in_the_memory_of_their_plans(device: int) -> None:
    """Products, attention, convolutions, writes and sorts between kernels; budgets at random."""
    programs = list(map(program_with_calls, seeds(device, CALLS)))
    verdicts = judge(programs, device, memory=True)
    assert [(v.program.seed, v.found) for v in verdicts if v.outcome == "wrong"] == []
    assert sum(v.outcome == "right" for v in verdicts) > len(verdicts) // 2


@each_device
def test_definitions_of_open_sizes(device: int) -> None:
    verdicts = judge_sizes(seeds(device, SIZES), device)
    assert [v for v in verdicts if v.outcome not in ("right", "refused")] == []


def test_definitions_with_the_schedules_of_random_gpus() -> None:
    """As CUDA C++ on the host, as plain C, and for NVRTC."""
    verdicts = judge_on_gpus(range(ON_GPUS))
    assert [v for v in verdicts if not v.outcome.startswith("right")] == []
    assert sum(v.outcome == "right" for v in verdicts) > 0.7 * ON_GPUS


def test_norms_with_the_schedules_of_random_gpus() -> None:
    verdicts = judge(list(map(program_of_norms, range(NORMS))), gpu_of)
    assert [(v.program.seed, v.found) for v in verdicts if v.outcome == "wrong"] == []
    assert sum(v.outcome == "right" for v in verdicts) > len(verdicts) // 2


def test_calls_of_functional() -> None:
    verdicts = judge(list(map(program_of_functions, range(CALLS_OF_FUNCTIONAL))))
    assert [(v.program.seed, v.found) for v in verdicts if v.outcome == "wrong"] == []
    assert sum(v.outcome == "right" for v in verdicts) > len(verdicts) // 2


def test_calls_of_the_rest_of_torch() -> None:
    verdicts = judge(list(map(program_of_library, range(OF_LIBRARY))))
    assert [(v.program.seed, v.found) for v in verdicts if v.outcome == "wrong"] == []
    assert sum(v.outcome == "right" for v in verdicts) > len(verdicts) // 2


def test_functions_that_keep_state_from_call_to_call() -> None:
    """What they return, what is kept, and which tensors are one, after each of four calls."""
    verdicts = list(judge_states(map(stateful_program, range(STATES))))
    wrong = [v for v in verdicts if v.outcome.startswith(("wrong", "raises"))]
    assert [(v.program.seed, v.outcome, v.message) for v in wrong] == []
    assert sum(v.outcome == "right" for v in verdicts) > 0.8 * STATES


def test_reductions_on_edges_of_values_and_sizes() -> None:
    """All arguments, dtypes, layouts; gradients; and what torch refuses."""
    verdicts = judge(list(map(program_of_folds, range(FOLDS))), device_of_folds)
    assert [(v.program.seed, v.found) for v in verdicts if v.outcome == "wrong"] == []
    assert sum(v.outcome == "right" for v in verdicts) > len(verdicts) // 2
    assert [p.source for seed in range(FOLDS) for p in missing_errors(seed)] == []


@each_device
def test_definitions_are_what_their_operations_mean(device: int) -> None:
    """All of `fd.ops`, with open sizes, called with tensors of several sizes and layouts."""
    verdicts = judge_definitions(seeds(device, DEFINITIONS), device)
    assert [v for v in verdicts if v.outcome != "right"] == []


def test_every_operation_of_a_definition_is_written() -> None:
    programs = map(random_definition, range(OF_ALL_OPERATIONS))
    written = {step.op for program in programs for step in program.steps}
    collectives = {name for name, row in opaque.TABLE.items() if row.is_collective}
    assert set(dir(FusionDefinition().ops)) - collectives - written == set()
