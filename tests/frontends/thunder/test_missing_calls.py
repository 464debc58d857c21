"""Functions, arguments and attributes of torch that Thunder does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, jit
from thunder_fuser import refusals

FACTORS = {torch.float32: 2.0, torch.bfloat16: 3.0, torch.int64: 5.0}


def by_dtype(x: Tensor) -> list[Any]:
    return [
        x * (2 if x.dtype is torch.float32 else 3),
        x * FACTORS[x.dtype],
        x * FACTORS.get(x.sum().dtype, 7.0),
        x * (2 if x.dtype in {torch.bfloat16, torch.int64} else 3),
        x.float() * x.dtype.itemsize if x.dtype.is_floating_point else x * 4,
        torch.zeros(2, dtype=x.dtype) + torch.ones(2).to(x.dtype),
        str(x.dtype),
    ]


@pytest.mark.parametrize("dtype", FACTORS, ids=str)
def test_the_dtype_of_a_tensor_is_torchs(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3]).to(dtype)
    for found, expected in zip(jit(by_dtype)(x), by_dtype(x), strict=True):
        assert type(found) is type(expected)
        if isinstance(expected, Tensor):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        else:
            assert found == expected


def test_variances_by_unbiased() -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [
            x.std(-1, unbiased=False),
            x.var(-1, False),
            x.var(1, True, True),
            torch.var(x, dim=0, unbiased=True, keepdim=True),
            torch.std(x, False),
            x.std(unbiased=True),
            x.var(0, keepdim=True),
            *torch.var_mean(x, -1, unbiased=False),
        ]

    torch.manual_seed(0)
    check(program, torch.randn(4, 6, requires_grad=True))


_ENDS = ((0, 10, 4), (-5, 7.9, 6), (100, 3, 9), (2, 2, 1), (0, 1, 0))
_INTEGERS = (torch.int64, torch.int32, torch.int8)


def test_new_tensors() -> None:
    def program(x: Tensor) -> list[Tensor]:
        same = torch.eye(4, dtype=torch.bool, device=x.device)
        return [
            x.masked_fill(same, 0.5),
            x[:, :3] + torch.eye(4, 3),
            torch.linspace(1e-4, 0.02, 11) * 2,
            torch.linspace(3, -1, steps=4, dtype=torch.float64) + 1,
            torch.linspace(2.5, 7, 1) * 1,
            *(torch.linspace(*ends, dtype=d) for ends in _ENDS for d in _INTEGERS),
        ]

    check(program, torch.randn(4, 4))
    check(lambda x: torch.linspace(x.sum(), 1, 3) * x, torch.randn(3, requires_grad=True))
    with pytest.raises(NotImplementedError, match="tensors of one, and an int"):
        jit(lambda x: torch.linspace(x, 1, 3))(torch.ones(3))
    with pytest.raises(NotImplementedError, match="bools"):
        jit(lambda x: torch.linspace(0, 1, 3, dtype=torch.bool))(torch.ones(3))


def test_updates_with_arguments_that_thunder_lacks() -> None:
    mask = torch.tensor([True, False, True])

    def program(x: Tensor) -> list[Tensor]:
        y, z, w = x * 3, x * 2, x.sum()
        return [
            y.round_(decimals=1) * 2,
            z.index_put_((mask,), x[:2]).index_put_((mask,), x[1:], accumulate=True) + 1,
            w.index_add_(0, torch.tensor([0]), x[0, 0], alpha=2) * 2,
        ]

    torch.manual_seed(0)
    check(program, torch.randn(3, 4, requires_grad=True))


@pytest.mark.parametrize("norm", [torch.batch_norm, torch.instance_norm])
def test_norms_by_torchs_builtin_functions(norm: Callable[..., Tensor]) -> None:
    """Running statistics are updated once, also where a gradient is computed."""
    kept = [[torch.zeros(3), torch.ones(3)] for _ in range(2)]
    weight, x = torch.rand(3), torch.randn(4, 3, 5, requires_grad=True)
    program = lambda x, m, v: norm(x, weight, weight, m, v, True, 0.1, 1e-5, False)  # noqa: E731
    for function, statistics in zip((jit(program), program), kept, strict=True):
        function(x, *statistics).sin().sum().backward()
    assert all(map(torch.allclose, *kept))
    with pytest.raises(NotImplementedError, match=r"functional\.batch_norm"):
        jit(lambda x, m: torch.native_batch_norm(x, m, m, m, m, True, 0.1, 1e-5)[0])(x, kept[0][0])


@pytest.mark.parametrize("like", [torch.randn_like, torch.rand_like, torch.empty_like])
def test_new_tensors_lie_as_their_operand(like: Callable[..., Tensor]) -> None:
    x = torch.randn(2, 3, 4, 5)
    for y in (x, x.permute(3, 1, 0, 2), x.to(memory_format=torch.channels_last), x[:, ::2]):
        found = jit(lambda x: like(x, dtype=torch.float64))(y)
        assert found.dtype is torch.float64
        assert found.stride() == like(y).stride()


def test_dropout_in_place() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        F.dropout(y, 0.5, training=True, inplace=True)
        return y + 1

    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    y = jit(program)(x)
    y.sum().backward()
    assert set(y.tolist()) == {1.0, 5.0}
    assert torch.equal(x.grad, y.detach() - 1)
    assert torch.equal(jit(lambda x: F.dropout(x * 2, 0.5, False, True))(x), x * 2)


def test_transformer_layers_serve() -> None:
    """In eager code whole layers are one kernel for inference, which no trace knows."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True).eval()
    net = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x, padding = torch.randn(2, 5, 16), torch.arange(5).expand(2, -1) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        found = jit(net)(x, src_key_padding_mask=padding)
        expected = net(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding])


