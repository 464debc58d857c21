"""Segments whose kernels cannot be prepared: torch runs them, on the memory of the plan."""

from __future__ import annotations

import itertools
import runpy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch

from tests.frontends.thunder.programs import jit
from tests.support.batch import Batch
from tests.support.cuts import with_cuts
from tests.support.generator import Case, random_case
from tests.support.still_target import Still
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import compile_kernels, compile_plan, generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.errors import CompileError, InternalError, LimitError, Refusal, TargetError
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.observers import Watch
from thunder_fuser.runtime import fallback
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.host.target import HostTarget
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.segment.ties import tied_to
from thunder_fuser.templates.choose import schedule_segment

Float = DataType.Float
CPU = torch.device("cpu")


def executable(plan: SegmentedFusion, in_torch: Sequence[int], batch: Batch) -> Executable:
    """What runs a plan, some of its segments in torch."""
    texts = generate_kernels(plan, batch.device_info(CPU))
    kernels = {k: text for k, text in texts.items() if k not in in_torch}
    launches = compile_kernels(kernels, batch, Watch("plan", plan))
    return Executable(
        plan, kernels, launches, CPU, dict.fromkeys(in_torch, Refusal("fallback", ""))
    )


def close(found: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-6, atol=1e-6)


# ---- numbers and memory


def memory(tensors: Sequence[object]) -> list[object]:
    """How tensors lie, and which of them share memory."""
    first: dict[int, int] = {}
    found: list[object] = []
    for t in tensors:
        if isinstance(t, torch.Tensor):
            storage = t.untyped_storage().data_ptr() if t.numel() else -1
            shared = first.setdefault(storage, len(first))
            found.append((t.dtype, t.shape, t.stride(), t.storage_offset(), shared))
    return found


KINDS: dict[str, dict[str, bool]] = {
    "pointwise": {},
    "reductions": {"reductions": True},
    "gathers": {"gathers": True},
    "draws": {"draws": True, "reductions": True},
    "counters": {"counters": True},
}


def planned(kind: str, seed: int) -> tuple[Case, SegmentedFusion]:
    case = random_case(seed, **KINDS[kind])
    fusion = with_cuts(case.fusion, seed) if seed % 3 else case.fusion
    return case, CompiledFusion(fusion).plan(case.inputs)


