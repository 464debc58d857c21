"""First calls of a trace's fusions: how many compilations they take, and that numbers are right
however tensors lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from torch.nn import functional

import thunder_fuser
from thunder_fuser.config import options
from thunder_fuser.runtime.compilation import ahead
from thunder_fuser.runtime.host import library


@pytest.fixture(autouse=True)
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the host's compiler is given, with an empty cache and one core."""
    texts: list[str] = []
    make = library._compiled

    def compile_unit(unit: library.Unit, *rest: Any) -> Path:
        texts.extend([unit.text] * (unit.needs is not None))
        return make(unit, *rest)

    monkeypatch.setattr(ahead, "_cores", lambda: 1)
    monkeypatch.setattr(library, "_compiled", compile_unit)
    with options(cache_dir=str(tmp_path / "cache")):
        yield texts


def program(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = functional.rms_norm(x * v, v.shape) @ w
    h = torch.tanh(h + 1) @ w
    return functional.silu(h).sum(dim=-1) * 2


def inputs(rows: int = 8, width: int = 24) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(rows)
    shapes = [(rows, width), (width,), (width, width)]
    return [torch.randn(s, generator=made).requires_grad_() for s in shapes]


def check(run: Any, x: list[torch.Tensor]) -> None:
    """The result and its gradients, against float64."""
    exact = [t.detach().double().requires_grad_() for t in x]
    truth, found = program(*exact), run(*x)
    weight = torch.linspace(-1, 1, len(truth), dtype=torch.float64)
    truths = [truth, *torch.autograd.grad(truth, exact, weight)]
    ours = [found, *torch.autograd.grad(found, x, weight.float())]
    for a, b in zip(ours, truths, strict=True):
        assert (a.double() - b).abs().max() <= 2e-5 * (1 + b.abs().max())


def test_a_forward_is_compiled_at_once_and_so_is_its_backward(compiled: list[str]) -> None:
    run = thunder.jit(program, executors=[thunder_fuser.executor])
    x = inputs()
    run(*x)
    fusions = thunder_fuser.fusions(run)
    forward = [f for f in fusions if all(k.name in compiled[0] for k in f.kernels)]
    assert len(compiled) == 1  # nothing of the backward
    assert len(forward) >= 3
    check(run, x)
    assert len(compiled) < len(fusions)
    before = len(compiled)
    check(thunder.jit(program, executors=[thunder_fuser.executor]), inputs())
    assert len(compiled) == before  # all of it is in the cache


@pytest.mark.parametrize("argument", [0, 2])
def test_a_call_whose_tensors_lie_otherwise_compiles_what_it_needs(argument: int) -> None:
    run = thunder.jit(program, executors=[thunder_fuser.executor])
    x = inputs()
    x[argument] = x[argument].detach().t().contiguous().t().requires_grad_()
    check(run, x)
    check(run, inputs())
    check(run, inputs(rows=5))


def test_a_compiler_that_fails_for_all_does_not_fail_each(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(library, "compile_as_one", broken)
    check(thunder.jit(program, executors=[thunder_fuser.executor]), inputs(width=40))
    assert len(compiled) > 3
