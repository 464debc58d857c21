"""Thunder's own tools on traces with our fusions, and the executor among others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from thunder.core.symbol import Symbol
from thunder.dev_utils.debug_transform import debug_execution_trace
from thunder.dev_utils.profile_transform import ProfileTransform
from thunder.examine.memory_calculation import get_alloc_memory
from thunder.executors.torch_compile import torch_compile_cat_ex
from thunder.extend import deregister_executor, get_executor

import thunder_fuser
from tests.frontends.thunder.programs import check, fake, jit
from thunder_fuser.frontends.thunder import fusions, fusions_of_trace
from thunder_fuser.frontends.thunder.fuser import Fuser

ROOT = Path(__file__).resolve().parents[3]


def block(x: Any, w: Any) -> Any:
    return torch.tanh(torch.nn.functional.gelu(x * w) @ w.t()) + 1


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(8, 8, requires_grad=True) for _ in range(2)]


# ---- where the executor is found

IMPORTS = [
    "import thunder_fuser",
    "import thunder_fuser.frontends.thunder",
    "import thunder_fuser.frontends.thunder.claims",
    "import thunder_fuser.frontends.thunder.claims.table as table; assert table.TABLE",
    "from thunder_fuser.frontends.thunder import claims; assert claims.__doc__",
    "from thunder_fuser.frontends.thunder.plans.report import fusions; import thunder_fuser",
    "from thunder_fuser import executor; import thunder_fuser.frontends.thunder.fuser",
]


CHECK = """
import thunder_fuser
thunder.jit(torch.sin, executors=[thunder_fuser.executor])
import thunder_fuser.frontends.thunder.plans.report as report
assert report.fusions is thunder_fuser.fusions
assert thunder_fuser.executor.name == "thunder_fuser"
"""

# Importing torch and Thunder takes seconds: one process does it, and its children try the orders.
TRY = """
import os, sys, thunder, torch
for statement in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        exec(statement)
        exec(sys.argv[1])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, statement
