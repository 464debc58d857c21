"""Statistics in one pass: numbers against float64, bits that no order changes, and what is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, batch_for, executable
from tests.support.schedules import row_schedules
from tests.support.shares import each_architecture, each_value
from tests.zoo import losses
from tests.zoo.norms import NORMS, Norm
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import compute_dtype, from_torch
from thunder_fuser.kernel_ir import Scratch
from thunder_fuser.lower.scalar_graph import reachable
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host import build as host_build
from thunder_fuser.runtime.host.debug import check_orders
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.reduction.on_chip.unrolling import default_unroll
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

Float, BFloat16, Double = DataType.Float, DataType.BFloat16, DataType.Double
INF, NAN = float("inf"), float("nan")
CPU = HOST.device_info(torch.device("cpu"))
ALONE = replace(H200, clusters=())
"""Whose blocks do not reach each other's shared memory."""
SCHEDULES = pytest.mark.parametrize("schedule", ["own", "H200"])


def times_read(schedule: ReductionSchedule) -> int:
    """How often a row is read from memory, by the most that any of it is."""
    return max(map(schedule.row_cache.reads, range(len(schedule.accesses))))


# ---- the fold


def folded(op: str, x: torch.Tensor, dims: Sequence[int]) -> CompiledFusion:
    """One fold, whatever a schedule would prefer."""
    b = FusionBuilder()
    t = b.tensor(x.shape, from_torch(x.dtype))
    wide = compute_dtype(t.dtype)
    values = t if t.dtype is wide else b.cast_tensor(t, wide)
    b.output(b.fold(op, values, dims, wide, wide))
    return CompiledFusion(b.build())


