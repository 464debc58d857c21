"""Row kernels that load what only their last pass reads, and the L2 cache has, in that pass."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.schedules import row_schedules
from tests.support.shares import each_value
from tests.tools import sass
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200, T4
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

CPU = torch.device("cpu")
GPUS = (T4, A100, H200, B200)
DEVICES = pytest.mark.parametrize("info", GPUS, ids=lambda d: d.arch)
# Batches, rows of each, columns: whole vectors of a warp, and rows whose last threads have fewer.
SIZES = ((3, 20, 1024), (4, 9, 1000), (2, 17, 776))


def modulated(
    batches: int, rows: int, columns: int, dtype: DataType, *, residual: bool = False
) -> FusionDefinition:
    """LayerNorm of every row, times 1 + scale, plus shift, which its batch has; and a residual."""
    with FusionDefinition() as fd:
        o = fd.ops
        x = fd.define_tensor([batches, rows, columns], True, dtype)
        weight, bias = (fd.define_tensor([1, 1, columns], True, dtype) for _ in range(2))
        scale, shift = (fd.define_tensor([batches, 1, columns], True, dtype) for _ in range(2))
        wide = [o.cast(t, DataType.Float) for t in (x, weight, bias, scale, shift)]
        h, weight, bias, scale, shift = wide
        var, mean = o.var_mean(h, [2], 0, True)
        normal = o.mul(o.sub(h, mean), o.rsqrt(o.add(var, 1e-5)))
        y = o.add(o.mul(normal, weight), bias)
        y = o.add(o.mul(y, o.add(scale, 1.0)), shift)
        if residual:
            more = fd.define_tensor([batches, rows, columns], True, dtype)
            y = o.add(y, o.cast(more, DataType.Float))
        fd.add_output(o.cast(y, dtype))
    return fd


def inputs(
    batches: int, rows: int, columns: int, dtype: torch.dtype, *, residual: bool = False
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(columns)
    sizes = [(batches, rows, columns), *[(1, 1, columns)] * 2, *[(batches, 1, columns)] * 2]
    sizes += [(batches, rows, columns)] * residual
    return [torch.randn(s, generator=generator).to(dtype) for s in sizes]


def eager(given: list[torch.Tensor]) -> torch.Tensor:
    x, weight, bias, scale, shift, *more = given
    columns = x.shape[-1]
    y = torch.nn.functional.layer_norm(x, [columns], weight.flatten(), bias.flatten(), 1e-5)
    return sum(more, y * (1 + scale) + shift)


@DEVICES
def test_they_have_the_numbers_of_float64(info: DeviceInfo) -> None:
    batch, planned, late = Batch(CPU, info), [], []
    dtypes = (DataType.BFloat16, DataType.Half, DataType.Float)
    for number, (dtype, sizes) in enumerate(itertools.product(dtypes, SIZES)):
        # With the residual on two of the four devices.
        residual = (number + GPUS.index(info)) % 2 == 0
        given = inputs(*sizes, dtype.torch, residual=residual)
        fusion = modulated(*sizes, dtype, residual=residual).fusion
        planned.append((given, executable(CompiledFusion(fusion), given, batch, CPU)))
        late += [
            len(s.row_cache.loaded_in_last_pass) for s in row_schedules(planned[-1][1].plan, info)
        ]
    assert late.count(4) >= len(SIZES), late
    for given, run in planned:
        (found,) = run(given)
        exact = eager([t.double() for t in given])
        error, other = ((t.double() - exact).abs().max() for t in (found, eager(given)))
        floor = 2 * torch.finfo(found.dtype).eps * exact.abs().max()
        assert error <= max(other, floor), given[0].shape


@DEVICES
def test_what_each_row_has_of_its_own_is_there_from_the_first_pass_on(info: DeviceInfo) -> None:
    """A residual comes from memory, which a row waits for once."""
    plan = modulated(56, 1024, 1024, DataType.BFloat16, residual=True).plan()
    (made,) = row_schedules(plan, info)
    names = [access.loads[0].tensor.name for access in made.accesses]
    x, weight, bias, scale, shift, residual = (t.name for t in plan.fusion.inputs)
    assert {names[k] for k in made.row_cache.loaded_in_last_pass} == {weight, bias, scale, shift}
    assert {names[k] for k in made.row_cache.registers} == {x, residual}


def test_registers_with_room_hold_the_whole_row() -> None:
    plan = modulated(56, 1024, 512, DataType.BFloat16).plan()
    (made,) = row_schedules(plan, H200)
    assert (made.row_cache.loaded_in_last_pass, made.min_blocks_hint) == ((), 0)
    assert len(made.row_cache.registers) == 5


@pytest.mark.nvrtc
@each_value(info=[A100, H200, B200], dtype=[DataType.BFloat16, DataType.Float])
def test_eight_blocks_of_128_threads_share_a_multiprocessor(
    info: DeviceInfo, dtype: DataType
) -> None:
    columns = 1024 if dtype is DataType.BFloat16 else 512
    plan = modulated(56, 1024, columns, dtype).plan()
    (found,) = generate_kernels(plan, info).values()
    kernel = found.kernel
    assert (kernel.block[0], kernel.min_blocks_hint) == (128, 8)
    cubin = compile_cubin([kernel], info.arch)
    resources = cubin.resources[kernel.name]
    assert resources.registers <= 64
    assert not resources.spills
    if sass.SKIP_REASON:
        return
    code = sass.disassemble(cubin.image)[kernel.name]
    assert set(code.load_bits) == {128}