def test_functions_that_thunder_does_not_know() -> None:
    def program(x: Tensor) -> list[Tensor]:
        window = torch.hann_window(8, dtype=x.dtype)
        spectrum = torch.stft(x.flatten(), 8, window=window, return_complex=True)
        lengths = torch.tensor([1, 3])
        return [
            x * window,
            spectrum.abs(),
            torch.segment_reduce(x * 2, "sum", lengths=lengths) + 1,
            torch.as_tensor(0.5, dtype=x.dtype) * torch.as_tensor(x),
            x.tile(2, 1) * 2,
            x.t().clone(memory_format=torch.contiguous_format) + 1,
            x.to(torch.float64, non_blocking=True) * 2,
        ]

    torch.manual_seed(0)
    check(program, torch.randn(4, 8, dtype=torch.float64, requires_grad=True))


def test_new_random_tensors_are_drawn_by_torch() -> None:
    def program(x: Tensor) -> Tensor:
        return x[torch.randperm(6)] * 2 + torch.zeros(())

    x = torch.arange(6.0, requires_grad=True)
    compiled = jit(program)
    drawn = [compiled(x) for _ in range(4)]
    assert all(torch.equal(y.sort().values, 2 * x) for y in drawn)
    assert any(not torch.equal(y, drawn[0]) for y in drawn)


def test_functions_on_the_elements_of_an_iterable() -> None:
    def program(x: Tensor) -> list[Tensor]:
        first, second = map(torch.sigmoid, x.chunk(2))
        kept = filter(lambda y: y.ndim == 2, [first, second[0]])
        every = (torch.exp(y) for y in (first, second))
        return [first + second, *kept, torch.add(*every), *map(torch.mul, (first,), (second,))]

    check(program, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_attributes() -> None:
    def program(x: Tensor) -> list[Any]:
        sizes = (
            x.nbytes
            + x.itemsize
            + int(x.layout is torch.strided)
            + int(x.is_sparse or x.is_quantized)
        )
        return [x.H @ x, x.mH + x.mT, x.data * x, x * sizes]

    check(program, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_where_of_a_tensor() -> None:
    def program(x: Tensor, b: Tensor) -> list[Tensor]:
        return [x.where(x > 0, 0.5), b.where(x > 0, x < -1), torch.where(x > 0, x, 2.0)]

    check(program, torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.arange(3) > 0)


def test_updates_of_what_a_method_returns() -> None:
    def program(x: Tensor, buffer: Tensor) -> list[Tensor]:
        rows = torch.zeros(1, 3, dtype=torch.long)
        y = (x * 2).sigmoid_() + (x * 3).clamp_min_(0.3)
        buffer.fill_(2.0).index_fill_(0, torch.tensor([1]), -1.0)
        buffer.scatter_reduce_(0, rows, y.detach()[:1], "amax")
        return [y * 3, buffer + 1]

    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    buffers = [torch.zeros(4, 3, dtype=torch.float64) for _ in range(2)]
    runs = [run(x, b) for run, b in zip((jit(program), program), buffers, strict=True)]
    torch.testing.assert_close(*runs)
    torch.testing.assert_close(*buffers)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y, _ in runs))
    with pytest.raises(RuntimeError, match="can't be cast"):
        jit(lambda n: (n + 1).sigmoid_())(torch.arange(3))


