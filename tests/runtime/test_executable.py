"""Executables: allocation, views, freed boundaries, scalars, and calls from several threads."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch

from tests.support.batch import Batch, allocations
from tests.support.building import op
from tests.support.cuts import with_cuts
from tests.support.generator import random_case
from tests.support.seeds import blocks
from tests.support.still_target import Still
from thunder_fuser import compiled_fusion
from thunder_fuser.compile import compile_plan
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime import executable
from thunder_fuser.runtime.binding import guards
from thunder_fuser.runtime.fallback import is_replaceable
from thunder_fuser.runtime.host.target import HOST

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = torch.device("cpu")


# ---- memory


class Meter:
    """Bytes of the tensors that were shown to it and still exist."""

    def __init__(self) -> None:
        self.alive = self.peak = 0

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        count = storage.nbytes()
        self.alive += count
        self.peak = max(self.peak, self.alive)
        weakref.finalize(tensor, self.forget, count)

    def forget(self, count: int) -> None:
        self.alive -= count


@blocks(300, 100, always=100)
def test_a_call_allocates_as_much_as_its_plan_says(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    with_boundaries = 0
    for seed in range(first, first + 100):
        case = random_case(seed)
        plan = CompiledFusion(with_cuts(case.fusion, seed)).plan(case.inputs)
        meter = Meter()
        with allocations(monkeypatch, meter.see):
            run = compile_plan(plan, CPU, Still())
        outputs = run(case.fresh_inputs())
        assert meter.peak == plan.peak_bytes, f"seed {seed}: {plan}"
        del outputs
        assert meter.alive == 0
        with_boundaries += bool(plan.boundaries)
    assert with_boundaries > 33


def test_boundaries_are_freed_when_their_last_reader_has_run(
    monkeypatch: pytest.MonkeyPatch, b: FusionBuilder
) -> None:
    y = b.tensor([1000], Float)
    for _ in range(4):
        y = b.segment_set(op(b, "neg", y))
    b.output(op(b, "neg", y))
    alive: list[weakref.ref[torch.Tensor]] = []
    counts = []

    def see(tensor: torch.Tensor) -> None:
        counts.append(sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(tensor))

    with allocations(monkeypatch, see):
        run = compile_plan(CompiledFusion(b.build()).plan(), CPU, HOST)
    x = torch.randn(1000)
    (result,) = run([x])
    assert torch.equal(result, -x)
    # Never more than the one that is being read.
    assert counts == [0, 1, 1, 1, 1]
    assert sum(ref() is not None for ref in alive) == 1


def test_views_hold_no_memory_that_nobody_reads(b: FusionBuilder) -> None:
    """Of a boundary, a view that is read by another kernel, and nothing else."""
    whole = b.segment_set(op(b, "exp", b.tensor([10, 100], Float)))
    half = b.segment_set(b.slice(whole, [0, 0], [5, 100]))
    b.output(op(b, "neg", half))
    run = compile_plan(CompiledFusion(b.build()).plan(), CPU, HOST)
    x = torch.randn(10, 100)
    values: list[torch.Tensor | None] = [x, *run._made]
    for step in run._steps:
        step(values)
    (result,) = run._returned(values)
    torch.testing.assert_close(result, -x[:5].exp())
    # The input and the result.
    assert sum(value is not None for value in values) == 2


def test_nothing_is_kept_between_calls(b: FusionBuilder) -> None:
    x = b.tensor([1000], Float)
    b.output(op(b, "neg", b.segment_set(op(b, "exp", x))))
    compiled = CompiledFusion(b.build())
    data = torch.randn(1000)
    outputs = compiled([data])
    refs = [weakref.ref(t) for t in (data, *outputs)]
    del data, outputs
    assert [ref() for ref in refs] == [None, None]


# ---- views


def test_views_share_the_memory_of_what_they_are_views_of(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], Float)
    y = op(b, "neg", x)
    views = [b.permute(x, [1, 0]), b.slice(x, [1, 2], [4, 6]), b.reshape(y, [24]), y, x]
    for view in views:
        b.output(view)
    memory = torch.arange(40.0, device=device)
    data = memory[8:32].view(4, 6)  # off the start of its storage
    turned, cut, flat, negative, same = CompiledFusion(b.build())([data])
    assert torch.equal(turned, data.t())
    assert torch.equal(cut, data[1:, 2:])
    assert torch.equal(flat, -data.flatten())
    assert turned.data_ptr() == data.data_ptr()
    assert cut.data_ptr() == data[1:, 2:].data_ptr()
    assert (turned.stride(), cut.stride()) == ((1, 6), (6, 1))
    assert flat.data_ptr() == negative.data_ptr()
    assert same is data
    memory.zero_()
    assert not turned.any()
    assert not cut.any()
    assert bool(negative.any())


def test_copies_do_not_share(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], Float)
    b.output(b.set(x))
    b.output(b.permute(b.set(x), [1, 0]))
    b.output(b.stride_order(b.permute(x, [1, 0]), [1, 0]))
    data = torch.randn(4, 6, device=device)
    outputs = CompiledFusion(b.build())([data])
    expected = [data.clone(), data.clone().t(), data.t().contiguous()]
    data.zero_()
    for got, want in zip(outputs, expected, strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()


def test_dense_results_are_dense_as_torch_has_them(device: torch.device) -> None:
    """x.t().contiguous() and x[:, :3].contiguous() are; x.contiguous() is x."""
    b = FusionBuilder()
    x = b.tensor([4, 6], Float)
    for view in (b.permute(x, [1, 0]), b.slice(x, [0, 0], [4, 3]), x):
        b.output(b.stride_order(view, [1, 0]))
    data = torch.randn(4, 6, device=device)
    outputs = CompiledFusion(b.build())([data])
    for got, want in zip(outputs, (data.t(), data[:, :3], data), strict=True):
        assert torch.equal(got, want)
        assert got.is_contiguous()
    assert outputs[2].data_ptr() == data.data_ptr()


def test_a_result_returned_twice_is_one_tensor(b: FusionBuilder) -> None:
    y = op(b, "exp", b.tensor([8], Float))
    b.output(y)
    b.output(y)
    first, second = CompiledFusion(b.build())([torch.zeros(8)])
    assert first is second


def test_results_follow_the_layout_of_channels_last_inputs(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([2, 8, 5, 5], BFloat16, allocation=[0, 2, 3, 1])
    b.output(op(b, "mul", x, b.broadcast(b.tensor([8], Float), [False, True, True])))
    data = torch.randn(2, 8, 5, 5, device=device).bfloat16()
    data = data.to(memory_format=torch.channels_last)
    scale = torch.randn(8, device=device)
    (result,) = CompiledFusion(b.build())([data, scale])
    assert torch.equal(result, data.float() * scale[:, None, None])
    assert result.is_contiguous(memory_format=torch.channels_last)


# ---- sizes


def test_more_outputs_than_one_kernel_takes(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([5], Float)
    for k in range(150):
        b.output(op(b, "add", x, float(k)))
    data = torch.randn(5, device=device)
    compiled = CompiledFusion(b.build())
    outputs = compiled([data])
    assert len(compiled.executables[0].kernels) == 2
    assert all(torch.equal(y, data + k) for k, y in enumerate(outputs))


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 3], [3, 0, 2], [1, 1, 1]], ids=str)
def test_tensors_of_no_or_one_element(device: torch.device, sizes: list[int]) -> None:
    b = FusionBuilder()
    x, y = b.tensor(sizes, Float), b.tensor(sizes, DataType.Int)
    b.output(op(b, "add", x, y))
    b.output(b.reshape(x, [-1] if 0 not in sizes else [0]))
    b.output(b.broadcast(op(b, "neg", y), [True, *[False] * len(sizes)]))
    data = torch.rand(sizes, device=device), torch.randint(9, sizes, device=device)
    total, flat, wide = CompiledFusion(b.build())(data)
    assert torch.equal(total, data[0] + data[1])
    assert torch.equal(flat, data[0].reshape(-1))
    assert torch.equal(wide, -data[1][None])


POINTS = (1, 2, 3, 5, 7, 8, 9, 15, 31, 63, 64, 65, 127, 255, 257, 1023, 1025, 4097, 8191)


def test_every_number_of_points_is_computed_to_the_last(device: torch.device) -> None:
    """Whole vectors and the rest; whole blocks and the rest."""
    batch = Batch(device)
    ready = []
    for count in POINTS:
        b = FusionBuilder()
        x, y = b.tensor([count], BFloat16), b.tensor([count], Float)
        b.output(op(b, "add", op(b, "mul", x, 2.0), y))
        b.output(op(b, "gt", x, y))
        data = [torch.randn(count, device=device).bfloat16(), torch.randn(count, device=device)]
        plan = CompiledFusion(b.build()).plan(data)
        ready.append((data, compile_plan(plan, device, batch)))
    for (x_data, y_data), run in ready:
        total, larger = run([x_data, y_data])
        assert torch.equal(total, x_data.float() * 2 + y_data)
        assert torch.equal(larger, x_data.float() > y_data)


# ---- scalars


def test_numbers_are_read_at_every_call(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([6], Float)
    rate = b.scalar(None, DataType.Double)
    shift = b.tensor([], Float, is_cpu=True)
    flag = b.scalar(None, DataType.Bool)
    scaled = op(b, "add", op(b, "mul", x, rate), shift)
    b.output(op(b, "mul", scaled, b.cast(flag, Float)))
    compiled = CompiledFusion(b.build())
    data = torch.randn(6, device=device)
    held = torch.tensor(0.0)
    for k in range(3):
        held.fill_(float(k))
        (result,) = compiled([data, 0.5 * k, held, k != 1])
        assert torch.equal(result, (data * (0.5 * k) + k) * (k != 1))
    assert len(compiled.executables) == 1


@pytest.mark.parametrize("kind", [DataType.Int32, DataType.Int, DataType.Double])
def test_numbers_out_of_range_are_mistakes_at_every_call(kind: DataType) -> None:
    """The key of a call has the type of a number, and not its value."""
    b = FusionBuilder()
    x, number = b.tensor([6], DataType.Double), b.scalar(None, kind)
    b.output(op(b, "add", x, number))
    compiled, data = CompiledFusion(b.build()), torch.zeros(6, dtype=torch.float64)
    for value in (10**400, 3, -(10**400), 4):
        if abs(value) > 4:
            with pytest.raises(FuserTypeError, match=f"(?s)Scalar value.*{kind.name}.*input 1"):
                compiled([data, value])
        else:
            assert torch.equal(compiled([data, value])[0], data + value)
    assert len(compiled.executables) == 1


def test_a_number_out_of_range_after_an_update_is_not_left_to_torch() -> None:
    b = FusionBuilder()
    x, number = b.tensor([6], Float), b.scalar(None, DataType.Int32)
    b.output(op(b, "add", x, 1.0), x)
    b.output(op(b, "mul", b.segment_set(op(b, "neg", b.tensor([6], Float))), number))
    compiled = CompiledFusion(b.build())
    data, other = torch.zeros(6), torch.ones(6)
    compiled([data, 2, other])
    with pytest.raises(FuserTypeError, match="Scalar value") as caught:
        compiled([data, 2**40, other])
    assert not is_replaceable(caught.value)


# ---- where it runs


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_a_cpu_may_have_a_number(name: str) -> None:
    b = FusionBuilder()
    b.output(b.iota(5, 0, 1, DataType.Int))
    compiled = CompiledFusion(b.build())
    for _ in range(2):
        assert torch.equal(compiled([], torch.device(name))[0], torch.arange(5))
    assert len(compiled.executables) == 1


def test_calls_that_take_turns_make_no_guard_anew(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards tell parameters, gradients and modes apart; executables do not."""
    made: list[int] = []
    monkeypatch.setattr(
        executable, "guard_of", lambda *args: made.append(1) or guards.guard_of(*args)
    )
    b = FusionBuilder()
    b.output(op(b, "neg", b.tensor([6], Float)))
    compiled = CompiledFusion(b.build())
    plain = torch.randn(6, device=device)
    parameter = torch.nn.Parameter(plain.clone())
    for _ in range(4):
        for x in (plain, parameter):
            assert torch.equal(compiled([x])[0], -x.detach())
        with torch.inference_mode():
            assert torch.equal(compiled([plain])[0], -plain)
    assert len(compiled.executables) == 1
    assert len(made) <= 3


