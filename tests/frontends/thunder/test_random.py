"""Random numbers through thunder.jit: which they are, when they are drawn, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import devices, dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.frontends.thunder.programs import fake, jit, primitives, traced
from thunder_fuser.config import options
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.frontends.thunder import FusionReport, executor, fusions, refusals
from thunder_fuser.frontends.thunder.claims.table import refuse_call
from thunder_fuser.ir.dtypes import from_torch
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

P = 0.25
FLOATS = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)


@pytest.fixture(autouse=True)
def strict() -> Any:
    with options(strict=True):
        yield


def dropout_add(x: Any, residual: Any) -> Any:
    return F.dropout(x * 2, P) + residual


def tensors(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = (1 + torch.rand(shape)).to(dtype).requires_grad_()
    return x, torch.randn(shape).to(dtype)


def next_seed() -> int:
    """What a call on CPU tensors draws from torch's generator, which it advances like this."""
    return int(torch.empty((), dtype=torch.int64).random_())


def numbers(
    op: str, shape: Sequence[int], seed: int, offset: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    with FusionDefinition() as fd:
        draw = getattr(fd.ops, op)
        state = {"rng_seed": seed, "rng_offset": offset}
        fd.add_output(draw(0.0, 1.0, list(shape), **state, dtype=from_torch(dtype)))
    (found,) = fd.execute([], device="cpu")
    return found


def draws(compiled: Callable[..., Any]) -> list[int]:
    """How many offsets each draw of the forward takes."""
    symbols = thunder.last_traces(compiled)[-1].bound_symbols
    return [b.args[1] for b in symbols if b.sym.name == "fuser_draw"]


# ---- dropout


@FLOATS
def test_dropout_keeps_what_the_drawn_numbers_say_forward_and_backward(dtype: torch.dtype) -> None:
    compiled = jit(dropout_add)
    x, residual = tensors(37, 64, dtype=dtype)
    torch.manual_seed(7)
    out = compiled(x, residual)
    after = torch.get_rng_state()
    torch.manual_seed(7)
    kept = numbers("uniform", x.shape, next_seed(), dtype=dtype) < 1 - P
    assert torch.equal(torch.get_rng_state(), after)
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(out, x.detach() * 2 * kept * (1 / (1 - P)) + residual)
    gradient = residual.flip(0)
    out.backward(gradient)
    assert torch.equal(torch.get_rng_state(), after)
    torch.testing.assert_close(x.grad, gradient * kept * (2 / (1 - P)))
    assert [r.plan.kernels for r in fusions(compiled)] == [1, 1]
    assert primitives(fusions(compiled)[0]) == [
        "mul", "uniform_philox", "lt", "convert_element_type", *["mul"] * 2, "add",
    ] or dtype.itemsize == 2  # fmt: skip


def test_runs_are_repeatable_and_calls_differ() -> None:
    compiled = jit(dropout_add)
    x, residual = tensors(64, 64)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append([compiled(x, residual) for _ in range(2)])
    assert all(map(torch.equal, results[0], results[1]))
    assert not torch.equal(results[0][0], results[0][1])
    assert not torch.equal(results[0][0], results[2][0])


def test_as_many_are_dropped_as_should_be() -> None:
    compiled = jit(lambda x: F.dropout(x, P) * 1)
    count = 2**18
    dropped = float((compiled(torch.ones(count)) == 0).double().mean())
    assert abs(dropped - P) < 5 * (P * (1 - P) / count) ** 0.5


def test_dropout_of_nothing_and_of_everything_draws_nothing() -> None:
    x, residual = tensors(8, 8)
    state = torch.get_rng_state()
    for p, expected in ((0.0, x * 2 + residual), (1.0, residual)):
        compiled = jit(lambda x, r, p=p: F.dropout(x * 2, p) + r)
        torch.testing.assert_close(compiled(x, residual), expected)
        assert draws(compiled) == []
        out = jit(lambda x, r, p=p: F.dropout(x * 2, p, training=False) + r)(x, residual)
        torch.testing.assert_close(out, x * 2 + residual)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_dropouts_of_a_module_share_one_draw() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5),
        torch.nn.Linear(32, 16), torch.nn.Dropout(0.1),
    )  # fmt: skip
    compiled = jit(module)
    x = torch.randn(20, 16, requires_grad=True)
    torch.manual_seed(3)
    out = compiled(x)
    symbols = [b.sym.name for b in thunder.last_traces(compiled)[-1].bound_symbols]
    assert symbols.count("fuser_draw") == 1
    torch.manual_seed(3)
    seed = next_seed()
    masks = [
        (numbers("uniform", shape, seed, offset) < 1 - p) / (1 - p)
        for offset, (shape, p) in enumerate([((20, 32), 0.5), ((20, 16), 0.1)])
    ]
    again = x.detach().requires_grad_()
    expected = module[3](module[1](module[0](again)) * masks[0]) * masks[1]
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(x.grad, again.grad)


