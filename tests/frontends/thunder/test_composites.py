"""Calls that Thunder knows by name only: numbers and gradients of their parts, and one fusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, fake, jit, traced
from thunder_fuser import refusals
from thunder_fuser.frontends.thunder.composites import PARTS

# Name, function of two tensors [4, 6], both of which get gradients if they have any.
CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "clamp_min": lambda x, y: x.clamp_min(0.1) + torch.clamp_max(y, 0.2),
    "clamp_min tensor": lambda x, y: torch.clamp_min(x, y),
    "frac": lambda x, y: torch.frac(x * 3) * y,
    "fmax": lambda x, y: torch.fmax(x, y) * torch.fmin(x, y * 2),
    "logaddexp": lambda x, y: torch.logaddexp(x, y),
    "sinc": lambda x, y: torch.sinc(x) + torch.special.sinc(y * 0),
    "isclose": lambda x, y: (torch.isclose(x, x + 1e-9), x.isclose(y, 0.5, equal_nan=True)),
    "infinities": lambda x, y: (torch.isposinf(1 / (x * 0)), torch.isneginf(y)),
    "angles": lambda x, y: torch.deg2rad(x) + y.rad2deg(),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2) * y.sgn(),
    "norm": lambda x, y: (torch.norm(x), y.norm(dim=-1)),
    "norm of zeros": lambda x, y: torch.norm(x * 0, dim=1) + y.norm(3, 1),
    "norm 1": lambda x, y: (x.norm(1, -1, keepdim=True), torch.norm(y, p=math.inf)),
    "vector_norm": lambda x, y: torch.linalg.vector_norm(x, 2.5, (0, 1)) * torch.linalg.norm(y),
    "dist": lambda x, y: (torch.dist(x, y), F.pairwise_distance(x, y)),
    "cosine": lambda x, y: F.cosine_similarity(x, y, dim=-1),
    "nansum": lambda x, y: torch.nansum(x / x.relu(), -1) + torch.nanmean(y, -1),
    "count": lambda x, y: torch.count_nonzero(x.relu(), -1),
    "std_mean": lambda x, y: torch.std_mean(x * y, -1),
    "dot": lambda x, y: (torch.dot(x[0], y[1]), torch.addr(x, y[:, 0], y[0], alpha=2)),
    "layer of columns": lambda x, y: torch.addmm(y[:, 0] * 2, torch.tanh(x), y.t()),
    "diff": lambda x, y: torch.diff(x) * y.diff(dim=1),
    "l1": lambda x, y: F.l1_loss(x, y) + F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), reduction="sum", pos_weight=x.new_full((6,), 1.5)
    ),
    "bce of probabilities": lambda x, y: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), weight=y.new_full((6,), 1.5)
    ),
    "gaussian": lambda x, y: F.gaussian_nll_loss(x, y, F.softplus(y), full=True),
    "gaussian of one row": lambda x, y: F.gaussian_nll_loss(x, y[:1], F.softplus(y[:1])),
    "margins": lambda x, y: F.margin_ranking_loss(x, y, torch.sign(x.detach()), margin=0.5),
    "hinge": lambda x, y: F.hinge_embedding_loss(x * y, torch.sign(y.detach())),
    "kl_div": lambda x, y: F.kl_div(x, y.softmax(-1), reduction="batchmean"),
    "kl_div of logarithms": lambda x, y: F.kl_div(x, y, log_target=True, reduction="sum"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y),
    "soft margin": lambda x, y: F.soft_margin_loss(x * y, x.new_ones(4, 6)),
    "cosine loss": lambda x, y: F.cosine_embedding_loss(x, y, torch.sign(x[:, 0] - y[:, 0])),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, x * y, swap=True),
    "rot90": lambda x, y: torch.rot90(x, -1) @ torch.rot90(y, 2),
    "flips": lambda x, y: torch.fliplr(x) + torch.flipud(y),
    "meshgrid": lambda x, y: [a * 2 for a in torch.meshgrid(x[0], y[:, 0], indexing="xy")],
    "stacks": lambda x, y: (torch.hstack([x, y]), torch.vstack([x[0], y[0]])),
    "columns": lambda x, y: torch.column_stack([x[0], y[0]]) * torch.hstack([x[0, :1], y[0, :1]]),
    "ravel": lambda x, y: x.ravel() * y.ravel(),
    "sum_to_size": lambda x, y: (x * y).sum_to_size(1, 6) * x.sum_to_size(6),
    "shuffles": lambda x, y: (
        F.pixel_shuffle(x.view(4, 2, 3), 2) * F.channel_shuffle(y.view(1, 4, 2, 3), 2).view(1, 4, 6)
    ),
    "steps": lambda x, y: torch.round(x * 3) + torch.trunc(y) + x * y * torch.isfinite(x),
    "minimum": lambda x, y: torch.minimum(x, y) + torch.lerp(x, y, 0.3) + torch.lerp(x, y, x),
    "remainder": lambda x, y: torch.remainder(x, y) + torch.remainder(x, 0.7),
    "unshuffle": lambda x, y: F.pixel_unshuffle((x * y).view(1, 4, 6), 2) * 2,
    "scatters": lambda x, y: x.select_scatter(y[0], 0, -1) * y.slice_scatter(x[:2], 0, 1, 3),
    "averages": lambda x, y: F.adaptive_avg_pool2d(x[None], (4, 3)) * F.adaptive_avg_pool1d(y, 1),
}


CONSTANT = ("isclose", "infinities", "count")
NAMES = sorted(set(CASES) - set(CONSTANT))
# Several of them are one program, which compiles faster.
GROUPS = [CONSTANT, *(NAMES[k::5] for k in range(5))]


def together(names: Sequence[str]) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, y: [CASES[name](x, y) for name in names]


@pytest.mark.parametrize("names", GROUPS, ids=",".join)
def test_numbers_and_gradients(names: Sequence[str], device: torch.device) -> None:
    torch.manual_seed(1)
    grad = names is not CONSTANT
    inputs = (torch.randn(4, 6, requires_grad=grad) for _ in range(2))
    compiled = check(together(names), *inputs, device=device)
    left = {r.subject for r in refusals(compiled) if r.code == "unclaimed"}
    assert left <= {"matmul", "linear"}, left


def test_of_16_bits_no_further_from_the_truth_than_torchs() -> None:
    torch.manual_seed(2)
    x, y = (torch.randn(4, 6).bfloat16().requires_grad_() for _ in range(2))
    check(together(["norm", "cosine", "huber", "kl_div", "std_mean", "logaddexp"]), x, y)


def test_channels_are_dropped_whole() -> None:
    torch.manual_seed(0)
    compiled = check(lambda x: F.dropout2d(x, 0.5, training=False) * 2, torch.randn(3, 5, 4, 4))
    x = torch.ones(3, 50, 4, 4)
    found = jit(lambda x: F.dropout2d(x, 0.5) * 2)(x)
    each = found.flatten(2)
    assert torch.equal(each.amin(-1), each.amax(-1))
    assert set(found.unique().tolist()) == {0.0, 4.0}
    assert not refusals(compiled)


def test_what_no_formula_says_is_torchs() -> None:
    """A nuclear norm, a result given, other dtypes: as in torch, errors too."""
    x = torch.randn(4, 6)
    check(lambda x: torch.norm(x, "nuc") + torch.linalg.norm(x, 2), x)
    check(lambda x: torch.linalg.vector_norm(x, dtype=torch.float64), x)
    check(lambda x: torch.count_nonzero(x > 0, (0, 1)) + torch.diff(x.long(), n=2).sum(), x)


def test_every_name_is_torchs() -> None:
    missing = [name for name in PARTS if not _torchs(name)]
    assert missing == []


def _torchs(path: str) -> bool:
    home: Any = torch
    for name in path.split("."):
        home = getattr(home, name, None)
    return callable(home) or callable(getattr(torch.Tensor, path, None))


BOUNDED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -1.0, 2.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
}


@pytest.mark.parametrize("name", BOUNDED)
def test_gradients_of_bounds_are_torchs_at_the_bounds_and_at_nan(name: str) -> None:
    points = [math.nan, math.inf, -math.inf, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 6.0, 7.0]
    found = []
    for function in (BOUNDED[name], jit(BOUNDED[name])):
        x = torch.tensor(points, requires_grad=True)
        y = function(x)
        y.backward(torch.ones_like(y))
        found.append(x.grad)
    assert torch.equal(*map(torch.isnan, found))
    assert torch.equal(*map(torch.nan_to_num, found))


EQUATIONS = {
    "bqhd,bkhd->bhqk": ((2, 3, 4, 5), (2, 6, 4, 5)),
    "bhqk,bkhd->bqhd": ((2, 4, 3, 6), (2, 6, 4, 5)),
    "ij , jk->ki": ((3, 4), (4, 5)),
    "abc,dcb->ad": ((2, 3, 4), (5, 4, 3)),
    "abc,cbde->aed": ((2, 3, 4), (4, 3, 5, 2)),
    "bti,ij->btj": ((2, 3, 4), (4, 5)),
    "ij,jk->ik": ((0, 4), (4, 5)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_products_by_an_equation(equation: str) -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum(equation, a * 1.5, b)

    sizes = EQUATIONS[equation]
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in sizes]
    found, expected = jit(program)(*inputs), program(*inputs)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sin().sum(), inputs) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_a_softmax_of_products_goes_along_their_rows() -> None:
    def program(q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)

    inputs = fake((2, 256, 4, 64), (2, 256, 4, 64), dtype=torch.bfloat16)
    (report,) = traced(program, *inputs)
    assert (report.plan.kernels, report.plan.bytes) == (1, 2 * 2 * 4 * 256 * 256 * 2)


@pytest.mark.parametrize(
    ("equation", "sizes", "others"),
    [
        ("...ij,...kj->...ik", (5, 3, 1), (5, 3, 1)),
        ("...ij,...jk->...ik", (2, 5, 3, 4), (2, 5, 4, 2)),
        ("... i j,...jk->...ik", (3, 4), (4, 2)),
        ("...ij,...jk->...ik", (5, 3, 4), (4, 2)),
    ],
)
def test_einsum_of_unnamed_dimensions(
    equation: str, sizes: tuple[int, ...], others: tuple[int, ...]
) -> None:
    """Strides are those of one product, as with names in the place of the ellipsis."""
    x, y = torch.rand(sizes), torch.rand(others)
    found = jit(lambda x, y: torch.einsum(equation, x, y))(x, y)
    wanted = torch.einsum(equation, x, y)
    torch.testing.assert_close(found, wanted)
    if len(sizes) == len(others):
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("sizes", [(4, 2, 0), (0, 2, 3), (2, 0, 5, 3), (4, 0, 3)])
def test_products_of_matrices_without_elements(sizes: tuple[int, ...]) -> None:
    x, y = torch.rand(sizes), torch.rand(sizes[-1], 5)
    for product in (torch.matmul, lambda x, y: x @ y, lambda x, y: x.matmul(y)):
        assert torch.equal(jit(product)(x, y), product(x, y))
