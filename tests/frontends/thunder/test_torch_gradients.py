"""Gradients that Thunder loses or has wrong: through tuples, of complex numbers, of noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, jit
from thunder_fuser import fusions, options, refusals

Program = Callable[..., Any]


def differentiated(program: Program, *inputs: Tensor) -> list[Tensor | None]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    results = program(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    sum((y * y.detach().cos()).sum() for y in results).backward()
    return [*(y.detach() for y in results), *(x.grad for x in leaves)]


def same_as_eager(program: Program, *inputs: Tensor) -> Program:
    compiled = jit(program)
    found, expected = differentiated(compiled, *inputs), differentiated(program, *inputs)
    for ours, eager in zip(found, expected, strict=True):
        assert (ours is None) == (eager is None)
        if eager is not None:
            torch.testing.assert_close(ours, eager, equal_nan=True)
    return compiled


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


# ---- operands in tuples and lists, and by keyword


def two_steps(cell: Program, x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor) -> Tensor:
    h, c = cell(x, (h, c), w, u)
    return cell(x, (h, c), w, u)[0]


def test_gradients_go_through_operands_in_a_tuple() -> None:
    """Through a cell's state, without which all steps but the last had no gradient; and the cells
    are fused.
    """
    inputs = doubles((2, 3), (2, 4), (2, 4), (16, 3), (16, 4))
    compiled = same_as_eager(lambda *given: two_steps(torch.lstm_cell, *given), *inputs)
    assert {r.subject for r in refusals(compiled) if r.code == "unclaimed"} <= {"linear", "matmul"}
    forward = fusions(compiled)[0]
    assert forward.plan.bytes == forward.plan.bytes_ideal


def test_calls_left_to_torch_differentiate_operands_passed_by_keyword() -> None:
    def bag(weight: Tensor, shares: Tensor) -> Tensor:
        words, offsets = torch.tensor([1, 2, 3, 1]), torch.tensor([0, 2])
        return F.embedding_bag(words, weight, offsets, mode="sum", per_sample_weights=shares)

    same_as_eager(bag, *doubles((5, 3), (4,)))


def test_recurrent_cells() -> None:
    inputs = doubles((2, 3), (2, 4), (12, 3), (12, 4), (12,), (12,))
    same_as_eager(lambda x, h, w, u, b, c: torch.gru_cell(x, h, w, u, b, c), *inputs)
    inputs = doubles((2, 3), (2, 4), (4, 3), (4, 4))
    same_as_eager(
        lambda x, h, w, u: torch.rnn_relu_cell(x, torch.rnn_tanh_cell(x, h, w, u), w, u), *inputs
    )
    torch.manual_seed(1)
    cell = torch.nn.LSTMCell(5, 4)
    x, h, c = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    given = [t.bfloat16().requires_grad_() for t in (x, h, c, cell.weight_ih, cell.weight_hh)]
    check(lambda x, h, c, w, u: torch.lstm_cell(x, (h, c), w, u), *given)


def test_lerp_that_is_not_fused() -> None:
    """torch executes no primitive of it, only the call."""
    with options(fuel=0):
        same_as_eager(
            lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, y), *doubles((3,), (3,))
        )


# ---- complex numbers


def as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def as_real(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2)


COMPLEX: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "rotary positions": lambda x, f: as_real(as_complex(x) * as_complex(f)),
    "quotient": lambda x, f: as_real(as_complex(x) / as_complex(f)),
    "matrix product": lambda x, f: as_real(as_complex(x) @ as_complex(f).T),
    "exponential": lambda x, f: as_real(as_complex(x).exp() * torch.polar(f, f)[:, :4]),
    "logarithm and root": lambda x, f: as_real(as_complex(x).log() + as_complex(f).sqrt()),
    "sine, tanh": lambda x, f: as_real(as_complex(x).sin() - as_complex(f).tanh()),
    "branches": lambda x, f: as_real(as_complex(x).acosh() + as_complex(f).atanh()),
    "norm": lambda x, f: as_real(F.rms_norm(as_complex(x), (4,)) * as_complex(f)),
    "others": lambda x, f: as_real(as_complex(x).tan() + as_complex(f).sinh().expm1()),
    "square": lambda x, f: as_real(as_complex(x) ** 2 + as_complex(f).reciprocal()),
    "parts": lambda x, f: ((as_complex(x) * as_complex(f)).real, (as_complex(x) * 2j).imag),
    "conjugate, mean": lambda x, f: as_real(as_complex(x).conj() * as_complex(f).mean()),
    "real and complex": lambda x, f: as_real(as_complex(x) * f[:, :4] + f[:, 4:]),
    "filter": lambda x, f: torch.fft.irfft(torch.fft.rfft(x, dim=-1) * as_complex(f)[0, 0], n=8),
    "magnitude": lambda x, f: (as_complex(x) * as_complex(f)).abs(),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_complex_numbers_are_conjugates(name: str) -> None:
    same_as_eager(COMPLEX[name], *doubles((2, 8), (2, 8)))


def test_without_this_executor_thunder_differentiates_as_before() -> None:
    x, f = doubles((2, 8), (2, 8))
    compiled = thunder.jit(COMPLEX["rotary positions"], executors=[])
    found = differentiated(compiled, x, f)[1]
    expected = differentiated(COMPLEX["rotary positions"], x, f)[1]
    assert not torch.allclose(found, expected)


# ---- indices and diagonals


def test_index_add_has_gradients() -> None:
    def messages(nodes: Tensor, edges: Tensor) -> Tensor:
        at = torch.tensor([0, 1, 1, 3])
        degrees = torch.zeros(4, dtype=nodes.dtype).index_add_(0, at, edges[:, 0] * 2)
        return nodes.index_add(1, at[:3], edges[:, :3]) + degrees.unsqueeze(1)

    same_as_eager(messages, *doubles((4, 5), (4, 5)))


def test_gradients_of_diagonals_are_gathered() -> None:
    def diagonals(x: Tensor) -> tuple[Tensor, ...]:
        return (
            x.diagonal(1, 2, 0).sin(),
            torch.diag(x[0], -2),
            torch.diag_embed(x, -1, 0, 2).cos(),
            torch.diag(x[0, 0], 1),
            torch.trace(x[1]),
        )

    compiled = same_as_eager(diagonals, *doubles((4, 4, 5)))
    assert not any(r.code == "unclaimed" for r in refusals(compiled))


# ---- random numbers


def test_the_gradient_of_noise_is_of_the_noise_that_was_drawn() -> None:
    torch.manual_seed(0)
    x, g = (torch.randn(5, 7, dtype=torch.float64) for _ in range(2))
    x.requires_grad_()
    soft = jit(lambda x: F.gumbel_softmax(x, tau=0.7))(x)
    soft.backward(g)
    torch.testing.assert_close(soft.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(x.grad, soft * (g - (g * soft).sum(-1, keepdim=True)) / 0.7)
    hard = jit(lambda x: F.gumbel_softmax(x, hard=True, dim=0))(x)
    assert torch.equal(hard.detach().sum(0).round(), torch.ones(7, dtype=torch.float64))


@pytest.mark.parametrize("dropout", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout(dropout: Program) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 50, 6, requires_grad=True)
    y = jit(lambda x: dropout(x, 0.3, training=True))(x)
    y.sum().backward()
    scale = x.grad.max()
    is_kept = x.grad != 0
    assert torch.equal(x.grad.unique(), torch.stack([torch.zeros(()), scale]))
    assert abs(is_kept.float().mean() - 0.7) < 0.03
    dropped = y.detach()[~is_kept]
    torch.testing.assert_close(dropped, dropped[:1].expand_as(dropped))
    shift = -(dropped[0] / scale + 1.7580993408473766)
    torch.testing.assert_close(y.detach()[is_kept], ((x - shift) * scale).detach()[is_kept])
    assert abs(y.mean()) < 0.05
    assert abs(y.std() - 1) < 0.05
    if dropout is F.feature_alpha_dropout:
        assert torch.equal(is_kept.all(-1), is_kept.any(-1))
    assert jit(lambda x: dropout(x, 0.3))(x).equal(x)


@pytest.mark.parametrize("options_of_jit", [{}, {"memory_budget": 0}])
@pytest.mark.parametrize(
    ("sizes", "features", "results"),
    [
        ((4, 2, 0), 0, 3),
        ((4, 0), 0, 3),
        ((0,), 0, 3),
        ((4, 5), 5, 0),
        ((0, 5), 5, 3),
        ((0, 0), 0, 0),
    ],
)
def test_linear_layers_of_no_features(
    sizes: tuple[int, ...], features: int, results: int, options_of_jit: dict[str, Any]
) -> None:
    """Thunder makes matrices by `reshape(-1, 0)`."""

    def program(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x, weight, bias), F.linear(x, weight), x @ weight.t() + bias

    inputs = doubles(sizes, (results, features), (results,))
    compiled = jit(program, **options_of_jit)
    found, expected = differentiated(compiled, *inputs), differentiated(program, *inputs)
    torch.testing.assert_close(found, expected)