"""


@pytest.mark.parametrize(
    "imports",
    [IMPORTS[::3], pytest.param(IMPORTS, marks=pytest.mark.campaign)],
    ids=["some", "all"],
)
def test_the_name_is_the_executor_in_every_import_order(imports: list[str]) -> None:
    command = [sys.executable, "-W", "ignore", "-c", TRY, CHECK, *imports]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_executor_is_registered_by_name() -> None:
    assert get_executor("thunder_fuser") is thunder_fuser.executor
    compiled = thunder.jit(torch.sin, executors=["thunder_fuser"])
    compiled(torch.ones(3))
    assert len(fusions(compiled)) == 1


# ---- Thunder's tools


def test_the_trace_checker_accepts_fusions() -> None:
    check(block, *inputs(), debug_options=thunder.DebugOptions(check_traces=True))


def test_debug_callbacks_see_fusions() -> None:
    seen = []

    def before(bsym: Any, *args: Any, **kwargs: Any) -> str:
        seen.append(bsym.sym.name)
        return ""

    compiled = debug_execution_trace(jit(block), pre_callback=before)
    x, w = inputs()
    torch.testing.assert_close(compiled(x, w), block(x, w))
    compiled(x, w).sum().backward()
    assert {"fuser0", "fuser1"} <= set(seen)


def test_the_profiler_runs_fusions() -> None:
    profile = ProfileTransform(warmup_runs=0)
    x, w = inputs()
    torch.testing.assert_close(jit(block, transforms=[profile])(x, w), block(x, w))


def test_memory_estimates_count_what_is_allocated() -> None:
    def program(x: Any) -> Any:
        y = torch.sin(x)
        return y.t(), y, x.t()

    (x,) = fake((8, 16), dtype=torch.float32)
    compiled = jit(program)
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(x)
    peak, table = get_alloc_memory(entry.computation_traces[-1])
    # Two of the three results are views.
    assert peak == 2 * 8 * 16 * 4
    assert [bytes_ for name, bytes_ in table.items() if name.startswith("fuser0")] == [8 * 16 * 4]


def test_memory_estimates_know_updates() -> None:
    def program(x: Any) -> Any:
        x.mul_(2)
        return torch.sin(x)

    (x,) = fake((8, 16), dtype=torch.float32)
    compiled = jit(program)
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(x)
    peak, _ = get_alloc_memory(entry.computation_traces[-1])
    assert peak == 2 * 8 * 16 * 4


def test_every_fusion_of_a_process_has_an_id_of_its_own_name() -> None:
    compiled = jit(block)
    compiled(*inputs())
    symbols = [b.sym for b in thunder.last_traces(compiled)[-1].bound_symbols if b.sym.is_fusion]
    assert all(isinstance(symbol, Symbol) and symbol.id.endswith(symbol.name) for symbol in symbols)
    assert len(set(symbols)) == len(symbols)


# ---- other executors in the list


def updated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    product = x * 2
    product.mul_(w)
    product.mul_(w)
    return product.clamp_(-1, 1) + torch.nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize("program", [block, updated])
def test_another_fuser_leaves_our_fusions(program: Any) -> None:
    """It runs Thunder's rematerialization over the trace, which would recompute from memory that an
    update has overwritten.
    """
    executors = [thunder_fuser.executor, torch_compile_cat_ex, *thunder.get_default_executors()]
    compiled = [thunder.jit(program, executors=e) for e in (executors, executors[:1])]
    gradients = []
    for run in compiled:
        torch.manual_seed(3)
        given = inputs()
        gradients.append(torch.autograd.grad(run(*given).square().sum(), given))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    saved = [thunder.last_traces(c)[-1].bound_symbols[-1].args[1][0] for c in compiled]
    assert len(saved[0]) == len(saved[1])
    assert len(fusions(compiled[0])) == len(fusions(compiled[1]))


def test_fusions_are_made_again_behind_another_fuser() -> None:
    """The torch.compile executor, one of Thunder's defaults, has each fusion of a trace made again,
    of its subsymbols; autograd's zeros for results that are not used are among those.
    """
    x = torch.arange(10.0).reshape(5, 2).requires_grad_()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.split(x * 2, 2)[0]

    compiled = thunder.jit(
        program, executors=[thunder_fuser.executor, *thunder.get_default_executors()]
    )
    found, expected = (torch.autograd.grad(f(x), x, x[:2].detach()) for f in (compiled, program))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    symbols = thunder.last_backward_traces(compiled)[-1].bound_symbols
    (fusion,) = [s for s in symbols if s.sym.is_fusion]
    made = {out.name for part in fusion.subsymbols for out in part.flat_proxy_outs}
    read = {arg.name for part in fusion.subsymbols for arg in part.flat_proxy_args}
    assert read <= made | {arg.name for arg in fusion.flat_proxy_args}


def test_two_fusers_in_one_list() -> None:
    second = Fuser("second", prefix="second")
    try:
        thunder_fuser.executor.set_fuel(1)
        compiled = thunder.jit(block, executors=[thunder_fuser.executor, second])
        x, w = inputs()
        torch.testing.assert_close(compiled(x, w), block(x, w))
    finally:
        thunder_fuser.executor.set_fuel(thunder.extend.FUEL_LEVEL.UNLIMITED)
        deregister_executor("second")
    names = [report.name for report in fusions(compiled)]
    assert names[:2] == ["fuser0", "second0"]


def test_what_another_executor_claims_is_its_own() -> None:
    other = thunder.extend.OperatorExecutor("other")
    mine = other.register_operator("mine", like=thunder.torch.gelu, fn=torch.nn.functional.gelu)
    other.register_implementation(thunder.torch.gelu, mine)
    compiled = thunder.jit(
        lambda x: torch.nn.functional.gelu(x) * 2, executors=[other, thunder_fuser.executor]
    )
    compiled(torch.randn(4))
    (report,) = fusions(compiled)
    assert [e.op for e in report.fusion.exprs] == ["mul_rn"]


# ---- CUDA without a GPU


def test_traces_for_cuda_from_fake_tensors() -> None:
    x, w = fake((64, 64), (64, 64), dtype=torch.bfloat16, grad=True)
    compiled = jit(block)
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(x, w)
    forward = fusions_of_trace(entry.computation_traces[-1])
    backward = fusions_of_trace(entry.backward_traces[-1])
    assert [r.name for r in forward + backward] == [r.name for r in fusions(compiled)]
    assert backward
    for report in forward + backward:
        assert len(report.kernels) == report.plan.kernels
        assert report.plan.bytes == report.plan.bytes_ideal