def test_updates_of_tensors_that_lie_apart_are_not_checked_again(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address ranges decide, in the guard; whoever meets another is checked element by element."""
    checked: list[int] = []
    check = compiled_fusion.check_updates
    monkeypatch.setattr(
        compiled_fusion, "check_updates", lambda *args: checked.append(1) or check(*args)
    )
    b = FusionBuilder()
    x, y = (b.tensor([4, 4], Float, contiguity=[False, False]) for _ in range(2))
    b.output(op(b, "add", x, y), x)
    compiled = CompiledFusion(b.build())
    whole = torch.zeros(8, 16, device=device)
    for _ in range(3):
        compiled([whole[:4, :4], whole[4:, :4] + 1])
        compiled([whole[4:, 4:8], torch.ones(4, 4, device=device)])
    assert whole[:4, :4].eq(3).all()
    assert whole[4:, 4:8].eq(3).all()
    assert whole.sum() == 96
    assert not checked
    compiled([whole[:4, 8:12], whole[:4, :4].clone(memory_format=torch.preserve_format)])
    for calls in range(3):  # interleaved rows, of strides that are new
        compiled([whole[:4, 8:12], whole[:4, :4]])
        assert len(checked) == calls
    assert whole[:4, 8:12].eq(12).all()
    with pytest.raises(FuserValueError, match="shares memory"):
        compiled([whole[:4, 8:12], whole[:4, 9:13]])
    assert whole[:4, 8:12].eq(12).all()


def test_complex_numbers_are_two_arguments(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([4], DataType.ComplexFloat)
    z = b.scalar(None, DataType.ComplexDouble)
    b.output(op(b, "mul", x, z))
    data = torch.tensor([1, 1j, 2 - 1j, 0], device=device)
    compiled = CompiledFusion(b.build())
    for value in (2 + 1j, -1j, 3.0):
        (result,) = compiled([data, value])
        assert torch.allclose(result, data * value)


def test_arithmetic_between_numbers_is_done_in_the_kernel(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([4], DataType.Double)
    a, c = b.scalar(None, DataType.Double), b.scalar(None, DataType.Int)
    b.output(op(b, "add", x, b.pointwise("mul", b.pointwise("tanh", a), c)))
    data = torch.zeros(4, dtype=torch.float64, device=device)
    (result,) = CompiledFusion(b.build())([data, 0.3, 5])
    expected = 5 * torch.tensor(0.3, dtype=torch.float64).tanh()
    assert torch.allclose(result.cpu(), expected.expand(4), rtol=1e-15)


# ---- gradients, threads


def test_calls_take_no_part_in_autograd(device: torch.device) -> None:
    b = FusionBuilder()
    x, y = b.tensor([8], Float), b.tensor([8], Float)
    b.output(op(b, "mul", x, y))
    b.output(b.slice(x, [0], [4]))
    b.output(op(b, "sub", y, x), y)
    leaf = torch.randn(8, device=device, requires_grad=True)
    parameter = torch.nn.Parameter(torch.randn(8, device=device))
    expected = (parameter - leaf).detach()
    product, part = CompiledFusion(b.build())([leaf, parameter])
    assert not product.requires_grad
    assert not part.requires_grad
    assert part.data_ptr() == leaf.data_ptr()
    assert torch.equal(parameter.detach(), expected)
    assert parameter.requires_grad


def test_threads_may_share_an_executable(b: FusionBuilder) -> None:
    """Each with its own data and numbers; boundaries of one call are not another's."""
    x = b.tensor([2000], Float)
    scale = b.scalar(None, DataType.Double)
    b.output(op(b, "neg", b.segment_set(op(b, "mul", x, scale))))
    compiled = CompiledFusion(b.build())
    wrong: list[str] = []
    start = threading.Barrier(4)

    def work(k: int) -> None:
        data = torch.full((2000,), float(k))
        start.wait()
        for n in range(200):
            (result,) = compiled([data, float(n)])
            if not torch.equal(result, -data * n):
                wrong.append(f"thread {k}, call {n}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(compiled.executables) == 1


# ---- kernels of one text


@pytest.mark.parametrize("launches", ["its own", "those of tests"])
def test_kernels_of_one_text_have_grids_of_their_own(launches: str) -> None:
    """Sums over as many columns of more and of fewer rows: no row count is in the text."""
    b = FusionBuilder()
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(rows, 17, generator=generator) for rows in (968, 200, 488)]
    for x in inputs:
        b.output(b.reduce("sum", b.segment_set(op(b, "neg", b.tensor(x.shape, Float))), [1]))
    compiled = CompiledFusion(b.build())
    target = HOST if launches == "its own" else Batch(CPU)
    run = compile_plan(compiled.plan(inputs), CPU, target)
    sums = [kernel for kernel in run.kernels if "sum" in kernel.name]
    assert (len({k.name for k in sums}), len({k.grid for k in sums})) == (1, 3)
    for found, x in zip(run(inputs), inputs, strict=True):
        torch.testing.assert_close(found.double(), -x.double().sum(1), rtol=1e-5, atol=1e-5)
