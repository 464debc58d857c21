"""What fusing holds in memory, against Thunder with torch alone, and whether estimates are true."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from thunder.core.proxies import Proxy
from thunder.examine.memory_calculation import get_alloc_memory
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.memory import halves, held
from tests.frontends.thunder.programs import check, fake, jit
from tests.zoo.plan_programs import BATCH, BLOCK, HEADS, LENGTH
from thunder_fuser import segments
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.runtime import steps
from thunder_fuser.runtime.steps import allocator

PAGE = Path(__file__).parents[3] / "docs" / "thunder.md"
Steps = list[tuple[str, int]]


def run(program: Callable[..., Any], grad: bool) -> tuple[Any, dict[str, Any], Steps]:
    """The compiled program, what is left of its forward, and what that held."""
    inputs = [torch.randn(8, 8, requires_grad=grad) for _ in range(2)]
    compiled = jit(program)
    compiled(*inputs)
    trace = thunder.last_traces(compiled)[-1]
    values = dict(zip([p.name for p in trace.args], inputs, strict=True))
    return compiled, values, held(trace, values)


# ---- a transformer


def test_a_block_of_llama_takes_no_more_than_torch() -> None:
    block, inputs = BLOCK.function, BLOCK.inputs()
    ours = halves(block, *inputs)
    theirs = halves(block, *inputs, torch_alone=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.peak < other.peak
    told = " ".join(PAGE.read_text().split())
    mine, other = ([f"{half.peak / 1e6:,.0f}" for half in both] for both in (ours, theirs))
    assert f"has a peak of {mine[0]} MB in the forward and {mine[1]} MB in the backward" in told
    assert f"the peaks are {other[0]} and {other[1]} MB." in told
    forward, backward = ours
    assert (len(forward.fusions), len(backward.fusions)) == (5, 5)
    assert forward.kernels <= 5
    assert backward.kernels <= 6
    assert forward.bytes_over_ideal <= 1.001
    assert backward.bytes_over_ideal <= 1.10


def test_attention_weights_are_saved_once() -> None:
    """Matrix products read the softmax under another name than its own gradient."""

    def by_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT, -1) @ v

    operands = fake(*[(BATCH, HEADS, LENGTH, 64)] * 3, dtype=torch.bfloat16, grad=True)
    forward, _ = halves(by_parts, *operands)
    saved = forward.trace.bound_symbols[-1].args[1][0]
    squares = [p.name for p in saved if tuple(p.shape) == (BATCH, HEADS, LENGTH, LENGTH)]
    assert len(squares) == 1


# ---- what is saved for backward


def transposed(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).t() @ w


def reshaped(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).reshape(16, 4) @ w[:4]


def unsqueezed(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1).unsqueeze(0) @ w


@pytest.mark.parametrize("program", [transposed, reshaped, unsqueezed])
def test_what_a_view_shows_is_not_saved_otherwise(program: Callable[..., Any]) -> None:
    """The product reads a view of the activation, whose gradient needs the activation itself."""
    compiled, values, _ = run(program, grad=True)
    trace = thunder.last_traces(compiled)[-1]
    arguments = {p.name for p in trace.args}
    saved = {p.name for p in trace.bound_symbols[-1].args[1][0]}
    storages = {name: values[name].untyped_storage().data_ptr() for name in arguments | saved}
    own = {storages[name] for name in saved} - {storages[name] for name in arguments}
    assert len(own) == 1
    check(program, *(torch.randn(8, 8, requires_grad=True) for _ in range(2)))


# ---- estimates


def layers(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = x + torch.relu(F.layer_norm(x, (8,)) @ w) @ w
    return x


def views(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = torch.sin(x)
    return y.t(), x[2:], (y @ w)[:, :3] * 2, y


def updates(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(2)
    y = x @ w
    x.sub_(y.mean(1, keepdim=True))
    return torch.sin(y)


def parts_of_one(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a, b = (x @ w).chunk(2, -1)
    return torch.cat((b, a * 2), -1) @ w, torch.softmax(a, -1)


PROGRAMS = [layers, views, updates, parts_of_one]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_estimate_is_what_a_trace_holds(program: Callable[..., Any]) -> None:
    compiled, _, steps = run(program, grad=False)
    peak, _ = get_alloc_memory(thunder.last_traces(compiled)[-1])
    assert max(n for _, n in steps) == peak


@pytest.mark.parametrize("program", [layers, views, parts_of_one])
def test_the_estimate_of_each_fusion_is_what_it_adds(program: Callable[..., Any]) -> None:
    compiled, values, steps = run(program, grad=True)
    forward, backward = (
        traces[-1]
        for traces in (thunder.last_traces(compiled), thunder.last_backward_traces(compiled))
    )
    results, (saved, others) = forward.bound_symbols[-1].args
    arguments = {
        "saved_for_backward": [[values[p.name] for p in saved], list(others)],
        "cotangents": [
            torch.randn_like(values[p.name])
            for p in results["flat_output"]
            if isinstance(p, Proxy)  # Marks for autograd follow the results.
        ],
    }
    compared = 0
    for trace, found in ((forward, steps), (backward, held(backward, arguments))):
        table = get_alloc_memory(trace)[1]
        before = 0
        for name, after in found:
            if name.startswith("fuser"):
                (estimated,) = [n for entry, n in table.items() if entry.split(" ")[0] == name]
                assert after - before == estimated
                compared += 1
            before = after
    assert compared > 1


def normalised_twice(x: Tensor) -> Tensor:
    y = x / x.sum(0)
    return y / y.sum(1, keepdim=True)


def updated_by_rows(x: Tensor) -> Tensor:
    x.sub_(x.mean(1, keepdim=True))
    return x.sum(1)


@pytest.mark.parametrize("program", [normalised_twice, updated_by_rows])
def test_what_is_held_between_kernels_is_in_the_table(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boundaries, and a value that is copied into the argument at the end."""
    alive: dict[int, int] = {}
    levels: list[int] = []

    def tracked(device: torch.device) -> Callable[..., Tensor]:
        def empty(*args: Any) -> Tensor:
            tensor = allocate(*args)
            # Partial sums of one launch are no part of a plan.
            if tensor.dtype is torch.float32:
                key = len(levels)
                alive[key] = tensor.untyped_storage().nbytes()
                levels.append(sum(alive.values()))
                weakref.finalize(tensor, alive.pop, key)
            return tensor

        allocate = allocator(device)
        return empty

    monkeypatch.setattr(steps, "allocator", tracked)
    compiled = jit(program)
    result = compiled(torch.rand(64, 32) + 1)
    trace = thunder.last_traces(compiled)[-1]
    (report,) = fusions(compiled)
    table = get_alloc_memory(trace)[1]
    between = table["fuser0 between its kernels"]
    assert between > 0
    assert between + result.nbytes == report.plan.peak_bytes == max(levels)


def test_a_number_in_a_tensor_selects_a_view() -> None:
    """Torch asks the tensor for its value, which an estimate does not have: it takes any."""
    x, k = torch.randn(4, 5), torch.tensor(2)
    for program in (lambda x, k: x[k], lambda x, k: x[:, k]):
        compiled = jit(program)
        compiled(x, k)
        (trace,) = segments(compiled)
        assert trace.peak_bytes == x.nbytes + k.nbytes
