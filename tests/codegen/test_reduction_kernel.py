"""Row kernels: norms against float64, bits that nothing changes, text, and registers by NVRTC."""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, batch_for, executable
from tests.support.generator import random_case
from tests.support.hash_seeds import printed_under_any
from tests.support.shares import each_value
from tests.zoo.norms import NORMS
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.debug import check_orders, debug_launch
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition

Float, BFloat16 = DataType.Float, DataType.BFloat16
LENGTHS = (2, 33, 1000, 4096)
ROWS = 3


def kernels_of(fusion: Fusion, device: DeviceInfo = H200) -> list[Kernel]:
    return [k.kernel for k in generate_kernels(partition(fusion), device).values()]


def error(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return (found.double() - exact).abs().max()


# ---- numbers


@each_value(schedule=["own", "H200"], dtype=[Float, BFloat16])
def test_norms_are_no_worse_than_in_eager(
    device: torch.device, schedule: str, dtype: DataType
) -> None:
    """Against float64 on the rounded inputs; eager runs on the same dtype, one operation a time."""
    batch = batch_for(device, schedule)
    planned = []
    for norm in NORMS:
        for columns in LENGTHS:
            inputs = norm.inputs(ROWS, columns, dtype.torch)
            fusion = norm.definition(ROWS, columns, dtype).fusion
            moved = [x.to(device) for x in inputs]
            run = executable(CompiledFusion(fusion), moved, batch, device)
            assert run.plan.kernels == 1
            planned.append((norm, columns, inputs, moved, run))
    for norm, columns, inputs, moved, run in planned:
        found = [t.cpu() for t in run(moved)]
        exact = norm.eager(*(x.double() for x in inputs))
        eager = norm.eager(*inputs)
        for ours, theirs, truth in zip(found, eager, exact, strict=True):
            floor = 2 * torch.finfo(ours.dtype).eps * (1 + truth.abs().max())
            assert error(ours, truth) <= torch.maximum(error(theirs, truth), floor), (
                norm.name,
                columns,
            )


def statistics() -> FusionDefinition:
    """Several reductions of several types in two stages, and stores of every kind."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([37, 1000], True, Float)
        var, mean = fd.ops.var_mean(x, [1], 1, True)
        fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(var)))
        for value in (fd.ops.max(x, [1]), fd.ops.sum(x, [1], dtype=DataType.Double), var):
            fd.add_output(value)
        fd.add_output(fd.ops.any(fd.ops.gt(x, 3.0), [1]))
        fd.add_output(fd.ops.argmin(fd.ops.round(x), [1]))
        fd.add_output(fd.ops.sum(x, [0]))
    return fd


def bits(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in tensors]


@pytest.mark.parametrize("schedule", ["own", "H200"])
def test_same_bits_on_every_run_and_any_number_of_threads(
    device: torch.device, schedule: str
) -> None:
    x = torch.randn(37, 1000, generator=torch.Generator().manual_seed(0)).to(device)
    run = executable(CompiledFusion(statistics().fusion), [x], batch_for(device, schedule), device)
    first = bits(run([x]))
    for threads in (1, 2, 3, 5):
        with options(host_threads=threads):
            again = executable(
                CompiledFusion(statistics().fusion), [x], batch_for(device, schedule), device
            )
            for _ in range(2):
                assert all(map(torch.equal, bits(again([x])), first)), threads


def collective_kernels() -> list[tuple[Kernel, list[torch.Tensor]]]:
    """Two threads a row, a warp a row, blocks of several warps; one stage and two; spare rows."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for name, rows, columns in (
        ("rms_norm", 70, 7), ("softmax", 5, 96), ("softmax", 3, 130), ("layer_norm", 3, 1030),
        ("softmax_backward", 2, 5000),
    ):  # fmt: skip
        norm = next(n for n in NORMS if n.name == name)
        fusion = norm.definition(rows, columns, Float).fusion
        (kernel,) = kernels_of(fusion)
        given = {t.name: x for t, x in zip(
            fusion.inputs, norm.inputs(rows, columns, torch.float32), strict=True
        )}  # fmt: skip
        given |= {t.name: torch.zeros(t.sizes) for t in fusion.outputs}
        found.append((kernel, [given[p.name] for p in kernel.params]))
    b = FusionBuilder()
    x = b.tensor([40, 300], DataType.ComplexFloat)
    b.output(b.reduce("sum", x, [1]))
    b.output(b.reduce("all", x, [1]))
    (kernel,) = kernels_of(b.build())
    data = torch.randn(40, 300, dtype=torch.complex64, generator=generator)
    found.append((kernel, [data, torch.zeros(40, dtype=torch.complex64), torch.zeros(40).bool()]))
    b = FusionBuilder()
    y = b.tensor([2, 3000], DataType.Double)
    b.output(b.reduce("argmax", y, [1]))
    b.output(b.reduce("argmin", b.cast_tensor(y, Float), [1]))
    (kernel,) = kernels_of(b.build())
    data = torch.randint(0, 3, (2, 3000), generator=generator).double()
    found.append((kernel, [data, torch.zeros(2).long(), torch.zeros(2).long()]))
    return found


