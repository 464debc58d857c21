"""Stores past the caches: of what a host kernel writes and no cache holds afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.runtime.hand_written import kernel
from tests.runtime.host_kernels import CTYPES
from tests.support.building import op
from tests.zoo.norms import NORMS
from thunder_fuser.codegen.kernel import Param
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.runtime.host.target import HOST, HostTarget

CPU = HOST.device_info(torch.device("cpu"))
MIB = 1 << 20
HEADERS = ("types.cuh", "vector.cuh")


def doubled(mib: int, in_place: bool = False) -> Fusion:
    b = FusionBuilder()
    x = b.tensor([mib, MIB // 4], DataType.Float)
    y = op(b, "add", x, x)
    b.output(y, x if in_place else None)
    return b.build()


def turned(side: int) -> Fusion:
    b = FusionBuilder()
    x, y = (b.tensor([side, side], DataType.BFloat16) for _ in range(2))
    b.output(op(b, "add", b.permute(x, [1, 0]), y))
    return b.build()


def softmax(rows: int, columns: int) -> Fusion:
    (norm,) = (n for n in NORMS if n.name == "softmax")
    return norm.definition(rows, columns, DataType.BFloat16).fusion


def streams(fusion: Fusion, device: DeviceInfo = CPU) -> bool:
    (made,) = generate_kernels(CompiledFusion(fusion).plan(), device).values()
    return "tf::stream<" in made.kernel.source


def test_a_kernel_that_moves_more_than_the_caches_hold_writes_past_them() -> None:
    most = CPU.outer_cache_bytes // MIB
    assert streams(doubled(most // 2 + 1))
    assert streams(turned(2560))
    assert streams(softmax(256, 32768))


def test_what_a_cache_holds_stays_there() -> None:
    most = CPU.outer_cache_bytes // MIB
    # Read and overwritten, it is in the cache that would be passed.
    assert not streams(doubled(most, in_place=True))
    for small in (doubled(most // 2), turned(512), softmax(64, 32768)):
        assert not streams(small)


def test_new_pages_are_written_where_they_were_cleared() -> None:
    most = CPU.fresh_bytes // MIB
    assert streams(doubled(most - 1))
    assert not streams(doubled(most))


def test_a_gpu_reads_no_line_that_it_overwrites() -> None:
    assert not streams(doubled(CPU.outer_cache_bytes // MIB), H200)


@pytest.mark.parametrize(
    "make",
    [lambda: doubled(2), lambda: turned(520), lambda: softmax(9, 4096), lambda: softmax(9, 999)],
)
def test_numbers(make: Callable[[], Fusion], monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CPU, outer_cache_bytes=1, l2_bytes=1)
    monkeypatch.setattr(HostTarget, "device_info", lambda *_: small)
    fusion = make()
    torch.manual_seed(0)
    inputs = [randn(t) for t in fusion.inputs if isinstance(t, TensorView)]
    compiled = CompiledFusion(fusion)
    torch.testing.assert_close(compiled(inputs), compiled.in_torch(inputs))


def randn(tensor: TensorView) -> torch.Tensor:
    dtype = torch.float32 if tensor.dtype is DataType.Float else torch.bfloat16
    return torch.randn(tuple(map(int, tensor.domain.sizes))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_vectors_that_begin_anywhere_in_a_line(dtype: torch.dtype) -> None:
    """Whoever allocates aligns to 16 bytes at least."""
    width, step = 64, 16 // dtype.itemsize
    element = CTYPES[dtype]
    body = f"  {element} v[{width}];\n  tf::load<{width}>(x, v);\n  tf::stream<{width}>(y, v);"
    params = (Param("x", f"const {element}*"), Param("y", f"{element}*"))
    name = f"streamed_{str(dtype).removeprefix('torch.')}"
    (launch,) = HOST.compile([kernel(name, body, params, headers=HEADERS, block=(1, 1, 1))])
    x = torch.arange(width).to(dtype)
    for offset in range(0, 5 * step, step):
        memory = torch.zeros(width + 5 * step, dtype=dtype)
        launch(x.data_ptr(), memory[offset:].data_ptr())
        expected = torch.zeros_like(memory)
        expected[offset : offset + width] = x
        assert torch.equal(memory, expected)
