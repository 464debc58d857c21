"""Programs as data: their steps, bytes and memory are those of the traces."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.thunder.programs import jit
from tests.inspect.conftest import LAYERS
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.frontends.thunder.compiled import all_traces
from thunder_fuser.inspect import Report, report
from thunder_fuser.inspect.data.folding import folded
from thunder_fuser.inspect.data.program import Program, Step, Tensor


@pytest.fixture
def program(llama: Report) -> Program:
    return llama.program


def test_every_kernel_and_call_of_the_traces_is_a_step(
    compiled_llama: Any, program: Program
) -> None:
    plans = {f.name: f.plan for f in fusions(compiled_llama)}
    steps = Counter(step.fusion for step in program.steps if step.fusion)
    assert steps == {name: len(plan.segments) for name, plan in plans.items()}
    assert program.kernels == sum(plan.kernels for plan in plans.values())
    assert program.bytes == sum(plan.bytes for plan in plans.values())
    assert program.bytes_ideal == sum(plan.bytes_ideal for plan in plans.values())
    called = [
        b.sym.name
        for trace in all_traces(compiled_llama)
        for b in trace.bound_symbols
        if b.sym.executor is not None and not b.sym.is_fusion and b.flat_proxy_outs
    ]
    unpacking = {"unpack_trivial", "unpack_sequence"}
    assert [s.name for s in program.steps if not s.fusion] == [
        name for name in called if name not in unpacking
    ]
    products = sum(s.flops for s in program.steps if s.name == "linear")
    rows, width, hidden = 2 * 2048, 1024, 2816
    assert products == LAYERS * 2 * rows * width * (3 * width + width + 3 * hidden)


def test_names_are_those_of_the_traces(compiled_llama: Any, program: Program) -> None:
    known = {
        proxy.name
        for trace in all_traces(compiled_llama)
        for b in trace.bound_symbols
        for proxy in (*b.flat_proxy_args, *b.flat_proxy_outs)
    }
    parts = {s.fusion: s for s in program.steps if s.fusion and "." not in s.name}
    assert parts
    for step in parts.values():
        assert {*step.reads, *step.writes} <= known


def test_what_is_held(program: Program) -> None:
    forward, _ = program.parts
    levels = list(program.levels())
    assert levels[forward.stop - 1].saved == program.saved_bytes
    peak = program.peak()
    assert peak.bytes == max(level.bytes for level in levels)
    assert sum(program.alive_at(peak.step).values()) == peak.bytes
    results = sum(t.bytes for t in program.tensors.values() if t.role == "result")
    last = program.steps[-1]
    assert levels[-1].bytes <= results + last.bytes + sum(
        program.tensors[n].bytes for n in last.reads
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.silu(x @ w) * x,
        lambda x, w: torch.softmax((x @ w).view(4, 4, 16), -1).sum(0),
        lambda x, w: (x @ w).chunk(2, -1)[0].sigmoid() @ w[:8],
        lambda x, w: F.layer_norm(x @ w + x, [16]),
    ],
)
def test_what_is_saved_is_the_memory_that_autograd_holds(function: Any) -> None:
    compiled = jit(function)
    inputs = [torch.randn(16, 16, requires_grad=True) for _ in range(2)]
    result = compiled(*inputs)
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in result.grad_fn.saved_tensors
    }
    for tensor in (*inputs, result):
        held.pop(tensor.untyped_storage().data_ptr(), None)
    assert report(compiled).program.saved_bytes == sum(held.values())


def test_equal_layers_are_one(program: Program) -> None:
    assert len(program.parts) == 2
    for part in program.parts:
        counts = [fold.count for fold in folded(program.of(part))]
        assert max(counts) == LAYERS - 1


def test_a_definition_is_a_program() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 128], contiguity=True)
        mean = fd.ops.sum(x, [1], keepdim=True)
        fd.add_output(fd.ops.sub(x, mean))
    made = report(fd).program
    plan = fd.plan()
    assert (made.kernels, made.bytes) == (plan.kernels, plan.bytes)
    assert made.peak().bytes == plan.peak_bytes
    assert [s.key for s in report(plan).program.steps] == [s.key for s in made.steps]


def test_what_several_fusions_compute_is_marked() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = F.silu(x)
        return (h @ w) * h

    compiled = jit(program)
    inputs = [torch.randn(16, 16, requires_grad=True) for _ in range(2)]
    compiled(*inputs).sum().backward()
    made = report(compiled).program
    ours = [s for s in made.steps if s.is_ours]
    assert len(ours) > 1
    inner = [{p.name for b in _subsymbols(compiled, s.fusion) for p in b} for s in ours]
    for step, names in zip(ours, inner, strict=True):
        others = set().union(*(n for n in inner if n is not names))
        assert set(step.recomputes) <= names & others


def _subsymbols(compiled: Any, fusion: str) -> list[list[Any]]:
    return [
        b.flat_proxy_outs
        for trace in all_traces(compiled)
        for whole in trace.bound_symbols
        if whole.sym.name == fusion
        for b in whole.subsymbols
    ]


def test_bad_sources() -> None:
    with pytest.raises(FuserTypeError, match=r"was not made by thunder\.jit"):
        report(torch.sin)
    with pytest.raises(FuserValueError, match="has not been called yet"):
        report(jit(torch.sin))


# ---- folding


def step(number: int, key: str) -> Step:
    return Step(number, 0, "pointwise", f"s{number}", "", (), (), (), 0, 0, key, kernels=1)


@pytest.mark.parametrize("seed", range(200))
def test_folds_leave_out_nothing(seed: int) -> None:
    rng = random.Random(seed)
    keys: list[str] = []
    while len(keys) < 60:
        layer = [rng.choice("abcd") for _ in range(rng.randint(1, 7))]
        keys += layer * rng.choice([1, 1, 2, 5])
    steps = [step(k, key) for k, key in enumerate(keys)]
    unfolded = []
    for fold in folded(steps):
        assert all(len(repeats) == fold.count for repeats in fold.repeats)
        for k in range(fold.count):
            unfolded += [repeats[k] for repeats in fold.repeats]
        assert all(len({s.key for s in repeats}) == 1 for repeats in fold.repeats)
    assert unfolded == steps


def test_layers_between_a_beginning_and_an_end() -> None:
    keys = ["x", *"abcde" * 12, "y", "z"]
    folds = folded([step(k, key) for k, key in enumerate(keys)])
    assert [(fold.count, len(fold.steps)) for fold in folds] == [(1, 1), (12, 5), (1, 2)]


# ---- memory


@pytest.mark.parametrize("seed", range(50))
def test_memory_is_what_is_written_and_not_yet_freed(seed: int) -> None:
    """Against sets of names, with views that keep alive what they lie in."""
    rng = random.Random(seed)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    steps: list[Step] = []
    alive: set[str] = set()
    expected = []
    for k in range(30):
        name = f"t{k}"
        tensors[name] = Tensor(name, (rng.randint(1, 99),), "f32", rng.randint(1, 99))
        if alive and rng.random() < 0.3:
            aliases[name] = rng.choice(sorted(alive))
        alive.add(name)

        def root(n: str) -> str:
            return root(aliases[n]) if n in aliases else n

        expected.append(sum(tensors[n].bytes for n in {root(n) for n in alive}))
        freed = [n for n in sorted(alive) if rng.random() < 0.3]
        alive -= set(freed)
        made = Step(k, 0, "torch", "op", "", ("op",), (), (name,), 0, 0, "", frees=tuple(freed))
        steps.append(made)
    made = Program("p", (), tuple(steps), tensors, aliases=aliases)
    assert [level.bytes for level in made.levels()] == expected
