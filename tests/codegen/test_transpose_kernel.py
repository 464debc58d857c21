"""Transpose kernels: numbers against torch bit for bit, any order of threads, machine code."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, Guarded, allocations, batch_for, executable
from tests.support.building import op
from tests.support.generator import random_case
from tests.support.hash_seeds import printed_under_any
from tests.support.inputs import on_device
from tests.support.shares import each_architecture, each_value
from tests.tools import sass
from tests.zoo.workloads import BY_NAME
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import compile_plan, generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.host.debug import check_orders
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.transpose import axes, schedule

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = torch.device("cpu")
SMALL = replace(H200, sm_count=1)
"""Whose tiles are as large for small tensors as an H200's are for large ones."""
SCHEDULES = pytest.mark.parametrize("info", [None, H200, SMALL], ids=["own", "H200", "large"])
SIZES = (1, 2, 31, 33, 127, 1000)
ENOUGH = [2, pytest.param(4, marks=pytest.mark.campaign)]
"""Random fusions that become transpose kernels, which compilers take seconds for."""
TURNED = [f"transpose_{k}_{t}" for k in ("add", "cube") for t in ("bf16", "float")]


class Case:
    """y + 2 x and -y - 2 x with the dimensions of x in another order, in one kernel."""

    def __init__(
        self, shape: Sequence[int], order: Sequence[int], dtype: DataType, other: DataType
    ) -> None:
        self.name = f"{shape} {order} {dtype} {other}"
        self.order = order
        turned = [shape[k] for k in order]
        self.inputs = [_numbers(shape, dtype), _numbers(turned, other)]
        b = FusionBuilder()
        x, y = b.tensor(shape, dtype), b.tensor(turned, other)
        both = op(b, "add", y, op(b, "mul", b.permute(x, order), 2.0))
        b.output(both)
        b.output(op(b, "neg", both))
        self.compiled = CompiledFusion(b.build())

    def check(self, found: Sequence[torch.Tensor]) -> None:
        x, y = self.inputs
        exact = y.double() + x.double().permute(*self.order) * 2
        for mine, truth in zip(found, (exact, -exact), strict=True):
            assert torch.equal(mine.cpu().double(), truth), self.name


