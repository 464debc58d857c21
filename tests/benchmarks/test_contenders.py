"""Who may be timed: those whose numbers are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import contenders
from benchmarks.contenders import COMPILED, EAGER, FAST, OURS
from benchmarks.planning import planned
from benchmarks.workloads import WORKLOADS, Input, Workload, matrices

BY_NAME = {w.name: w for w in WORKLOADS}
BACKWARDS = [w for w in WORKLOADS if w.forward]
CPU = torch.device("cpu")


def double(x: Tensor) -> Tensor:
    return x + x


_TIMED = [
    "SwiGLU",
    "SwiGLU backward",
    "RoPE of Fuser 2577 backward",
    "cross-entropy",
    "cross-entropy backward",
]
DOUBLE = Workload("double", double, matrices(1, 8), {"small": 2})


def compare(workload: Workload, names: tuple[str, ...]) -> dict[str, contenders.Contender]:
    found = contenders.contenders(workload, workload.arguments("small", CPU), names)
    return {c.name: c for c in found}


@pytest.mark.parametrize("name", _TIMED)
def test_thunder_fuser_is_timed_where_it_is_right(name: str) -> None:
    found = compare(BY_NAME[name], (OURS, FAST, EAGER))
    assert [c.problem for c in found.values()] == ["", "", ""]
    assert all(c.call is not None for c in found.values())


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (lambda x: x + x + 0.1, "wrong: result 0 is off by"),
        (lambda x: x * float("nan"), "wrong: result 0 is off by nan"),
        (lambda x: (x + x, x), "wrong: 3 results, expected 2"),
        (lambda x: x.mul_(2.0), "wrong: result 1 is off by"),
        (lambda x: x.no_such_method(), "fails: AttributeError: "),
    ],
    ids=["off", "nan", "too many", "overwrites its input", "raises"],
)
def test_others_are_absent_and_say_why(
    program: Callable[[Tensor], Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: program)
    found = compare(DOUBLE, (EAGER, COMPILED))
    assert found[EAGER].call is not None
    assert found[COMPILED].call is None
    assert found[COMPILED].problem.startswith(problem)
    assert found[COMPILED].is_wrong == problem.startswith("wrong")


def test_a_row_without_memory_says_so() -> None:
    def run(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.  Tried to allocate 9 GiB\nmore")

    found = compare(Workload("large", run, matrices(1, 8), {"small": 2}), (OURS, EAGER))
    for contender in found.values():
        assert contender.call is None
        assert contender.problem == (
            "fails: OutOfMemoryError: CUDA out of memory.  Tried to allocate 9 GiB"
        )


def test_an_update_in_place_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def increase(x: Tensor) -> None:
        x.copy_(x + 1)

    workload = Workload("increase", increase, matrices(1, 8), {"small": 2})
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda x: None)
    found = compare(workload, (OURS, COMPILED))
    assert found[OURS].problem == ""
    assert found[COMPILED].problem.startswith("wrong: result 0 is off by")


@pytest.mark.parametrize("workload", BACKWARDS, ids=lambda w: w.name)
def test_a_backward_written_out_is_the_gradient_of_its_forward(workload: Workload) -> None:
    """Autograd is also the truth that everyone's backward is compared with."""
    inputs = [contenders.exact(x.make(CPU)) for x in workload.inputs(workload.rows["small"])]
    exact = workload.arguments_for(inputs)
    for mine, truth in zip(workload.program(*exact), workload.in_torch(exact)(), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9)


def test_inputs_that_must_be_positive_are() -> None:
    assert bool((Input((100,), torch.float32, positive=True).make(CPU) >= 0).all())
    assert bool((Input((100,), torch.float32).make(CPU) < 0).any())


def test_classes_are_all_that_exist() -> None:
    found = Input((1000,), torch.int64, below=7).make(CPU)
    assert sorted(found.unique().tolist()) == list(range(7))


def test_a_row_of_the_table_moves_the_bytes_that_it_must() -> None:
    """Worked out by hand. A loss reads logits and targets and leaves one number; its backward reads
    them with a statistic of each row, how many rows are counted, and one gradient.
    """
    rows, logits = 4096, 4096 * 128256 * 2
    ideal = {
        "cross-entropy": logits + rows * 8 + 2,
        "cross-entropy backward": 2 * logits + rows * (8 + 4) + 8 + 2,
    }
    for name, bytes in ideal.items():
        found = planned(BY_NAME[name], "full", "cuda")
        assert (found.kernels, found.in_torch) == (1, 0)
        assert found.bytes == found.bytes_ideal == bytes
