"""Kernels with random numbers: lanes share calls of the generator, and NVRTC likes the text."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.codegen.kernels import kernel_of
from tests.support.building import op
from tests.support.generator import random_case
from tests.support.hash_seeds import printed_under_any
from tests.tools import sass
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.segment.planner import partition

Float, Double, Half, BFloat16 = (
    DataType.Float,
    DataType.Double,
    DataType.Half,
    DataType.BFloat16,
)
SHAPE = [512, 4096]
EACH = (A100, H200, B200)
DEVICES = pytest.mark.parametrize("device", EACH, ids=lambda d: d.arch)


def state(b: FusionBuilder) -> tuple[Scalar, Scalar]:
    return b.scalar(None, DataType.Int), b.scalar(None, DataType.Int)


def uniform(b: FusionBuilder, dtype: DataType = Float) -> TensorView:
    return b.random("uniform", SHAPE, (0.0, 1.0), state(b), dtype)


def read(make: Callable[[FusionBuilder], TensorView]) -> Kernel:
    b = FusionBuilder()
    b.output(make(b))
    return kernel_of(b)


def calls(text: str) -> list[tuple[int, str]]:
    """How many calls of the generator each vector, or each lane, makes, and the first of them."""
    found = re.findall(r"tf::(?:uniforms|normals)<(\d+)>\([^,]*, ([^,]*), ", text)
    return [(int(count), first) for count, first in found]


def lane_loop(text: str) -> str:
    """What is done once for each lane of the result."""
    return text[re.search(r"y0\[\d+\];", text).start() :]  # type: ignore[union-attr]


# ---- text


@pytest.mark.parametrize(
    ("dtype", "call", "count"),
    [(Float, "u", 1), (Double, "u", 1), (Half, "2 * u", 2), (BFloat16, "2 * u", 2)],
    ids=str,
)
def test_a_vector_makes_as_few_calls_as_give_its_numbers(
    dtype: DataType, call: str, count: int
) -> None:
    text = read(lambda b: uniform(b, dtype)).source
    assert calls(text) == [(count, call)]
    assert calls(lane_loop(text)) == []
    assert re.search(r"tf::uniform<\w+>\(t\d+\[v\], ", lane_loop(text))


def test_a_window_that_starts_inside_a_call_makes_one_more() -> None:
    text = read(lambda b: op(b, "neg", b.slice(uniform(b), [0, 2], [512, 4094]))).source
    # The last dimension has 4092 elements, in vectors of four.
    assert [count for count, _ in calls(text)] == [2]
    assert calls(lane_loop(text)) == []
    assert re.search(r"tf::uniform<float>\(t\d+\[v \+ 2\], ", text)


def test_lanes_that_are_no_neighbours_make_calls_of_their_own() -> None:
    def make(b: FusionBuilder) -> TensorView:
        return op(b, "add", b.tensor(SHAPE[::-1], Float), b.permute(uniform(b), [1, 0]))

    text = read(make).source
    assert [count for count, _ in calls(text)] == [1]
    assert calls(lane_loop(text)) == calls(text)
    # Which of the four numbers it is only the running kernel knows.
    assert "tf::dynamic_register(" in lane_loop(text)


def test_one_number_for_a_row_is_drawn_once_for_a_vector() -> None:
    def make(b: FusionBuilder) -> TensorView:
        x = b.tensor(SHAPE, Float)
        scale = b.random("uniform", [512, 1], (0.0, 1.0), state(b), Float)
        return op(b, "mul", x, scale)

    text = read(make).source
    assert text.index("tf::uniform<float>") < text.index("y0[4];")


def test_two_readers_of_one_element_share_its_call() -> None:
    def make(b: FusionBuilder) -> TensorView:
        u = uniform(b)
        kept = b.cast_tensor(op(b, "lt", u, 0.5), Float)
        return op(b, "add", op(b, "mul", u, kept), kept)

    assert len(calls(read(make).source)) == 1


def test_the_name_says_what_is_drawn() -> None:
    kernel = read(lambda b: op(b, "exp", uniform(b)))
    assert kernel.name.startswith("tf_pointwise_uniform_exp_")
    assert "philox.cuh" in kernel.headers


def test_text_does_not_depend_on_hashes() -> None:
    text = "from tests.codegen.test_reduction_kernel import kernels_of\n"
    text += "from tests.support.generator import random_case\n"
    text += "for k in range(6):\n    f = random_case(k, draws=True, reductions=k % 2 == 0).fusion\n"
    text += "    print(*(k.source for k in kernels_of(f)))"
    printed = printed_under_any(text)
    assert printed.count("tf::uniforms<") > 4
    assert "tf::words<" in printed


# ---- machine code


def dropout(b: FusionBuilder, x: TensorView) -> TensorView:
    """p = 0.1, as Thunder takes it apart."""
    dtype = x.dtype
    kept = op(b, "lt", b.random("uniform", x.sizes, (0.0, 1.0), state(b), dtype), 0.9)
    masked = op(b, "mul", b.cast_tensor(x, Float), b.cast_tensor(kept, Float))
    return op(b, "mul", masked, 1 / 0.9)


def dropout_add(dtype: DataType) -> FusionBuilder:
    b = FusionBuilder()
    x, residual = (b.tensor([8192, 4096], dtype) for _ in range(2))
    b.output(b.cast_tensor(op(b, "add", dropout(b, x), residual), dtype))
    return b


def dropout_add_rms_norm(dtype: DataType) -> FusionBuilder:
    b = FusionBuilder()
    x, residual = (b.tensor([8192, 4096], dtype) for _ in range(2))
    weight = b.tensor([4096], dtype)
    total = op(b, "add", dropout(b, x), residual)
    mean = op(b, "mul", b.reduce("sum", op(b, "mul", total, total), [1], keepdim=True), 1 / 4096)
    scaled = op(b, "mul", total, op(b, "rsqrt", op(b, "add", mean, 1e-6)))
    b.output(b.cast_tensor(total, dtype))
    b.output(b.cast_tensor(op(b, "mul", scaled, weight), dtype))
    return b


def noise(dtype: DataType) -> FusionBuilder:
    b = FusionBuilder()
    x = b.tensor([8192, 4096], dtype)
    drawn = b.random("normal", x.sizes, (0.0, 0.5), state(b), dtype)
    b.output(b.cast_tensor(op(b, "add", x, drawn), dtype))
    return b


@DEVICES
@pytest.mark.nvrtc
def test_nothing_is_spilled_and_no_integer_divided(device: DeviceInfo) -> None:
    kernels = [
        kernel_of(make(dtype), device=device)
        for make in (dropout_add, dropout_add_rms_norm)
        for dtype in (Float, BFloat16)
    ]
    cubin = compile_cubin(kernels, device.arch)
    for name, resources in cubin.resources.items():
        assert not resources.spills, f"{name}: {resources}"
        assert not resources.stack_bytes, f"{name}: {resources}"
    if sass.SKIP_REASON:
        pytest.skip(sass.SKIP_REASON)
    for code in sass.disassemble(cubin.image).values():
        assert code.integer_divisions == 0
        assert code.local_accesses == 0


@DEVICES
@pytest.mark.parametrize("count", [15, pytest.param(30, marks=pytest.mark.campaign)])
@pytest.mark.nvrtc
def test_everything_that_can_be_drawn_compiles_without_spills(
    device: DeviceInfo, count: int
) -> None:
    kernels = {}
    for dtype in (Float, Double, Half, BFloat16):
        kernel = kernel_of(noise(dtype), device=device)
        kernels[kernel.name] = kernel
    # NVRTC takes a second for each: every device has seeds of its own.
    for seed in range(7000 + EACH.index(device), 7000 + count, len(EACH)):
        plan = partition(random_case(seed, draws=True, reductions=seed % 2 == 0).fusion)
        for found in generate_kernels(plan, device).values():
            kernels[found.kernel.name] = found.kernel
    drawing = [k for k in kernels.values() if calls(k.source)]
    assert len(drawing) > 5
    cubin = compile_cubin(drawing, device.arch)
    for name, resources in cubin.resources.items():
        assert not resources.spills, f"{name}: {resources}"
