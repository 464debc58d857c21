"""Results and gradients as near to float64 as eager's, where a formula could lose digits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import jit
from thunder_fuser import refusals
from thunder_fuser.frontends.thunder.claims.table import TABLE
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import compute_dtype, from_torch


def variances(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(-1), x.std(-1, correction=0), x[:, :50].var(0), x.var()


def test_variances_of_numbers_far_from_zero() -> None:
    """A CPU adds up in fp64 in eager; deviations from a number near the mean lose as little."""
    torch.manual_seed(0)
    compiled = jit(variances)
    for mean in (0.0, 1e4, 1e6):
        x = torch.randn(64, 1000) + mean
        for ours, truth in zip(compiled(x), variances(x.double()), strict=True):
            assert ((ours - truth).abs() <= 2e-6 * truth).all(), mean


def test_a_variance_of_the_largest_numbers_does_not_overflow() -> None:
    x = torch.full((2, 6), torch.finfo(torch.float32).max)
    assert torch.equal(jit(lambda x: x.var(-1) * 1)(x), torch.zeros(2))


RANGES: tuple[Callable[[], Tensor], ...] = (
    lambda: torch.arange(0, 1, 0.3, dtype=torch.float64),
    lambda: torch.arange(1.1, dtype=torch.float64),
    lambda: torch.arange(2**24 + 1, 2**24 + 9, dtype=torch.float64),
    lambda: torch.arange(1, 0.05, -0.1, dtype=torch.float64),
    lambda: torch.arange(-1000, 1000, 0.1),
    lambda: torch.arange(-1, 1, 0.1, dtype=torch.float16),
    lambda: torch.arange(5, -5, -2),
)


def test_ranges_are_as_precise_as_torchs() -> None:
    """Thunder's parts of a range of floats are fp32, whatever its dtype."""
    compiled = jit(lambda: [f() * 1 for f in RANGES])
    for ours, f in zip(compiled(), RANGES, strict=True):
        torchs = f()
        eps = torch.finfo(torchs.dtype).eps if torchs.is_floating_point() else 0
        torch.testing.assert_close(ours, torchs, rtol=2 * eps, atol=0)
    assert not refusals(compiled)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_ranges_on_gpus_are_computed_as_torchs_cuda_kernel_does(dtype: torch.dtype) -> None:
    b = FusionBuilder()
    made = TABLE["torch.arange"].build_for(torch.device("cuda"))(b, 0, 1, 0.1, dtype=dtype)
    counted = b.build().exprs[0].output
    assert (made.dtype.torch, counted.dtype) == (dtype, compute_dtype(from_torch(dtype)))


# ---- a block of a diffusion transformer: the conditioning's gradients are sums over all positions


BATCH, LENGTH, WIDTH, HEADS = 2, 1024, 64, 4


def dit_block(x: Tensor, condition: Tensor, *parameters: Tensor) -> Tensor:
    """Norms without parameters, shifted, scaled and gated by what is made of the conditioning."""
    w, b, w_qkv, b_qkv, w_out, b_out, w_up, b_up, w_down, b_down = parameters
    made = F.linear(F.silu(condition), w, b).unsqueeze(1)
    shift, scale, gate, shift_up, scale_up, gate_down = made.chunk(6, dim=-1)
    h = F.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale) + shift
    heads = F.linear(h, w_qkv, b_qkv).reshape(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
    attended = F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4))
    joined = attended.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
    x = x + gate * F.linear(joined, w_out, b_out)
    h = F.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale_up) + shift_up
    up = F.gelu(F.linear(h, w_up, b_up), approximate="tanh")
    return x + gate_down * F.linear(up, w_down, b_down)


def dit_arguments() -> list[Tensor]:
    torch.manual_seed(0)
    products = [(6 * WIDTH, WIDTH), (3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH)]
    parameters = [
        torch.randn(n) for shape in (*products, (WIDTH, 4 * WIDTH)) for n in (shape, shape[:1])
    ]
    given = [torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, WIDTH)]
    return [*given, *(p * 0.1 for p in parameters)]


def gradients(block: Callable[..., Tensor], given: list[Tensor], seed: Tensor) -> list[Tensor]:
    leaves = [t.to(seed.dtype).requires_grad_() for t in given]
    return list(torch.autograd.grad(block(*leaves), leaves, seed))


@pytest.mark.parametrize("loss", [pytest.param("mean", marks=pytest.mark.campaign), "random"])
def test_gradients_of_a_conditioned_transformer_block(loss: str) -> None:
    given = dit_arguments()
    seed = torch.full_like(given[0], 1 / given[0].numel())
    if loss == "random":
        seed = torch.randn_like(given[0])
    ours = gradients(jit(dit_block), given, seed)
    eager, truth = gradients(dit_block, given, seed), gradients(dit_block, given, seed.double())
    for k, (found, theirs, exact) in enumerate(zip(ours, eager, truth, strict=True)):
        error, bar = ((t - exact).norm() / exact.norm() for t in (found, theirs))
        assert error <= 2 * bar + 1e-7, (k, float(error), float(bar))


@pytest.mark.parametrize("rows", [256, 1024, 4096, 16384])
@pytest.mark.parametrize("columns", [48, 256])
def test_sums_of_many_equal_rows(rows: int, columns: int) -> None:
    """Roundings of equal numbers have one sign: a chain loses the more digits the longer it is."""
    torch.manual_seed(0)
    x = torch.rand(columns).expand(rows, columns).contiguous()
    total = jit(lambda x: (x * 1.5).sum(0))(x)
    truth = (x * 1.5).double().sum(0)
    assert ((total - truth).abs() / truth).max() <= 12 * torch.finfo(torch.float32).eps