def samples() -> list[torch.Tensor]:
    """Few and many elements near zero, far from it, all equal, and behind one that is far off."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for length in (1, 2, 31, 33, 127, 1000, 4099, 50257):
        x = torch.randn(5, length, generator=generator)
        x[1] += 1e4
        x[2] = 0.1
        x[3, 0] = 3e4
        x[4] *= 1e-4
        found.append(x)
    return found


@each_value(schedule=["own", "H200"], dtype=[torch.float32, torch.float64, torch.bfloat16])
def test_squared_deviations_are_no_worse_than_in_eager(
    device: torch.device, schedule: str, dtype: torch.dtype
) -> None:
    batch = batch_for(device, schedule)
    runs = []
    for sample in samples():
        x = sample.to(dtype)
        for given, dim in ((x, 1), (x.t().contiguous(), 0)):
            moved = given.to(device)
            runs.append(
                (
                    given,
                    dim,
                    moved,
                    executable(folded("squared_deviations", given, [dim]), [moved], batch, device),
                )
            )
    for given, dim, moved, run in runs:
        (found,) = run([moved])
        wide, count = found.dtype, given.shape[dim]
        apart = given.double() - given.double().mean(dim, keepdim=True)
        exact = apart.square().sum(dim) - apart.sum(dim).square() / count
        eager = given.to(wide).var(dim, correction=0).double() * count
        # Where the first of a chain is far off, all others are as far from it.
        scale = torch.tensor([32, 32, 32, 128, 32]) * torch.finfo(wide).eps * exact
        assert bool(((found.cpu().double() - exact).abs() <= (eager - exact).abs() + scale).all())


@SCHEDULES
@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 1e30), (torch.float64, 1e300)])
def test_squared_deviations_that_overflow_are_infinite(
    device: torch.device,
    schedule: str,
    dtype: torch.dtype,
    large: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a CPU without FMA: the product that is subtracted overflows for itself.
    monkeypatch.setitem(host_build._KERNEL_FLAGS, None, ("-fwrapv", "-ffp-contract=off"))
    batch = batch_for(device, schedule)
    x = torch.ones(4, 300, dtype=dtype)
    x[0, 0], x[1, 7], x[2, 299] = large, -large, large
    x[3, ::2] = large
    runs = [
        (t, executable(folded("squared_deviations", t, [d]), [t.to(device)], batch, device))
        for t, d in ((x, 1), (x.t().contiguous(), 0))
    ]
    for given, run in runs:
        assert run([given.to(device)])[0].tolist() == [INF] * 4


@SCHEDULES
def test_nothing_one_element_nan_and_infinities(device: torch.device, schedule: str) -> None:
    batch = batch_for(device, schedule)
    x = torch.ones(7, 300)
    x[0, 7], x[1, 0], x[2, 299], x[3, 5], x[3, 250] = NAN, INF, -INF, INF, -INF
    x[4], x[5] = INF, 3e38
    given = [(x, 1), (x.t().contiguous(), 0), (x[1:2, :1], 1), (x[6:, :1], 1), (x[:, :0], 1)]
    runs = [
        (t, executable(folded("squared_deviations", t, [d]), [t.to(device)], batch, device))
        for t, d in given
    ]
    rows, columns, infinite, single, nothing = (run([t.to(device)])[0].cpu() for t, run in runs)
    for found in (rows, columns):
        assert found[:5].isnan().all()
        assert found[5:].tolist() == [0, 0]
    assert infinite.isnan().all()
    assert single.tolist() == [0]
    assert nothing.tolist() == [0] * 7


@each_value(schedule=["own", "H200"], dtype=[torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_exponentials_are_no_worse_than_in_eager(
    device: torch.device, schedule: str, dtype: torch.dtype
) -> None:
    """Also where every element is larger than those before it, and where some are -inf."""
    batch = batch_for(device, schedule)
    runs = []
    for sample in samples():
        sample[0] *= 20
        sample[1] = torch.linspace(-80, 80, sample.shape[1])
        sample[2, ::3] = -INF
        sample[2, -1] = 0
        x = sample.to(dtype)
        for given, dim in ((x, 1), (x.t().contiguous(), 0)):
            moved = given.to(device)
            compiled = folded("sum_exp", given, [dim])
            runs.append((given, dim, moved, executable(compiled, [moved], batch, device)))
    for given, dim, moved, run in runs:
        (found,) = run([moved])
        eager, exact = (
            (x - x.amax(dim, keepdim=True)).exp().sum(dim)
            for x in (given.to(found.dtype), given.double())
        )
        allowed = (eager.double() - exact).abs() + 32 * torch.finfo(found.dtype).eps * exact
        assert bool(((found.cpu().double() - exact).abs() <= allowed).all())


# ---- rows that cannot be held

NAMES = ("softmax", "log_softmax", "softmax_backward", "layer_norm")


def norm(name: str) -> Norm:
    return next(n for n in NORMS if n.name == name)


def vector_loads(kernel: Kernel) -> int:
    """Places of a text that load eight elements; under a test they are fetched as words."""
    return kernel.source.count("tf::load<8>(") + kernel.source.count("tf::raw_load<8>(")


@pytest.mark.parametrize("columns", [131072, 262144])
def test_long_rows_are_read_once_for_the_statistics_and_once_for_the_output(columns: int) -> None:
    for name in NAMES:
        plan = norm(name).definition(256, columns, BFloat16).plan()
        (made,) = row_schedules(plan, ALONE)
        assert (made.stages, times_read(made)) == (1, 2), name
        # As the text has it: each pass reads each input of the row's length in one place.
        (kernel,) = (k.kernel for k in generate_kernels(plan, ALONE).values())
        loads = vector_loads(kernel)
        passes, once = norm(name).operands.count("x"), norm(name).operands.count("w")
        assert loads == 2 * passes + once, name
    for rows, mean in ((64, False), (4096, True)):
        loss = losses.cross_entropy(rows, columns, BFloat16, mean=mean).plan()
        (made,) = row_schedules(loss)
        assert (made.stages, times_read(made)) == (1, 1)
        (kernel,) = (k.kernel for k in generate_kernels(loss, H200).values())
        assert vector_loads(kernel) == 1


def test_every_pass_over_a_long_row_has_enough_bytes_in_flight() -> None:
    for name in NAMES:
        (made,) = row_schedules(norm(name).definition(64, 131072, BFloat16).plan(), ALONE)
        for number, roots in enumerate(made.passes):
            unroll = made.unrolling.factors[number]
            if made.is_compiler_unrolled(number):
                unroll = default_unroll(made, number)
            wanted = reachable(roots)
            read = [a for a in made.accesses if not wanted.isdisjoint(a.loads)]
            each = sum(a.loads[0].dtype.itemsize for a in read) * made.lanes.vector
            assert each * unroll * made.block_threads >= H200.bytes_in_flight_per_sm, name


@each_value(
    clusters=[True, False],
    rows=[(BFloat16, 65537), (Float, 65537), (BFloat16, 131072), (Float, 262144)],
)
def test_long_rows_have_the_numbers_of_torch(clusters: bool, rows: tuple[DataType, int]) -> None:
    info, (dtype, columns) = H200 if clusters else ALONE, rows
    cpu = torch.device("cpu")
    batch = Batch(cpu, info)
    planned = []
    for name in NAMES:
        inputs = norm(name).inputs(2, columns, dtype.torch)
        fusion = norm(name).definition(2, columns, dtype).fusion
        planned.append((name, inputs, executable(CompiledFusion(fusion), inputs, batch, cpu)))
    for name, inputs, run in planned:
        exact = norm(name).eager(*(x.double() for x in inputs))
        eager = norm(name).eager(*inputs)
        for ours, theirs, truth in zip(run(inputs), eager, exact, strict=True):
            floor = 8 * torch.finfo(ours.dtype).eps * truth.abs().max()
            error, allowed = ((t.double() - truth).abs().max() for t in (ours, theirs))
            assert error <= torch.maximum(allowed, floor), name


@SCHEDULES
def test_blocks_share_the_few_rows_of_a_loss(device: torch.device, schedule: str) -> None:
    """The logit of the target is gathered when the parts of all blocks are there."""
    logits, target = losses.inputs(3, 131072, torch.float32)
    fusion = losses.cross_entropy(3, 131072, Float).fusion
    given = [logits.to(device), target.to(device)]
    run = executable(CompiledFusion(fusion), given, batch_for(device, schedule), device)
    for info in (H200, CPU):
        (made,) = row_schedules(run.plan, info)
        assert (made.grid_split, [f.op for f in made.reductions.of_grid]) == (
            "columns",
            ["max", "sum_exp"],
        )
    found = [t.cpu() for t in run(given)]
    exact = losses.eager(logits.double(), target)
    for ours, truth in zip(found, exact, strict=False):
        assert torch.allclose(ours.double(), truth, rtol=1e-6)


def test_long_rows_keep_nan_and_infinities_as_torch_does() -> None:
    """NaN and infinities in any thread's part; rows of -inf, whole and but for one element."""
    cpu = torch.device("cpu")
    x = torch.randn(9, 131072, generator=torch.Generator().manual_seed(3))
    x[0, 77], x[1, 131071], x[2, 5000], x[3, 90000], x[3, 90001] = NAN, INF, -INF, INF, -INF
    x[4], x[5], x[6, 1:], x[7, :8] = -INF, INF, -INF, -INF
    x[5, 3] = NAN
    planned = []
    for name in ("softmax", "log_softmax"):
        fusion = norm(name).definition(9, 131072, Float).fusion
        planned.append((name, executable(CompiledFusion(fusion), [x], Batch(cpu, H200), cpu)))
    for name, run in planned:
        ((found,), (wanted,)) = run([x]), norm(name).eager(x)
        assert torch.equal(found.isnan(), wanted.isnan()), name
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True), name