def test_a_checkpointed_backward_draws_what_the_forward_drew() -> None:
    def block(y: Any) -> Any:
        return torch.sin(F.dropout(torch.sin(y), 0.5))

    compiled = jit(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False))
    x = tensors(64, 64)[0]
    torch.manual_seed(11)
    out = compiled(x)
    saved = out.grad_fn.saved_tensors
    assert [t.data_ptr() for t in saved] == [x.data_ptr()]
    out.sum().backward()
    assert draws(compiled) == [1]
    torch.manual_seed(11)
    mask = (numbers("uniform", x.shape, next_seed()) < 0.5) * 2.0
    again = x.detach().requires_grad_()
    torch.sin(torch.sin(again) * mask).sum().backward()
    torch.testing.assert_close(x.grad, again.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_forward_is_one_kernel_that_shares_calls_of_the_generator(dtype: torch.dtype) -> None:
    x, residual = fake((8192, 4096), (8192, 4096), dtype=dtype)
    with options(cuda_arch="sm_90"):
        (report,) = traced(dropout_add, x, residual)
        (kernel,) = report.kernels
    assert report.plan.bytes == 3 * x.nbytes
    lane_loop = kernel.source[kernel.source.index("y0[") :]
    assert "tf::words<" in kernel.source
    assert "tf::words<" not in lane_loop


def saved_bytes(forward: FusionReport, backward: FusionReport) -> int:
    """Of the tensors that a forward writes for its backward."""
    read = {p.name for p in backward.inputs}
    return sum(p.numel * p.dtype.bytes for p in forward.outputs if p.name in read)


def test_no_mask_is_saved_for_backward() -> None:
    """A seed and an offset are, and the numbers drawn again."""
    x, residual = fake((8192, 4096), (8192, 4096), dtype=torch.bfloat16, grad=True)
    with options(cuda_arch="sm_90"):
        forward, backward = traced(dropout_add, x, residual)
    assert saved_bytes(forward, backward) == 0
    assert (forward.plan.bytes, backward.plan.bytes) == (3 * x.nbytes, 2 * x.nbytes)
    assert (forward.plan.kernels, backward.plan.kernels) == (1, 1)
    assert "uniform_philox" in primitives(backward)


def test_a_normalisation_with_dropout_saves_mean_and_deviation() -> None:
    def program(x: Any, weight: Any, bias: Any) -> Any:
        return F.dropout(F.layer_norm(x, (64,), weight, bias), 0.1)

    inputs = fake((16, 64), (64,), (64,), dtype=torch.bfloat16, grad=True)
    with options(cuda_arch="sm_90"):
        forward, backward = traced(program, *inputs)
    # Two fp32 numbers for each of the 16 rows.
    assert saved_bytes(forward, backward) == 128


@pytest.mark.nvrtc
def test_cuda_training_compiles_without_spills() -> None:
    def program(x: Any, residual: Any, weight: Any) -> Any:
        total = F.dropout(x, 0.1) + residual
        return total, F.rms_norm(total, (4096,), weight)

    for dtype in (torch.float32, torch.bfloat16):
        inputs = fake((8192, 4096), (8192, 4096), (4096,), dtype=dtype, grad=True)
        with options(cuda_arch="sm_90"):
            reports = traced(program, *inputs)
            kernels = [k for report in reports for k in report.kernels]
        assert "tf::words<" in kernels[0].source
        cubin = compile_cubin(kernels, "sm_90")
        assert not any(r.spills for r in cubin.resources.values())


def test_fake_tensors_draw_nothing() -> None:
    compiled = jit(dropout_add)
    state = torch.get_rng_state()
    with FakeTensorMode():
        x, residual = (torch.empty(8, 8, device="cuda") for _ in range(2))
        out = compiled(x, residual)
    assert (out.shape, out.device.type) == ((8, 8), "cuda")
    assert torch.equal(torch.get_rng_state(), state)


# ---- other random tensors


def test_uniform_and_normal_are_drawn_by_index() -> None:
    compiled = jit(lambda x: x + torch.randn_like(x) * torch.rand(64))
    torch.manual_seed(2)
    found = compiled(torch.zeros(16, 64))
    torch.manual_seed(2)
    seed = next_seed()
    expected = numbers("normal", (16, 64), seed) * numbers("uniform", (64,), seed, 1)
    torch.testing.assert_close(found, expected)
    assert draws(compiled) == [2]


def test_two_draws_are_two_draws() -> None:
    compiled = jit(lambda x: (torch.rand_like(x) * 2, torch.rand_like(x) * 2))
    a, b = compiled(torch.ones(32))
    assert not torch.equal(a, b)


def test_bernoulli_compares_uniform_numbers() -> None:
    compiled = jit(lambda x: torch.bernoulli(x) * 2)
    x = torch.rand(64, 64)
    torch.manual_seed(2)
    found = compiled(x)
    torch.manual_seed(2)
    assert torch.equal(found, (numbers("uniform", x.shape, next_seed()) < x) * 2.0)


@pytest.mark.parametrize("draw", [torch.bernoulli, torch.Tensor.bernoulli])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_bernoulli_with_one_probability(draw: Callable[..., torch.Tensor], dtype: Any) -> None:
    compiled = jit(lambda x: (draw(x, p=0.25) * 2, draw(x, 1.0), draw(x, p=0.0)))
    few, ones, zeros = compiled(torch.full((64, 64), 7, dtype=dtype))
    assert {few.dtype, ones.dtype, zeros.dtype} == {dtype}
    assert 0.2 < few.double().mean() / 2 < 0.3
    assert set(few.unique().tolist()) == {0, 2}
    assert ones.all()
    assert not zeros.any()


@FLOATS
def test_uniform_philox_takes_its_seed_and_offset(dtype: torch.dtype) -> None:
    def program(x: Any) -> Any:
        drawn = thunder.torch.uniform_philox(
            (8, 24), 0.0, 1.0, device=x.device, dtype=dtype, seed=99, offset=4
        )
        return x + drawn, drawn

    compiled = jit(program)
    state = torch.get_rng_state()
    _, drawn = compiled(torch.zeros(8, 24, dtype=dtype))
    assert torch.equal(drawn, numbers("uniform", (8, 24), 99, 4, dtype))
    assert torch.equal(torch.get_rng_state(), state)
    assert draws(compiled) == []


def test_a_random_tensor_alone_is_torchs_own() -> None:
    compiled = jit(lambda x, w: (torch.rand(3), torch.randn(4), x @ w))
    w = torch.eye(8)
    torch.manual_seed(4)
    found = compiled(w, w)
    after = torch.get_rng_state()
    torch.manual_seed(4)
    assert torch.equal(found[0], torch.rand(3))
    assert torch.equal(found[1], torch.randn(4))
    assert torch.equal(torch.get_rng_state(), after)
    assert "shape-only" in [refusal.code for refusal in refusals(compiled)]


def test_what_is_not_fused_draws_from_torch() -> None:
    """Without fuel everything stays with torch, its random state included."""
    compiled = jit(lambda x: F.dropout(x, 0.5) * 3)
    executor.set_fuel(0)
    try:
        torch.manual_seed(6)
        found = compiled(torch.ones(100))
    finally:
        executor.set_fuel(thunder.extend.FUEL_LEVEL.UNLIMITED)
    assert draws(compiled) == []
    torch.manual_seed(6)
    assert torch.equal(found, F.dropout(torch.ones(100), 0.5) * 3)


def test_integers_are_refused_in_words() -> None:
    compiled = jit(lambda x: x + torch.randint(0, 10, (8,)))
    compiled(torch.zeros(8))
    assert ("unclaimed", "randint") in [(r.code, r.subject) for r in refusals(compiled)]


def test_a_seed_for_each_element_is_refused() -> None:
    with tracectx(TraceCtx()):
        device = devices.Device("cpu")
        seeds = TensorProxy("seeds", shape=(4,), device=device, dtype=dtypes.int64)
        options = {"device": device, "dtype": dtypes.float32, "seed": seeds, "offset": 0}
        found = refuse_call(PrimIDs.UNIFORM_PHILOX, ((4,), 0.0, 1.0), options)
    assert found is not None
    assert found.code == "seed"


def test_a_report_shows_the_state_as_inputs_and_its_script_runs() -> None:
    compiled = jit(dropout_add)
    compiled(*tensors(8, 8))
    forward = fusions(compiled)[0]
    assert [v.dtype for v in forward.fusion.inputs].count(DataType.Int) == 2
    assert "fd.ops.uniform(minval=0.0, maxval=1.0, shape=[8, 8], rng_seed=S" in forward.repro()
    exec(forward.repro(), {})


def _chosen_by_draws(x: torch.Tensor) -> torch.Tensor:
    found = x.cumsum(-2)
    found[torch.randint(0, 4, (3,))] = x[0] * 2
    return found


@pytest.mark.parametrize(
    "program",
    [
        _chosen_by_draws,
        lambda x: x[torch.randperm(4)] * 2,
        lambda x: x * torch.randint(0, 3, (3,)),
    ],
)
def test_compiling_draws_no_random_numbers(program: Any) -> None:
    """The first call with a seed has the numbers of the next one."""
    x = torch.randn(4, 3, requires_grad=True)
    compiled, found = jit(program), []
    for run in (compiled, compiled, program):
        torch.manual_seed(3)
        found.append(run(x))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    torch.testing.assert_close(found[0], found[2])


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like])
def test_numbers_like_a_tensor_lie_as_it_does(draw: Callable[..., torch.Tensor]) -> None:
    """Also where the kernel reads nothing else of it, and of views of what is computed."""
    x = torch.randn(3, 4, 5).permute(2, 0, 1)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return draw(x) + 1, draw(x.transpose(0, 1)) * 2, draw((x * 2).transpose(1, 2)) + x.mT

    for ours, eager in zip(jit(program)(x), program(x), strict=True):
        assert ours.stride() == eager.stride()
    assert 0.5 < (jit(program)(x)[0] - 1).std() / draw(x).std() < 2
