"""Dynamic sizes: kernels of further sizes of a program are those of earlier ones, with parameters.

Results have the bits of kernels that are compiled for their sizes alone, except for products of
gradients that a compiler contracts with a sum in one and not in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F

import thunder_fuser
from tests.fuzz.fusions import fusion_case
from tests.support.all_vary import all_vary
from tests.support.batch import Batch, executable
from tests.support.seeds import blocks
from thunder_fuser import DataType, FusionDefinition, options
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.runtime.compilation.dynamic_sizes import DynamicSizes
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

BF16 = torch.bfloat16
CASES, BATCH = 240, 20


def softmax_definition() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.BFloat16)
        y = fd.ops.cast(x, DataType.Float)
        e = fd.ops.exp(fd.ops.sub(y, fd.ops.max(y, [1], keepdim=True)))
        found = fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True))
        fd.add_output(fd.ops.cast(found, DataType.BFloat16))
    return fd


def names(kernels: Sequence[Kernel]) -> set[str]:
    return {kernel.name for kernel in kernels}


# ---- definitions


def test_a_definition_compiles_few_kernels_for_many_sizes() -> None:
    """Of 24 lengths a few: the first, and one for each alignment and count of whole vectors."""
    compiled, apart = set[str](), set[str]()
    fd = softmax_definition()
    for length in range(1000, 1024):
        x = torch.randn(4, length, dtype=BF16)
        (ours,) = fd.execute([x])
        with options(dynamic_sizes=False):
            alone = softmax_definition()
            assert torch.equal(ours, alone.execute([x])[0])
        torch.testing.assert_close(ours.double(), x.double().softmax(1), atol=4e-3, rtol=1e-2)
        compiled |= names(fd.fec.compiled.latest.kernels)
        apart |= names(alone.fec.compiled.latest.kernels)
    assert len(compiled) <= 5
    assert len(apart) == 24


def test_sizes_that_return_need_no_other_kernel() -> None:
    fd, seen = softmax_definition(), []
    for length in (1056, 1088, 1120, 1088, 1056):
        fd.execute([torch.randn(4, length, dtype=BF16)])
        seen.append(names(fd.fec.compiled.latest.kernels))
    assert seen[1] == seen[2] == seen[3]
    assert seen[0] == seen[4] != seen[1]


def test_without_the_option_every_size_is_compiled_in() -> None:
    with options(dynamic_sizes=False):
        fd = softmax_definition()
        for length in (1000, 1008, 1016):
            fd.execute([torch.randn(4, length, dtype=BF16)])
            (kernel,) = fd.fec.compiled.latest.kernels
            assert str(length) in kernel.source
            assert all(p.is_pointer for p in kernel.params)


def test_guard_pages_around_kernels_with_parameters() -> None:
    with options(host_debug=True):
        fd = softmax_definition()
        for length in (1001, 1003):
            x = torch.randn(3, length, dtype=BF16)
            (ours,) = fd.execute([x])
            torch.testing.assert_close(ours.double(), x.double().softmax(1), atol=4e-3, rtol=1e-2)
    assert not all(p.is_pointer for p in fd.fec.compiled.latest.kernels[0].params)


# ---- traced functions


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return torch.softmax(x.masked_fill(~kept, -torch.inf), -1)


def rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1) * x


@pytest.mark.parametrize(
    ("function", "shape", "most"),
    [
        (causal_softmax, lambda n: (2, n, n), 16),
        (lambda x: F.layer_norm(x, x.shape[-1:]), lambda n: (8, n), 16),
        (lambda x: F.gelu(x).sum(0), lambda n: (n, 3, 40), 8),
        (lambda x: (x.transpose(1, 2) * 2).contiguous(), lambda n: (2, n, 40), 12),
        (lambda x: torch.cat([x, x[:, :1]], 1) * 2, lambda n: (2, n, 40), 12),
        (lambda x: rotated(x).cumsum(-1), lambda n: (4, 2 * n), 28),
        pytest.param(
            lambda x: F.pad(x, (1, 2)).var(-1), lambda n: (4, n), 20, marks=pytest.mark.campaign
        ),
    ],
    ids=["causal softmax", "layer norm", "gelu and sum", "transpose", "cat", "cumsum", "pad"],
)
def test_a_traced_function_and_its_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], shape: Callable[[int], Any], most: int
) -> None:
    """Fewer kernels for twelve lengths than each would have alone, with the same results."""
    kernels: dict[bool, set[str]] = {}
    results: dict[bool, list[torch.Tensor]] = {}
    for dynamic in (True, False):
        kernels[dynamic], results[dynamic] = set(), []
        with options(dynamic_sizes=dynamic, strict=True):
            jitted = thunder.jit(function, executors=[thunder_fuser.executor])
            for length in range(65, 77):
                torch.manual_seed(length)
                x = torch.randn(shape(length), requires_grad=True)
                y = jitted(x)
                y.sum().backward()
                results[dynamic] += [y.detach(), x.grad]
                for report in thunder_fuser.fusions(jitted):
                    kernels[dynamic] |= names(report.kernels)
    for ours, apart in zip(results[True], results[False], strict=True):
        torch.testing.assert_close(ours, apart, rtol=1e-5, atol=2e-5)
    assert len(kernels[True]) <= min(most, len(kernels[False]) - 6)


def test_layers_of_one_size_are_not_compared() -> None:
    """Two widths in a program stay constants in two kernels, as its number of rows changes."""

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.layer_norm(x, x.shape[-1:]), torch.sort(x)[0], F.layer_norm(y, y.shape[-1:])

    jitted = thunder.jit(both, executors=[thunder_fuser.executor])

    def parameters() -> list[int]:
        kernels = [k for report in thunder_fuser.fusions(jitted) for k in report.kernels]
        return [sum(not p.is_pointer for p in kernel.params) for kernel in kernels]

    for rows, varying in ((4, 0), (5, 1)):
        jitted(torch.randn(rows, 96), torch.randn(rows, 96 + 64))
        assert parameters() == [varying] * 2
    jitted(torch.randn(5, 96), torch.randn(5, 96 + 80))
    narrow, wide = parameters()
    assert narrow == 1
    assert wide > 1


# ---- every constant a parameter


@blocks(CASES, BATCH, always=40)
def test_random_fusions_of_nothing_but_parameters(device: torch.device, first: int) -> None:
    """Results are right whatever a compiler does not know, on the schedules of both targets."""
    batch = Batch(device, H200 if first // BATCH % 2 else None)
    planned = []
    for seed in range(first, first + BATCH):
        case = fusion_case(seed)
        inputs = [case.fresh_inputs(device) for _ in range(2)]
        compiled = CompiledFusion(case.fusion)
        runs = [
            executable(compiled, own, batch, device, adapt)
            for own, adapt in zip(inputs, (None, all_vary), strict=True)
        ]
        planned.append((case, inputs, runs))
    given = 0
    for case, inputs, runs in planned:
        outputs = [run(own) for run, own in zip(runs, inputs, strict=True)]
        case.check(outputs[1], case.updated(inputs[1]))
        for known, unknown in zip(*outputs, strict=True):
            torch.testing.assert_close(unknown, known, equal_nan=True)
        given += sum(not p.is_pointer for kernel in runs[1].kernels for p in kernel.params)
    assert given > 4 * BATCH


@pytest.mark.parametrize("columns", [1000, 4097])
def test_nvrtc_takes_parameters_without_spills(columns: int) -> None:
    history = DynamicSizes()
    for length in (columns, columns + 8):
        fusion = CompiledFusion(softmax_definition().fusion)
        plan = fusion.plan([torch.empty(64, length, dtype=BF16)])
        (found,) = generate_kernels(plan, H200, adapt=history.of(length).adapted).values()
    kernel = found.kernel
    assert not all(p.is_pointer for p in kernel.params)
    resources = compile_cubin([kernel], "sm_90").resources[kernel.name]
    assert resources.spill_store_bytes == resources.spill_load_bytes == 0