# ---- plans


def batch_norm(sizes: Sequence[int], *, last: bool, dtype: DataType = BFloat16) -> FusionDefinition:
    """Statistics of the batch and what they normalise; channels are dimension 1 of `sizes`."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(
            sizes, True, dtype, stride_order=[3, 0, 2, 1] if last else [3, 2, 1, 0]
        )
        w, b = (fd.define_tensor([1, sizes[1], 1, 1], True, dtype) for _ in range(2))
        o = fd.ops
        h, w, b = (o.cast(t, Float) for t in (x, w, b))
        var, mean = o.var_mean(h, [0, 2, 3], 0, True)
        normal = o.mul(o.sub(h, mean), o.rsqrt(o.add(var, 1e-5)))
        fd.add_output(o.cast(o.add(o.mul(normal, w), b), dtype))
    return fd


FULL = (64, 256, 56, 56)


def test_batch_norm_reads_its_input_twice_but_in_clusters() -> None:
    first = batch_norm(FULL, last=False).plan()
    assert (first.kernels, first.bytes) == (1, first.bytes_ideal)
    (made,) = row_schedules(first, ALONE)
    assert (made.stages, times_read(made)) == (1, 2)
    (made,) = row_schedules(first)
    assert made.mapping.shares_rows
    assert times_read(made) == 1
    last = batch_norm(FULL, last=True).plan()
    assert last.kernels == 2
    # Two statistics of each channel are written and read besides.
    assert last.bytes <= 1.5 * last.bytes_ideal + 16 * FULL[1]
    (made,) = row_schedules(last)
    assert (made.stages, times_read(made)) == (1, 1)
    assert made.reductions.workspace_bytes <= 0.01 * last.bytes_ideal


def test_rows_that_are_held_keep_their_two_folds() -> None:
    for columns, ops in ((4096, ["sum", "sum"]), (1 << 18, ["sum", "squared_deviations"])):
        with FusionDefinition() as fd:
            x = fd.define_tensor([64, columns], True, BFloat16)
            fd.add_output(fd.ops.sub(x, fd.ops.var_mean(x, [1], 1, True)[0]))
        (made,) = row_schedules(fd.plan(), ALONE)
        assert [f.op for f in made.reductions.all] == ops
        (made,) = row_schedules(fd.plan())
        assert [f.op for f in made.reductions.all] == ["sum", "sum"]
        # A core's cache holds either.
        (host,) = row_schedules(fd.plan(), CPU)
        assert [f.op for f in host.reductions.all] == ["sum", "sum"]


def test_blocks_share_the_only_row_of_a_variance() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.var(fd.define_tensor([1 << 14, 1 << 14], True, Float)))
    for device in (H200, CPU):
        (made,) = row_schedules(fd.plan(), device)
        assert (made.grid_split, made.stages) == ("columns", 1)
        assert made.blocks > 1


# ---- numbers of whole kernels


def statistics(sizes: Sequence[int], dims: Sequence[int], dtype: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(sizes, True, dtype)
        h = fd.ops.cast(x, compute_dtype(dtype))
        var, mean = fd.ops.var_mean(h, dims, 1, True)
        fd.add_output(fd.ops.sub(h, mean))
        for value in (var, mean):
            fd.add_output(value)
    return fd


SHAPES = [
    ((3, 200001), (1,)),
    ((5000, 24), (0,)),
    ((40, 9, 30, 16), (0, 1, 2)),
    ((300, 1001), (0, 1)),
]


@each_value(schedule=["own", "H200"], dtype=[BFloat16, Float])
def test_statistics_and_what_reads_them(
    device: torch.device, schedule: str, dtype: DataType
) -> None:
    batch = batch_for(device, schedule)
    runs = []
    for (sizes, dims), shift in ((s, shift) for s in SHAPES for shift in (0.0, 1000.0)):
        generator = torch.Generator().manual_seed(len(runs))
        x = (torch.randn(sizes, generator=generator) + shift).to(dtype.torch)
        moved = x.to(device)
        fusion = statistics(sizes, dims, dtype).fusion
        runs.append((x, dims, moved, executable(CompiledFusion(fusion), [moved], batch, device)))
    for x, dims, moved, run in runs:
        centred, var, mean = (t.cpu().double() for t in run([moved]))
        exact = torch.var_mean(x.double(), dims, keepdim=True)
        eager = torch.var_mean(x.float(), dims, keepdim=True)
        eps = torch.finfo(torch.float32).eps
        for found, truth, theirs in zip((var, mean), exact, eager, strict=True):
            allowed = (theirs.double() - truth).abs() + 32 * eps * truth.abs() + eps
            assert bool(((found - truth).abs() <= allowed).all()), x.shape
        assert torch.allclose(centred, x.double() - mean, atol=1e-4)


# ---- bits


@SCHEDULES
def test_same_bits_on_every_run_and_any_number_of_threads(
    device: torch.device, schedule: str
) -> None:
    for sizes, dims in SHAPES:
        x = torch.randn(sizes, generator=torch.Generator().manual_seed(1)).to(device)
        fusion = statistics(sizes, dims, Float).fusion
        found = []
        for threads in (1, 2, 3):
            with options(host_threads=threads):
                run = executable(CompiledFusion(fusion), [x], batch_for(device, schedule), device)
                found.append(run([x]))
        found.append(run([x]))
        for again in found[1:]:
            assert all(map(torch.equal, again, found[0])), sizes


@each_value(
    device=[H200, CPU],
    **{"sizes,dims": [((3, 1030), (1,)), ((2, 70), (1,)), ((200, 20), (0,)), ((9, 999), (0, 1))]},
)
def test_no_order_of_threads_and_blocks_matters(
    device: DeviceInfo, sizes: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(2))
    made = [
        next(iter(generate_kernels(folded(op, x, dims).plan(), device).values()))
        for op in ("squared_deviations", "sum_exp")
    ]
    launches = HOST.compile([generated.kernel for generated in made])
    for generated, launch in zip(made, launches, strict=True):
        scratch = [
            torch.zeros(bound.bytes, dtype=torch.uint8)
            for bound in generated.arguments
            if isinstance(bound, Scratch)
        ]
        out = torch.zeros([n for k, n in enumerate(sizes) if k not in dims])
        check_orders(launch, [x, out, *scratch])


# ---- NVRTC


def full_kernels(device: DeviceInfo) -> list[Kernel]:
    plans = [batch_norm(FULL, last=last).plan() for last in (False, True)]
    for columns in (131072, 262144):
        plans += [norm(name).definition(4096, columns, BFloat16).plan() for name in NAMES]
        plans.append(losses.cross_entropy(4096, columns, BFloat16).plan())
    # Lanes that may not exist, and loads of one element.
    plans += [norm(name).definition(64, 131073, BFloat16).plan() for name in NAMES]
    return [k.kernel for plan in plans for k in generate_kernels(plan, device).values()]


@pytest.mark.nvrtc
@each_architecture()
def test_full_size_compiles_without_spills(device: DeviceInfo) -> None:
    cubin = compile_cubin(full_kernels(device), device.arch)
    assert len(cubin.resources) == 3 + 2 * (len(NAMES) + 1) + len(NAMES)
    for name, resources in cubin.resources.items():
        assert not resources.spills, f"{name}: {resources}"
        assert not resources.stack_bytes, f"{name}: {resources}"