@pytest.mark.parametrize("count", [12, pytest.param(30, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("kind", KINDS)
def test_segments_in_torch_leave_what_kernels_would(kind: str, count: int) -> None:
    """Numbers, updated arguments, dtypes, strides, views; nothing is compiled."""
    segments = 0
    for seed in (*range(count), *((174,) if kind == "pointwise" else ())):
        case, plan = planned(kind, seed)
        inputs, as_launched = case.fresh_inputs(), case.fresh_inputs()
        kernels = [s.index for s in plan.segments if s.kernels]
        outputs = Executable(plan, {}, {}, CPU, dict.fromkeys(kernels, Refusal("fallback", "")))(
            inputs
        )
        case.check(outputs, case.updated(inputs))
        launched = compile_plan(plan, CPU, Still())(as_launched)
        assert memory([*inputs, *outputs]) == memory([*as_launched, *launched]), f"seed {seed}"
        segments += len(kernels)
    assert segments > count


def test_kernels_and_segments_in_torch_work_together() -> None:
    """Each reads what the other wrote."""
    batch = Batch(CPU)
    ready = []
    for seed, kind in itertools.product(range(8), ("reductions", "draws")):
        case, plan = planned(kind, seed)
        kernels = [s.index for s in plan.segments if s.kernels]
        if len(kernels) > 1:
            some = kernels[seed % 2 :: 2]
            some += tied_to(plan, some)
            ready.append((case, executable(plan, some, batch)))
    assert sum(bool(run.kernels) for _, run in ready) > 5
    for case, run in ready:
        inputs = case.fresh_inputs()
        case.check(run(inputs), case.updated(inputs))


# ---- what must be computed alike


def largest(function: Callable[[Any, Any], Any]) -> FusionDefinition:
    """Where a function of the elements is largest: its kernel computes the function again."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=Float)
        y = function(fd.ops, x)
        top = fd.ops.broadcast(fd.ops.max(y, [0, 1]), [True, True])
        fd.add_output(fd.ops.eq(y, top))
    return fd


@pytest.mark.parametrize(
    ("function", "tied"),
    [
        (lambda ops, x: ops.exp(x), True),
        # A compiler may round this once, and torch rounds twice.
        (lambda ops, x: ops.add(ops.mul(x, x), x), True),
        (lambda ops, x: ops.add(ops.permute(ops.neg(ops.mul(x, x)), [1, 0]), 1.0), True),
        (lambda ops, x: ops.mul(x, x), False),
        (lambda ops, x: ops.mul(ops.cast(ops.neg(x), dtype=DataType.BFloat16), 3.0), False),
    ],
    ids=["exp", "x * x + x", "1 - (x * x).t()", "x * x", "bfloat16(-x) * 3"],
)
def test_what_is_computed_again_is_computed_alike(
    function: Callable[[Any, Any], Any], tied: bool
) -> None:
    plan = largest(function).plan([torch.randn(300, 500)])
    first, second = (s.index for s in plan.segments if s.kernels)
    found = tied_to(plan, [first])
    assert (second in found) is tied
    assert not tied or found[second][0] == first


def test_a_maximum_of_exponentials_is_one_of_them() -> None:
    """Torch's exponential has other last bits than the kernels'."""
    definition, x = largest(lambda ops, x: ops.exp(x)), torch.randn(300, 500)
    found = []

    def run() -> None:
        for k in range(20):
            x[3, 4] = 6 + k / 7
            found.extend(definition.execute([x]))

    with failing(lambda k: "max" in k.name), pytest.warns(RuntimeWarning) as caught:
        run()
    assert [t.nonzero().tolist() for t in found] == [[[3, 4]]] * 20
    (text,) = ours(caught)
    assert "segment 1 (pointwise)" in text
    assert "it computes T1 again, which must be what segment 0 makes of it" in text


# ---- failures


class failing(pytest.MonkeyPatch):
    """Programs with certain kernels are rejected meanwhile."""

    def __init__(
        self, which: Callable[[Kernel], bool], error: type[Exception] = CompileError
    ) -> None:
        super().__init__()
        self._which = which
        self._error = error
        self._options = options(strict=False)

    def __enter__(self) -> None:
        compile = HostTarget.compile

        def rejecting(target: HostTarget, kernels: Sequence[Kernel], *more: Any) -> Any:
            for kernel in filter(self._which, kernels):
                raise self._error(f"planted in {kernel.name}")
            return compile(target, kernels, *more)

        self.setattr(HostTarget, "compile", rejecting)
        self._options.__enter__()

    def __exit__(self, *problem: Any) -> None:
        self._options.__exit__(*problem)
        self.undo()


def ours(caught: pytest.WarningsRecorder) -> list[str]:
    return [str(w.message) for w in caught if w.category is RuntimeWarning]


def three_kernels() -> FusionDefinition:
    """exp(x), its sums, and both in x's place; views of two results."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 8], [True, True], dtype=Float)
        y = fd.ops.segment_set(fd.ops.exp(x))
        total = fd.ops.segment_set(fd.ops.sum(y, [1]))
        z = fd.ops.mul(y, fd.ops.broadcast(total, [False, True]))
        fd.add_output(fd.ops.permute(y, [1, 0]))
        fd.add_output(total)
        fd.add_output(fd.ops.reshape(total, [2, 3]))
        fd.add_output(z, alias_input=x)
    return fd


@pytest.mark.parametrize("kernel", ["exp", "sum", "mul"])
def test_one_kernel_of_three_is_rejected(kernel: str) -> None:
    definition = three_kernels()
    x = torch.randn(6, 8)
    truth = x.double().exp()
    with failing(lambda k: f"_{kernel}_" in k.name), pytest.warns(RuntimeWarning) as caught:
        turned, total, square = definition.execute([x])
    made = definition.fec.compiled.latest
    (refusal,) = made.in_torch
    assert len(made.kernels) == 2
    close([turned, total, x], [truth.t(), truth.sum(1), truth * truth.sum(1, keepdim=True)])
    assert (turned.stride(), square.stride()) == ((1, 8), (3, 1))
    assert square.data_ptr() == total.data_ptr()
    (text,) = ours(caught)
    index = {"exp": 0, "sum": 2, "mul": 4}[kernel]  # the others are views
    assert text.startswith("definition: torch runs 1 of 3 segments, the others keep their kernels:")
    assert f"segment {index} (" in text
    assert "CompileError: planted in tf_" in text
    assert "This is a bug in thunder_fuser. THUNDER_FUSER_STRICT=1" in text
    assert refusal.subject.startswith(f"segment {index} (")
    (path,) = [word for word in text.split() if word.endswith(".py")]
    try:
        runpy.run_path(path)
    finally:
        Path(path).unlink()
    with failing(lambda k: f"_{kernel}_" in k.name), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        definition.execute([torch.randn(6, 8)])


def test_a_fusion_of_a_trace_keeps_its_other_kernels() -> None:
    def program(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x, -1)
        total.add_(x.sum(0))
        return y, y.t(), total, x[2:] * 2

    compiled = jit(program)
    x, total = torch.randn(6, 8), torch.randn(8)
    truth = x.double(), total.double()
    expected = program(*truth)
    with failing(lambda k: "exp" in k.name), pytest.warns(RuntimeWarning) as caught:
        found = compiled(x, total)
    close(found, expected)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert found[2].data_ptr() == total.data_ptr()
    assert found[1].data_ptr() == found[0].data_ptr()
    (text,) = ours(caught)
    assert text.startswith("fuser0: torch runs 1 of ")
    (report,) = fusions(compiled)
    assert len(report.kernels) == report.plan.kernels - 1
    assert report.refusals[-1].code == "fallback"
    assert "in torch [fallback] segment" in str(report)


@pytest.mark.parametrize("error", [InternalError, LimitError, KeyError, AssertionError])
def test_a_kernel_that_cannot_be_written(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(segment: Segment, *more: Any) -> Any:
        if segment.kind == "reduction":
            raise error("planted")
        return schedule_segment(segment, *more)

    monkeypatch.setattr("thunder_fuser.compile.schedule_segment", fail)
    x = torch.randn(6, 8)
    total = x.double().exp().sum(1)
    with options(strict=False), pytest.warns(RuntimeWarning, match="planted"):
        close(three_kernels().execute([x])[1:2], [total])
    with options(strict=True), pytest.raises(error):
        three_kernels().execute([torch.randn(6, 8)])


def test_every_kernel_may_be_rejected() -> None:
    """Equal segments share one, and its failure."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=Float)
        fd.add_output(fd.ops.exp(fd.ops.segment_set(fd.ops.exp(x))))
    x = torch.randn(5)
    with failing(lambda k: True), pytest.warns(RuntimeWarning) as caught:
        (found,) = fd.execute([x])
    close([found], [x.double().exp().exp()])
    (text,) = ours(caught)
    assert text.startswith("definition: torch runs 2 of 2 segments:")


def test_without_a_compiler_no_segment_is_to_blame() -> None:
    with failing(lambda k: True, TargetError), pytest.raises(TargetError, match="planted"):
        three_kernels().execute([torch.randn(6, 8)])


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_what_torch_would_fail_at_too_is_raised(error: type[Exception]) -> None:
    assert not fallback.is_replaceable(error())
    with failing(lambda k: True, error), pytest.raises(error, match="planted"):
        three_kernels().execute([torch.randn(6, 8)])


def test_a_cpu_without_memory_is_no_fault_of_a_kernel() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert not fallback.is_replaceable(caught.value)  # type: ignore[arg-type]


def test_what_is_updated_already_is_not_updated_again() -> None:
    """A call that fails behind its first kernel raises; torch would begin it anew."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.softmax(x.sum() + y, -1)

    compiled = jit(program)
    with options(strict=False):
        compiled(torch.zeros(64), torch.randn(8, 8))

    def fails(*_: object) -> object:
        raise RuntimeError("planted")

    symbols = thunder.last_traces(compiled)[-1].bound_symbols
    calls = [call for call in map(call_of, symbols) if call is not None]
    (executable,) = (e for c in calls for e in c.compiled.executables if e.plan.fusion.updates)
    executable._steps = (*executable._steps, fails)
    x = torch.zeros(64)
    with options(strict=False), pytest.raises(RuntimeError, match="planted"):
        compiled(x, torch.randn(8, 8))
    assert torch.equal(x, torch.ones(64))


def test_an_index_that_does_not_exist_is_named_as_in_the_program() -> None:
    def gathered(rejected: bool) -> str:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], dtype=Float)
            at = fd.define_tensor([-1], dtype=DataType.Int)
            rows = fd.ops.index_select(fd.ops.segment_set(fd.ops.exp(x)), at, 0)
            fd.add_output(rows)
        inputs = [torch.randn(4, 3), torch.tensor([1, 7])]
        with failing(lambda k: rejected and "exp" not in k.name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(IndexError) as caught:
                fd.execute(inputs)
        return str(caught.value)

    assert gathered(True).split(" (in ")[0] == gathered(False).split(" (in ")[0]