def test_no_order_of_threads_changes_a_bit_and_fast_collectives_are_faithful() -> None:
    made = collective_kernels()
    launches = HOST.compile([kernel for kernel, _ in made])
    sizes = set()
    for (kernel, args), launch in zip(made, launches, strict=True):
        assert kernel.collectives
        sizes.add(kernel.block[0])
        check_orders(launch, args, seeds=2)
        faithful = [x.clone() for x in args]
        debug_launch(launch, faithful)
        launch(*(x.data_ptr() for x in args))
        assert all(torch.equal(a, b) for a, b in zip(args, faithful, strict=True)), kernel.name
    assert len(sizes) > 1


# ---- text


def test_text_does_not_depend_on_hashes() -> None:
    text = "from tests.codegen.test_reduction_kernel import kernels_of, statistics\n"
    text += "from tests.support.generator import random_case\n"
    text += "for f in [statistics().fusion, *(random_case(k, reductions=True).fusion for k in "
    text += "range(12))]:\n    print(*(k.source for k in kernels_of(f)))"
    assert printed_under_any(text).count("tf_reduction_") >= 4


def test_rows_are_loaded_once_before_anything_is_computed() -> None:
    for norm in NORMS:
        (kernel,) = kernels_of(norm.definition(64, 4096, BFloat16).fusion)
        assert kernel.source.count("tf::load<8>") == sum(k in "xw" for k in norm.operands)
        last = kernel.source.rindex("tf::load<8>")
        assert last < kernel.source.index("::combine("), norm.name
        assert kernel.source.count("tf::store<8>") == norm.results.count("x")


def test_long_chains_of_additions_are_cut() -> None:
    """A chain as long as the row would be wrong by a hundred times as much."""
    length = 1 << 17
    for sizes, dims in (((1, length), [1]), ((length, 1), [0])):
        b = FusionBuilder()
        x = b.tensor(sizes, Float)
        b.output(b.reduce("sum", b.pointwise("add", x, 0.1), dims))  # type: ignore[arg-type]
        fusion = b.build()
        data = torch.zeros(sizes)
        cpu = torch.device("cpu")
        (found,) = executable(CompiledFusion(fusion), [data], Batch(cpu), cpu)([data])
        exact = length * float(torch.tensor(0.1))
        assert abs(found.item() - exact) < 1e-6 * exact


@pytest.mark.parametrize("schedule", ["own", "H200"])
def test_values_of_a_row_are_read_once_however_they_are_guarded(
    device: torch.device, schedule: str
) -> None:
    """Pieces of a concatenation share an access; guards against missing columns are dropped."""
    b = FusionBuilder()
    x, w = b.tensor([7], Float), b.tensor([5, 1], Float)
    joined = b.reshape(b.cat([b.slice(x, [1], [7]), x, x], 0), [20, 1])
    total = b.reduce("sum", joined, [1], keepdim=True)
    b.output(b.apply("mul", (joined, total), Float))
    row = b.reduce("sum", b.expand(w, [-1, 13]), [1], keepdim=True)
    b.output(b.apply("add", (row, w), Float))
    b.output(b.reduce("max", b.pad(b.expand(w, [-1, 13]), [2, 1], 1.5), [1]))
    data = [torch.arange(7.0), torch.arange(5.0)[:, None] - 2]
    batch = batch_for(device, schedule)
    moved = [t.to(device) for t in data]
    found = executable(CompiledFusion(b.build()), moved, batch, device)(moved)
    squares = torch.cat([data[0][1:], data[0], data[0]])[:, None] ** 2
    for value, exact in zip(
        found, (squares, 14 * data[1], data[1][:, 0].clamp(min=1.5)), strict=True
    ):
        assert torch.equal(value.cpu(), exact)


# ---- NVRTC


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)
def test_norms_of_full_size_compile_without_spills(device: DeviceInfo) -> None:
    full = [norm.definition(8192, 4096, BFloat16) for norm in NORMS]
    full += [n.definition(4096, 32768, BFloat16) for n in NORMS if n.operands == "x"]
    kernels = [k for definition in full for k in kernels_of(definition.fusion, device)]
    cubin = compile_cubin(kernels, device.arch)
    assert len(cubin.resources) == len(full)
    for name, resources in cubin.resources.items():
        assert not resources.spills, f"{name}: {resources}"


@pytest.mark.nvrtc
def test_random_row_kernels_compile() -> None:
    kernels = {}
    for seed in range(24):
        plan = CompiledFusion(random_case(seed, reductions=True).fusion).plan()
        for generated in generate_kernels(plan, H200).values():
            kernels[generated.kernel.name] = generated.kernel
    cubin = compile_cubin(list(kernels.values()), H200.arch)
    assert set(cubin.resources) == set(kernels)