def _numbers(shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    """Small integers: every type computes with them exactly."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randint(-8, 8, tuple(shape), generator=generator).to(dtype.torch)


def turns(run: Executable) -> bool:
    return any(k.name.startswith("tf_transpose_") for k in run.kernels)


def check_all(cases: Sequence[Case], device: torch.device, info: DeviceInfo | None) -> int:
    """Every case in one program; how many of them are transpose kernels."""
    batch = batch_for(device, info)
    moved = [on_device(case.inputs, device) for case in cases]
    runs = [
        executable(case.compiled, inputs, batch, device)
        for case, inputs in zip(cases, moved, strict=True)
    ]
    for case, inputs, run in zip(cases, moved, runs, strict=True):
        assert len(run.kernels) == 1
        case.check(run(inputs))
    return sum(map(turns, runs))


# ---- numbers


@SCHEDULES
def test_matrices_of_any_size(device: torch.device, info: DeviceInfo | None) -> None:
    """Also those that no tile and no vector divides."""
    pairs = [(n, m) for n, m in itertools.product(SIZES, SIZES) if n * m <= 150_000]
    cases = [Case(pair, (1, 0), BFloat16, BFloat16) for pair in pairs]
    enough = [p for p in pairs if min(p) * 2 >= 32]
    assert check_all(cases, device, info) == len(enough) > 10


@each_value(
    info=[None, H200, SMALL],
    **{
        "dtype,other": [
            (BFloat16, Float),
            (Float, BFloat16),
            (DataType.Double, DataType.Half),
            (DataType.Int8, Float),
            (DataType.Bool, DataType.Double),
            (DataType.Int, DataType.Int32),
        ]
    },
)
def test_types_of_any_width(
    device: torch.device, info: DeviceInfo | None, dtype: DataType, other: DataType
) -> None:
    shapes = [(96, 160), (100, 132), (65, 130)]
    cases = [Case(shape, (1, 0), dtype, other) for shape in shapes]
    assert check_all(cases, device, info) == len(cases)


def random_cases(seed: int, count: int) -> list[Case]:
    rng = random.Random(seed)
    found: list[Case] = []
    while len(found) < count:
        rank = rng.randint(2, 5)
        shape = [rng.choice([1, 2, 3, 5, 31, 33, 64, 127, 160]) for _ in range(rank)]
        if math.prod(shape) <= 60_000:
            order = rng.sample(range(rank), rank)
            found.append(Case(shape, order, *rng.choices([BFloat16, Float, DataType.Int8], k=2)))
    return found


@SCHEDULES
def test_random_permutations(device: torch.device, info: DeviceInfo | None) -> None:
    assert check_all(random_cases(0, 15), device, info) >= 2


@pytest.mark.campaign
@SCHEDULES
def test_many_random_permutations(device: torch.device, info: DeviceInfo | None) -> None:
    for seed in range(4):
        check_all(random_cases(seed, 60), device, info)


@pytest.mark.slow
@pytest.mark.parametrize("enough", ENOUGH)
@pytest.mark.parametrize(("info", "first"), [(None, 0), (H200, 1)], ids=["own", "H200"])
def test_random_fusions_with_tiles_however_few_points_there_are(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    info: DeviceInfo | None,
    first: int,
    enough: int,
) -> None:
    """Over the whole op table, views and several outputs; every element within its bound."""
    monkeypatch.setattr(schedule, "find_axes", lambda group, _: axes.find_axes(group, 1))
    monkeypatch.setattr(axes, "SHORTEST_I", 4)
    batch = batch_for(device, info)
    planned = []
    for case in map(random_case, range(first, 320, 2)):
        inputs = case.fresh_inputs(device)
        run = executable(CompiledFusion(case.fusion), inputs, batch, device)
        if turns(run):
            planned.append((case, inputs, run))
        if len(planned) == enough:
            break
    assert len(planned) == enough
    for case, inputs, run in planned:
        case.check(run(inputs), case.updated(inputs))


@SCHEDULES
def test_strides_that_are_not_dense_and_memory_that_is_not_aligned(
    device: torch.device, info: DeviceInfo | None
) -> None:
    batch = batch_for(device, info)
    ready = []
    for rows, columns, gap, offset in (
        (128, 128, 8, 0), (128, 128, 4, 0), (130, 66, 3, 1), (128, 96, 8, 4), (65, 129, 0, 2),
    ):  # fmt: skip
        b = FusionBuilder()
        x = b.tensor([2, rows, columns], BFloat16, contiguity=[False, False, True])
        b.output(b.stride_order(op(b, "neg", b.permute(x, [0, 2, 1])), [2, 1, 0]))
        memory = _numbers([2 * rows * (columns + gap) + offset], BFloat16).to(device)
        data = memory[offset:].view(2, rows, columns + gap)[:, :, :columns]
        run = executable(CompiledFusion(b.build()), [data], batch, device)
        assert turns(run)
        ready.append((data, run))
    for data, run in ready:
        (found,) = run([data])
        assert torch.equal(found, -data.float().transpose(1, 2))


@SCHEDULES
def test_pads_cats_and_broadcasts_beside_a_tile(
    device: torch.device, info: DeviceInfo | None
) -> None:
    b = FusionBuilder()
    x, y, z = b.tensor([96, 72], Float), b.tensor([72, 88], Float), b.tensor([72, 8], Float)
    row, column = b.tensor([96], Float), b.tensor([72, 1], Float)
    turned = op(b, "mul", b.permute(x, [1, 0]), row)
    total = op(b, "add", op(b, "add", b.cat([y, z], 1), turned), column)
    b.output(op(b, "add", total, b.pad(y, [5, 3], 1.5)))
    data = [_numbers(t.shape, Float) for t in map(torch.empty, ((96, 72), (72, 88), (72, 8)))]
    data += [_numbers([96], Float), _numbers([72, 1], Float)]
    moved = [t.to(device) for t in data]
    run = executable(CompiledFusion(b.build()), moved, batch_for(device, info), device)
    assert turns(run)
    (found,) = run(moved)
    exact = torch.cat([data[1], data[2]], 1) + data[0].t() * data[3] + data[4]
    exact = exact + torch.nn.functional.pad(data[1], (5, 3), value=1.5)
    assert torch.equal(found.cpu(), exact)


@SCHEDULES
def test_more_inputs_than_shared_memory_has_room_for(
    device: torch.device, info: DeviceInfo | None
) -> None:
    b = FusionBuilder()
    tensors = [b.tensor([64, 80], DataType.Double) for _ in range(40)]
    total = b.permute(tensors[0], [1, 0])
    for x in tensors[1:]:
        total = op(b, "add", total, b.permute(x, [1, 0]))
    b.output(b.stride_order(total, [1, 0]))
    data = [(torch.ones(64, 80).double() * k + torch.arange(80)).to(device) for k in range(40)]
    run = executable(CompiledFusion(b.build()), data, batch_for(device, info), device)
    assert turns(run)
    (found,) = run(data)
    assert torch.equal(found, sum(data).t())  # type: ignore[union-attr]


def test_a_transposed_update_in_place(device: torch.device) -> None:
    b = FusionBuilder()
    x, y = b.tensor([130, 130], Float), b.tensor([130, 130], Float)
    b.output(op(b, "add", y, b.permute(x, [1, 0])), y)
    data = [_numbers([130, 130], Float).to(device) for _ in range(2)]
    exact = data[1] + data[0].t()
    run = executable(CompiledFusion(b.build()), data, batch_for(device, None), device)
    assert turns(run)
    run(data)
    assert torch.equal(data[1], exact)


def test_nan_infinities_and_zeros_go_through_as_they_are(device: torch.device) -> None:
    x = torch.randn(64, 96)
    x[3, 5], x[4, 6], x[5, 7], x[6, 8] = torch.nan, torch.inf, -torch.inf, -0.0
    b = FusionBuilder()
    b.output(b.set(b.stride_order(b.permute(b.tensor([64, 96], Float), [1, 0]), [1, 0])))
    run = executable(CompiledFusion(b.build()), [x], batch_for(device, None), device)
    (found,) = run([x.to(device)])
    bits = x.t().contiguous().view(torch.int32)
    assert torch.equal(found.cpu().contiguous().view(torch.int32), bits)


# ---- checked launches


def two_parts() -> FusionBuilder:
    """A tile with ragged edges, two inputs through it, and a part of a pointwise kernel."""
    b = FusionBuilder()
    x, z = b.tensor([3, 100, 72], BFloat16), b.tensor([3, 100, 72], BFloat16)
    total = op(b, "add", b.permute(x, [0, 2, 1]), op(b, "exp", b.permute(z, [0, 2, 1])))
    b.output(b.stride_order(total, [2, 1, 0]))
    b.output(op(b, "neg", b.tensor([999], Float)))
    return b


@pytest.mark.parametrize("info", [None, H200, SMALL], ids=["own", "H200", "large"])
def test_no_order_of_threads_changes_a_bit_and_nothing_is_out_of_bounds(
    info: DeviceInfo | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = CompiledFusion(two_parts().build())
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(3, 100, 72, generator=generator).bfloat16() for _ in range(2))
    inputs = [x, z, torch.randn(999, generator=generator)]
    batch = Batch(CPU, info)
    plan = compiled.plan(inputs)
    (generated,) = generate_kernels(plan, batch.device_info(CPU)).values()
    kernel = generated.kernel
    assert kernel.name.startswith("tf_transpose_")
    assert kernel.collectives == (info is not None)
    assert kernel.block[0] == 256
    given = dict(zip(plan.fusion.inputs, inputs, strict=True))
    given |= {t: torch.zeros(t.sizes) for t in plan.fusion.outputs}
    check_orders(kernel, [given[bound] for bound in generated.arguments], seeds=2)
    exact = x.float().transpose(1, 2) + z.float().transpose(1, 2).exp()
    for order in ("forward", "reverse", "random"):
        guarded = Guarded(batch, plan, order, 1)
        guarded.memory += inputs
        with allocations(monkeypatch, guarded.memory.append):
            run = compile_plan(plan, CPU, guarded)
        found = run(inputs)
        assert guarded.launches == 1
        torch.testing.assert_close(found[0], exact, rtol=1e-6, atol=1e-6)


def test_the_option_for_debugging(b: FusionBuilder) -> None:
    case = Case((70, 90), (1, 0), BFloat16, Float)
    with options(host_debug=True):
        case.check(case.compiled(case.inputs))


def test_same_bits_for_any_number_of_threads() -> None:
    x = torch.randn(300, 500, generator=torch.Generator().manual_seed(0))
    b = FusionBuilder()
    b.output(b.stride_order(op(b, "exp", b.permute(b.tensor([300, 500], Float), [1, 0])), [1, 0]))
    compiled = CompiledFusion(b.build())
    found = []
    for threads in (1, 2, 5):
        with options(host_threads=threads):
            run = executable(compiled, [x], Batch(CPU), CPU)
            found += [run([x])[0], run([x])[0]]
    assert all(torch.equal(t, found[0]) for t in found)


# ---- text and machine code


def test_text_does_not_depend_on_hashes() -> None:
    text = "from tests.codegen.test_transpose_kernel import *\n"
    text += "for info in (H200, HOST.device_info(CPU)):\n"
    text += "  for c in [CompiledFusion(two_parts().build())]:\n"
    text += "    print(*(k.kernel.source for k in generate_kernels(c.plan(), info).values()))"
    assert printed_under_any(text).count("tf_transpose_") == 2


@functools.cache
def full_kernels(device: DeviceInfo) -> dict[str, Kernel]:
    found = {}
    for name in TURNED:
        plan = CompiledFusion(BY_NAME[name].fusion(BY_NAME[name].full)).plan()
        (generated,) = generate_kernels(plan, device).values()
        found[name] = generated.kernel
    return found


@pytest.mark.parametrize("name", TURNED)
def test_tensors_of_full_size_are_transpose_kernels_on_every_device(name: str) -> None:
    for device in (A100, H200, B200, HOST.device_info(CPU)):
        assert full_kernels(device)[name].name.startswith("tf_transpose_add_")


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@pytest.mark.parametrize("name", TURNED)
def test_what_a_tile_takes_is_asked_for_before_anybody_waits(name: str) -> None:
    """Each element once, 16 bytes at a time; enough of them under way before the first use."""
    kernel = full_kernels(H200)[name]
    cubin = compile_cubin([kernel], H200.arch)
    code = sass.disassemble(cubin.image)[kernel.name]
    names = [opcode.partition(".")[0] for opcode in code.opcodes]
    side = 128 if name.endswith("bf16") else 64
    accesses = side * side * (2 if name.endswith("bf16") else 4) // 16 // 256
    assert (code.load_bits, code.store_bits) == ({128: 2 * accesses}, {128: accesses})
    assert [names.count(n) for n in ("LDS", "STS", "BAR")] == [accesses, accesses, 1]
    waiting = names[: names.index("STS")].count("LDG")
    assert waiting == accesses
    resident = min(65536 // (cubin.resources[kernel.name].registers * 256), 2048 // 256)
    resident = min(resident, H200.shared_bytes_per_sm // (kernel.shared_bytes + 1024))
    assert waiting * 16 * 256 * resident >= H200.bytes_in_flight_per_sm


@pytest.mark.nvrtc
@each_architecture("sm_100")
def test_kernels_of_every_width_compile_without_spills(device: DeviceInfo) -> None:
    narrow = [(DataType.Int8, BFloat16), (BFloat16, Float), (Float, Float), (Float, BFloat16)]
    wide = [(DataType.Double, BFloat16), (DataType.Int, DataType.Int32)]
    kernels: dict[str, Kernel] = {}
    for info in (device, replace(device, sm_count=1)):
        for n, types in itertools.product((512, 500, 333), narrow + wide):
            plan = Case((n, n), (1, 0), *types).compiled.plan()
            (generated,) = generate_kernels(plan, info).values()
            kernels[generated.kernel.name] = generated.kernel
    assert len(kernels) > 24
    for name, resources in compile_cubin(list(kernels.values()), device.arch).resources.items():
        assert name.startswith("tf_transpose_")
        assert not resources.spills, f"{name}: {resources}"
        assert resources.registers <= 128
