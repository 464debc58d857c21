"""Calls that Thunder's decompositions refuse are torch calls; what torch refuses is its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, jit

IMAGE, VOLUME, ROWS = (1, 2, 6, 6), (1, 2, 4, 4, 4), (3, 4)
CALLS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "empty interval": (ROWS, lambda x: F.hardtanh(x, 0.0, 0.0)),
    "nearest-exact": (
        IMAGE,
        lambda x: F.interpolate(
            x, scale_factor=0.6, mode="nearest-exact", recompute_scale_factor=True
        ),
    ),
    "adaptive": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, (None, 3))),
    "divisor": (
        VOLUME,
        lambda x: F.avg_pool3d(x, 4, None, (2, 1, 0), False, False, divisor_override=2),
    ),
    "einsum of a list": (ROWS, lambda x: torch.einsum("ij,kj->ik", [x, x])),
    "gather": ((), lambda x: torch.gather(x, 0, torch.tensor([0, 0]))),
    "gather by keyword": ((), lambda x: torch.gather(input=x, dim=0, index=torch.tensor(0))),
    "index_select": ((), lambda x: x.index_select(0, torch.tensor([0]))),
    "index_add": ((), lambda x: x.index_add(0, torch.tensor([0]), x * 2, alpha=3)),
    "squeeze": ((), lambda x: x.squeeze(0) * 2),
    "prelu": ((), lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype))),
    "tile": (ROWS, lambda x: x.tile(())),
    "weight norm by keyword": (ROWS, lambda x: torch._weight_norm(x, g=x[:, :1] * 2)),
    "deviation": (ROWS, lambda x: torch.std_mean(x, dim=1, correction=None)[0]),
    "cov": (
        (3, 6),
        lambda x: torch.cov(x, correction=2, fweights=torch.arange(1, 7), aweights=x[0].abs()),
    ),
    "index_put": (
        ROWS,
        lambda x: x.index_put((torch.tensor([True, False, True]),), x[:2] * 3) ** 2,
    ),
    "cov of integers": (ROWS, lambda x: x[:, :3] + torch.cov((x.detach() * 9).long())),
    "weights without gradient": (
        ROWS,
        lambda x: F.multi_margin_loss(
            x, torch.tensor([0, 3, 1]), weight=torch.arange(1, 5, dtype=x.dtype)
        ),
    ),
    "spacings": (
        ROWS,
        lambda x: torch.cat(torch.gradient(x, spacing=(x[:, 0].sort()[0], x[0].sort()[0]))),
    ),
    "distance": (
        ROWS,
        lambda x: F.triplet_margin_with_distance_loss(
            x, x * 2, x.flip(0), distance_function=torch.nn.PairwiseDistance()
        ),
    ),
    "window": (ROWS, lambda x: x * torch.signal.windows.kaiser(4, dtype=torch.float32)),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    shape, program = CALLS[name]
    check(program, torch.randn(shape, requires_grad=True))


def test_a_call_by_position_and_by_keyword() -> None:
    """The second was called with the operands of the first."""
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    by_position = lambda x, y: torch._weight_norm(x, y[:, :1], 0)  # noqa: E731
    for program in (by_position, lambda x, y: torch._weight_norm(x, g=y[:, :1], dim=0)) * 2:
        check(program, x, y)


def test_operands_without_part_in_the_result_have_no_gradient() -> None:
    x, q = torch.randn(3, 4, requires_grad=True), torch.tensor([0.2, 0.5], requires_grad=True)
    found = jit(lambda x, q: torch.nanquantile(x, q, 1, interpolation="midpoint"))(x, q)
    gradients = torch.autograd.grad(found.sum(), [x, q], allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1] is None


MISTAKES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "sizes": (lambda x: F.conv1d(x, torch.ones(1, 2, 3)), "expected input"),
    "dimension": (lambda x: torch.softmax(x, 5), "Dimension out of range"),
    "narrow": (lambda x: torch.narrow(x, 2, 0, 1), "Dimension out of range"),
    "weights": (lambda x: torch.cov(x, fweights=torch.tensor([1])), "one number for each"),
    "range": (lambda x: (x * 2).uniform_(3, -1), "from low to high"),
    "deviation": (lambda x: (x * 2).normal_(0, -1), "std >= 0"),
    "probability": (lambda x: F.dropout(x, 1.5), "between 0 and 1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_torchs_errors(name: str, caplog: pytest.LogCaptureFixture) -> None:
    program, text = MISTAKES[name]
    with pytest.raises((RuntimeError, IndexError, ValueError), match=text):
        jit(program)(torch.ones(3, 4))
    assert not caplog.records


UNKNOWN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "unique_consecutive": (lambda x: torch.unique_consecutive(x), "size of its result"),
    "tensor_split": (lambda x: torch.tensor_split(x, torch.tensor(2)), "size of its result"),
    "narrow": (lambda x: torch.narrow(x, 0, torch.tensor(1), 2), "index_select"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_depends_on_numbers_is_refused(name: str) -> None:
    program, text = UNKNOWN[name]
    with pytest.raises(NotImplementedError, match=f"^{name}.*{text}"):
        jit(program)(torch.ones(3, 4))


def test_functions_that_do_more_than_compute_keep_thunders_refusal() -> None:
    """A batch norm that torch takes and Thunder does not would update the statistics."""
    mean = torch.zeros(2)
    with pytest.raises(RuntimeError, match="running_mean"):
        jit(lambda x, m, v: F.batch_norm(x, m, v, training=True))(
            torch.ones(3, 4), mean, torch.ones(4)
        )
    assert not mean.any()


def test_methods_are_called_as_functions() -> None:
    def program(x: Tensor) -> list[Tensor]:
        y = torch.Tensor.exp_(x * 1)
        return [
            y,
            torch.Tensor.__radd__(x, 2),
            torch.Tensor.__rmul__(y, x),
            torch.Tensor.fill_(y, 2),
        ]

    check(program, torch.randn(3, 4))
    noise = jit(lambda x: torch.Tensor.uniform_(x * 1, 2, 3))(torch.zeros(1000))
    assert 2 <= noise.min() < 2.1 < 2.9 < noise.max() <= 3


def test_options_of_new_tensors_that_change_nothing() -> None:
    options: dict[str, Any] = {"layout": torch.strided, "requires_grad": False, "pin_memory": False}

    def program(x: Tensor) -> list[Tensor]:
        return [
            x + torch.zeros(4, **options),
            x * torch.full((4,), 2.0, **options),
            x + torch.arange(4, **options),
            x + torch.ones_like(x, **options),
            x + x.new_zeros(4, **options),
            x + torch.hann_window(4, **options),
        ]

    check(program, torch.randn(3, 4))


_CASTS = ("float", "half", "bfloat16", "double", "int", "long", "bool", "cfloat")


def test_memory_formats_beside_dtypes() -> None:
    x, last = torch.randn(2, 3, 4, 5), torch.channels_last

    def program(x: Tensor) -> list[Tensor]:
        return [
            x.to(torch.float64, memory_format=last),
            x.to(torch.float64, False, True, memory_format=last),
            x.to("cpu", torch.float64, True, True),
            x[:, :, ::2, 0].ravel(),
            *(getattr(x, name)(memory_format=last) for name in _CASTS),
            x.float(),
        ]

    for found, expected in zip(jit(program)(x), program(x), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_instance_norms_update_running_statistics(requires_grad: bool) -> None:
    """By the means of those of the samples; Thunder updates copies of them."""
    torch.manual_seed(0)
    ours, theirs = (
        torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True) for _ in range(2)
    )
    compiled = jit(ours)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 6)
        inputs = [x.clone().requires_grad_(requires_grad) for _ in range(2)]
        torch.testing.assert_close(compiled(inputs[0]), theirs(inputs[1]))
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(compiled(x), theirs(x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc_losses(reduction: str) -> None:
    """Of a batch with targets in rows, and of one sequence, with lengths as tensors and lists."""
    torch.manual_seed(0)
    targets = torch.randint(1, 7, (3, 5))

    def program(x: Tensor, targets: Tensor, sizes: Tensor, lengths: Tensor) -> list[Tensor]:
        scores = F.log_softmax(x, -1)
        return [
            F.ctc_loss(scores, targets, sizes, lengths, reduction=reduction, zero_infinity=True),
            torch.nn.CTCLoss(blank=7, reduction=reduction)(scores, targets, [12] * 3, [5] * 3),
            F.ctc_loss(scores[:, 0], targets[0], sizes[0], lengths[0], reduction=reduction) * 2,
        ]

    sizes, lengths = torch.tensor([12, 11, 4]), torch.tensor([5, 3, 4])
    check(program, torch.randn(12, 3, 8, requires_grad=True), targets, sizes, lengths)


def test_instance_norms_of_one_value_are_refused() -> None:
    norm = torch.nn.InstanceNorm2d(3, track_running_stats=True)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        jit(norm)(torch.ones(2, 3, 1, 1))


LINEAR: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "unfold": (IMAGE, lambda x: F.unfold(x, 2, 1, 2, 2)),
    "bicubic": (IMAGE, lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic")),
    "antialias": (
        IMAGE,
        lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
    ),
    "affine_grid": ((2, 2, 3), lambda x: F.affine_grid(x, [2, 1, 3, 4], align_corners=False)),
    "bias": (
        (3,),
        lambda b: F.conv_transpose2d(torch.ones(1, 2, 4, 4), torch.ones(2, 3, 2, 2), b),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_call_saves_no_operand_for_its_gradient(name: str) -> None:
    """So the caller may change it before the backward, as in eager code."""
    torch.manual_seed(0)
    shape, program = LINEAR[name]
    x = torch.randn(shape, requires_grad=True)
    ours, eager = jit(program)(x), program(x)
    with torch.no_grad():
        x.fill_(torch.nan)
    cotangent = torch.randn(eager.shape)
    (found,), (expected,) = (torch.autograd.grad(y, x, cotangent) for y in (ours, eager))
    torch.testing.assert_close(found, expected)


class _Kept(torch.autograd.Function):
    """A square that keeps its operand where autograd does not see it: one call of torch, since it
    updates a tensor that it makes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x
        return x.clone().mul_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * ctx.kept * gradients[0]


def test_functions_in_python_get_their_operands_again() -> None:
    """Autograd functions keep tensors as attributes, unseen."""
    x = torch.arange(1.0, 5.0, requires_grad=True)
    program = _Kept.apply
    (found,) = torch.autograd.grad(jit(program)(x).sum(), x)
    torch.testing.assert_close(found, 2 * x.detach())
