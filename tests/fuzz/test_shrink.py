"""Programs become as small as their fault allows, and stay programs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.compare import Difference
from tests.fuzz.generate import random_program
from tests.fuzz.judge import Verdict
from tests.fuzz.observe import run
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrunk


def faulty(programs: Sequence[Program]) -> list[Verdict]:
    """As if every softmax were wrong."""
    verdicts = []
    for p in programs:
        works = run(p, p.function(), 0).error is None
        wrong = works and "softmax" in p.source
        found = (Difference("values", "result 0", 1, 2),) if wrong else ()
        verdicts.append(Verdict(p, "wrong" if wrong else "right", 0, found))
    return verdicts


def test_one_line_is_left_of_a_program() -> None:
    """Beside what makes its operand of no tensor."""
    wrong = [v for v in faulty(list(map(random_program, range(300)))) if v.outcome == "wrong"]
    assert len(wrong) > 5
    for verdict in wrong[:6]:
        *made, line = shrunk(verdict, faulty).program.lines
        assert "softmax" in line.text
        assert [other.makes for other in made] == list(line.reads)[: len(made)]
        assert not any(other.reads for other in made)


def test_a_program_is_a_function_of_its_seed() -> None:
    for seed in range(20):
        first, second = random_program(seed), random_program(seed)
        assert first.script() == second.script()


def test_generated_programs_work_in_torch() -> None:
    programs = [random_program(seed) for seed in range(200)]
    failed = [p.seed for p in programs if run(p, p.function(), 0).error is not None]
    # Others are refused for what they do: most update what autograd has saved.
    assert len(failed) < 15
