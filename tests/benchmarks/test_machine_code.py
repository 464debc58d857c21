"""Instructions of the part of a kernel that moves most, of machine code."""

from __future__ import annotations

import functools

import pytest

from benchmarks import machine_code
from tests.tools import sass
from tests.zoo.reductions import REDUCTIONS
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, H200
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON),
]


@functools.cache
def code_of(name: str, device: DeviceInfo) -> sass.Sass:
    reduction = next(r for r in REDUCTIONS if r.name == name)
    plan = reduction.definition(8192, 4096, DataType.BFloat16).plan()
    (generated,) = generate_kernels(plan, device).values()
    name = generated.kernel.name
    return sass.disassemble(compile_cubin([generated.kernel], device.arch).image)[name]


@pytest.mark.parametrize("device", [A100, H200], ids=lambda d: d.arch)
def test_a_norms_backward_is_hot_in_its_loop_over_rows(device: DeviceInfo) -> None:
    """Two loads and a store of a vector, and one statistic: nothing of the first row, nor of the
    parts that blocks leave and add up.
    """
    assert machine_code.hot(code_of("rms_norm_backward", device)).accesses == 3.25


def test_both_architectures_have_about_as_many_instructions() -> None:
    """On an A100 a loop adds parts up behind the barrier, since its blocks are fewer than columns
    need: counted with the rows it made 57 instructions of 40.
    """
    a100, h200 = (machine_code.hot(code_of("layer_norm_backward", d)) for d in (A100, H200))
    assert a100.per_access == pytest.approx(h200.per_access, rel=0.1)