def test_out_is_updated() -> None:
    def program(x: Tensor, out: Tensor) -> Tensor:
        torch.mul(x, 2, out=out)
        return F.normalize(x + out, dim=-1, out=out) + 1

    x = torch.randn(4, 3)
    outs = [torch.zeros(4, 3) for _ in range(2)]
    found = [run(x, out) for run, out in zip((jit(program), program), outs, strict=True)]
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*outs)
    with pytest.raises(NotImplementedError, match="result's size"):
        jit(lambda x, out: torch.exp(x, out=out))(x, torch.zeros(2))
    # Functions that Thunder does not know.
    check(lambda x, out: torch.logspace(0, 1, 3, out=out) * x, torch.ones(3), torch.zeros(3))
    check(lambda x, out: torch.alias_copy(x, out=out) * x, torch.ones(3), torch.zeros(3))
    for program in (
        lambda x, out: torch.exp(x, out=out),
        lambda x, out: torch.exp(x * 2, out=out),
    ):
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            jit(program)(x.requires_grad_(), torch.zeros(4, 3))


def test_numbers_are_guarded_by_the_sign_of_zero() -> None:
    compiled = jit(lambda x, k: x * k)
    x = torch.ones(2)
    for k in (0.0, -0.0, 0.0, complex(0.0, -0.0), complex(0.0, 0.0)):
        found, expected = compiled(x, k), x * k
        parts = [torch.view_as_real(t) if t.is_complex() else t for t in (found, expected)]
        assert torch.equal(*map(torch.signbit, parts))


def test_the_least_of_two_tensors_is_fused() -> None:
    """As in the clipped losses of PPO; ties share the gradient."""

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [-torch.min(x * y, x.clamp(0.8, 1.2) * y).mean(), torch.min(x) * 2, y.min(x)]

    torch.manual_seed(0)
    x, y = (torch.randint(-2, 3, (4, 3)).double().requires_grad_() for _ in range(2))
    check(program, x, y)
    compiled = jit(program)
    compiled(x, y)
    assert not {r.subject for r in refusals(compiled)} & {"min", "min_vjp"}


@pytest.mark.parametrize(
    "program",
    [
        torch.nonzero,
        Tensor.nonzero,
        lambda x: torch.where(x > 0)[0],
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x.masked_select(x > 0),
        torch.unique,
        torch.argwhere,
        lambda x: torch.bincount(x.long()),
        lambda x: torch.arange(x.sum(), x.sum() + 3),
    ],
    ids=(
        *("nonzero", "method", "where", "masked_select", "select", "unique", "argwhere"),
        *("bincount", "arange"),
    ),
)
def test_a_result_of_unknown_size_is_refused_with_a_way_out(program: Any) -> None:
    with pytest.raises(NotImplementedError, match="depends on the numbers in its operands"):
        jit(lambda x: program(x * 2))(torch.rand(3))


def test_differences_are_divided_by_a_spacing_in_a_tensor() -> None:
    def program(x: torch.Tensor, spacing: torch.Tensor) -> list[torch.Tensor]:
        return [
            *torch.gradient(x, spacing=spacing, edge_order=2),
            *torch.gradient(x, spacing=torch.tensor(2.0), dim=1),
            *torch.gradient(x, spacing=[0.5, 3.0]),
        ]

    inputs = torch.randn(4, 5, requires_grad=True), torch.tensor(0.3)
    found, expected = jit(program)(*inputs), program(*inputs)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad([*map(torch.sum, r)], inputs[0]) for r in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_checks_that_run_beside_the_program() -> None:
    """Without gradients when the function is called, with them in the backward."""

    def program(x: Tensor) -> Tensor:
        torch._assert_async(x.sum() > 0, "expected a positive sum")
        return (x * 2).sin()

    compiled = check(program, torch.ones(3))
    with pytest.raises(RuntimeError, match="expected a positive sum"):
        compiled(-torch.ones(3))
    compiled = check(program, torch.ones(3, requires_grad=True))
    found = compiled(-torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="expected a positive sum"):
        found.sum().backward()
