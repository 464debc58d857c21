"""Random programs between whose calls attributes, globals, containers and submodules change."""

from __future__ import annotations

import thunder_fuser
from tests.frontends.thunder.changing_programs import (
    faults,
    random_changing_program,
    random_looking_program,
    random_merging_program,
)
from tests.frontends.thunder.programs import jit
from tests.support.seeds import blocks

# Each of these read what it was compiled with.
FOUND = (50, 54, 113, 224)


@blocks(300, 10, always=10)
def test_changes_between_calls_are_followed(first: int) -> None:
    """Without fuel: what is guarded does not depend on what is fused."""
    for seed in range(first, first + 10):
        program = random_changing_program(seed)
        with thunder_fuser.options(fuel=0):
            assert not (found := faults(program, jit)), f"{found}\n{program}"


@blocks(100, 10, always=10)
def test_merged_containers_may_be_empty(first: int) -> None:
    for seed in range(first, first + 10):
        program = random_merging_program(seed)
        with thunder_fuser.options(fuel=0):
            assert not (found := faults(program, jit)), f"{found}\n{program}"


@blocks(100, 10, always=10)
def test_names_and_methods_are_those_of_each_call(first: int) -> None:
    for seed in range(first, first + 10):
        program = random_looking_program(seed)
        with thunder_fuser.options(fuel=0):
            assert not (found := faults(program, jit)), f"{found}\n{program}"


def test_programs_that_were_wrong() -> None:
    for seed in FOUND:
        program = random_changing_program(seed)
        assert not (found := faults(program, jit)), f"{found}\n{program}"
