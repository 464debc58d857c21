"""Reductions through thunder.jit: numbers against float64, torch's arguments, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from thunder.core import prims
from thunder.core.prims import PrimIDs
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, fake, flat, jit, traced
from thunder_fuser.frontends.thunder import refusals
from thunder_fuser.frontends.thunder.claims import reductions
from thunder_fuser.frontends.thunder.claims.operands import data_type
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

INF, NAN = math.inf, math.nan
SOME = [torch.float32, torch.bfloat16]
OTHERS = [pytest.param(d, marks=pytest.mark.campaign) for d in (torch.float64, torch.float16)]
FP32_TOO, INT32_TOO = (
    pytest.param(d, marks=pytest.mark.campaign) for d in (torch.float32, torch.int32)
)
"""In campaigns."""
LENGTHS = (1, 2, 31, 32, 33, 127, 1000, 4096)

Call = Callable[..., Any]


class Fold(NamedTuple):
    """A call that folds the last dimension, and the size of the numbers that it adds up."""

    call: Call
    size: Call

    def assert_as_good_as_eager(self, ours: Any, x: torch.Tensor, what: str) -> None:
        """No further from float64 than eager, or than two roundings in the type that adds."""
        eager, truth = self.call(x), self.call(x.double())
        size = self.size(x.double())
        for found, theirs, exact in zip(*map(flat, (ours, eager, truth)), strict=True):
            assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype), what
            if not found.is_floating_point():
                assert torch.equal(found, exact), what
                continue
            assert torch.equal(found.isnan(), theirs.isnan()), what
            known = exact.isfinite()
            assert torch.equal(found[~known].nan_to_num(), theirs[~known].nan_to_num()), what
            wide = torch.float64 if x.dtype is torch.float64 else torch.float32
            # Nothing is wider than float64: eager is the truth there, and shows no error.
            steps = 16 if wide is torch.float64 else 2
            own = steps * torch.finfo(wide).eps * size.broadcast_to(exact.shape)
            own = own + torch.finfo(found.dtype).eps / 2 * exact.abs()
            worst = (theirs.double() - exact)[known].abs().max() if known.any() else 0.0
            error = (found.double() - exact).abs()
            assert bool((error <= own.clamp(min=worst))[known].all()), what


def _magnitude(x: torch.Tensor) -> torch.Tensor:
    return x.abs().sum(-1, keepdim=True)


def _spread(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean(-1) + 1


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(-1, keepdim=True) + 1


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """What is lost in the mean is divided by the deviation."""
    scale = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)
    return _largest(x) * scale + 1


def _layer_norm(x: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:])


def _rms_norm(x: Any) -> Any:
    return F.rms_norm(x, x.shape[-1:], eps=1e-5)


FOLDS = {
    "sum": Fold(lambda x: x.sum(-1), lambda x: x.abs().sum(-1)),
    "sum, kept": Fold(lambda x: x.sum((-1,), keepdim=True), _magnitude),
    "mean": Fold(lambda x: x.mean(-1), lambda x: x.abs().mean(-1)),
    "var": Fold(lambda x: x.var(-1, correction=0), _spread),
    "std": Fold(lambda x: torch.std(x, -1, correction=0), _spread),
    "amax": Fold(lambda x: x.amax(-1), lambda x: x[..., 0] * 0),
    "amin": Fold(lambda x: x.amin(-1), lambda x: x[..., 0] * 0),
    "argmax": Fold(lambda x: x.argmax(-1), lambda x: x[..., 0] * 0),
    "argmin": Fold(lambda x: x.argmin(-1), lambda x: x[..., 0] * 0),
    "softmax": Fold(lambda x: torch.softmax(x, -1), _largest),
    "log_softmax": Fold(lambda x: torch.log_softmax(x, -1), _largest),
    "logsumexp": Fold(lambda x: torch.logsumexp(x, -1), lambda x: _largest(x)[..., 0]),
    "layer_norm": Fold(_layer_norm, _normalised),
    "rms_norm": Fold(_rms_norm, _largest),
}


def compare_all(inputs: list[torch.Tensor], device: torch.device) -> None:
    """Every fold of every input, in one program."""

    def program(*args: Any) -> Any:
        return [[fold.call(x) for fold in FOLDS.values()] for x in args]

    compiled = jit(program)
    found = compiled(*(x.to(device) for x in inputs))
    assert refusals(compiled) == {}
    for x, results in zip(inputs, found, strict=True):
        for (name, fold), ours in zip(FOLDS.items(), results, strict=True):
            what = f"{name} of {list(x.shape)}, strides {x.stride()}, {x.dtype}"
            fold.assert_as_good_as_eager(ours.cpu(), x, what)


@pytest.mark.parametrize("dtype", [*SOME, *OTHERS], ids=str)
def test_rows_of_any_length(dtype: torch.dtype, device: torch.device) -> None:
    lengths = LENGTHS if dtype is torch.float32 else LENGTHS[::3]
    compare_all([(torch.randn(3, n) + 0.25).to(dtype) for n in lengths], device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP32_TOO], ids=str)
def test_rows_of_any_layout(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(6, 5, 66).to(dtype)
    compare_all(
        [
            x.permute(2, 1, 0),
            x.permute(1, 2, 0),
            x[:, 1:4, 3:],
            x[..., ::3],
            x[:1].expand(7, 5, 66),
            x[..., :1].expand(6, 5, 66),
            x[0, 0],
        ],
        device,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_and_infinities(dtype: torch.dtype, device: torch.device) -> None:
    given = []
    for length in (5, 33, 1000):
        x = torch.randn(7, length)
        x[0, length // 2], x[1, -1], x[2, 0], x[2, -1] = NAN, INF, INF, -INF
        x[3], x[4, 1], x[4, 2], x[5, 3] = -INF, NAN, -INF, -INF
        given.append(x.to(dtype))
    compare_all(given, device)


# ---- primitives


PRIMITIVES: dict[PrimIDs, tuple[Call, Call]] = {
    PrimIDs.SUM: (prims.sum, torch.sum),
    PrimIDs.PROD: (prims.prod, lambda x, dims: _over(torch.prod, x, dims)),
    PrimIDs.AMAX: (prims.amax, torch.amax),
    PrimIDs.AMIN: (prims.amin, torch.amin),
    PrimIDs.VAR: (lambda x, d: prims.var(x, d, correction=1), torch.var),
    PrimIDs.VAR_MEAN: (
        lambda x, d: prims.var_mean(x, d, correction=0.5),
        lambda x, d: torch.var_mean(x, d, correction=0.5),
    ),
    PrimIDs.STD: (
        lambda x, d: prims.std(x, d, correction=2),
        lambda x, d: torch.std(x, d, correction=2),
    ),
    PrimIDs.ARGMAX: (lambda x, d: prims.argmax(x, d[0]), lambda x, d: torch.argmax(x, d[0])),
    PrimIDs.ARGMIN: (
        lambda x, d: prims.argmin(x, d[0] if len(d) == 1 else None),
        lambda x, d: torch.argmin(x, d[0] if len(d) == 1 else None),
    ),
}


def _over(fold: Call, x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = fold(x, dim)
    return x


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_primitive(dtype: torch.dtype, device: torch.device) -> None:
    """Given 16-bit tensors, which Thunder's calls never give them, they round once."""
    assert set(PRIMITIVES) == set(reductions.CLAIMS)
    every = [(call, dims) for call, _ in PRIMITIVES.values() for dims in ((1,), (0, 2), (0, 1, 2))]
    compiled = jit(lambda x: [call(x, dims) for call, dims in every])
    x = (torch.rand(3, 4, 5) + 0.5).to(dtype)
    results = iter(compiled(x.to(device)))
    assert refusals(compiled) == {}
    for _, reference in PRIMITIVES.values():
        for dims in ((1,), (0, 2), (0, 1, 2)):
            exact = reference(x.double(), dims)
            for found, truth in zip(flat(next(results)), flat(exact), strict=True):
                assert found.dtype is (dtype if truth.is_floating_point() else truth.dtype)
                near = max(torch.finfo(dtype).eps / 2, 2**-44) * 1.001
                torch.testing.assert_close(found.cpu().to(truth.dtype), truth, rtol=near, atol=0)


@pytest.mark.nvrtc
@pytest.mark.parametrize("dtype", [*SOME, *OTHERS, torch.int64, INT32_TOO], ids=str)
def test_every_primitive_compiles_for_a_gpu(dtype: torch.dtype) -> None:
    """Rows and columns, which get kernels of different kinds."""
    (x,) = fake((1000, 600), dtype=dtype)
    spreads = {PrimIDs.VAR, PrimIDs.VAR_MEAN, PrimIDs.STD}
    calls = [c for p, (c, _) in PRIMITIVES.items() if dtype.is_floating_point or p not in spreads]
    (report,) = traced(lambda x: [call(x, dims) for call in calls for dims in ((0,), (1,))], x)
    for found, proxy in zip(report.fusion.outputs, report.outputs, strict=True):
        assert data_type(proxy.dtype) is found.dtype
    # Everything is computed, in as many kernels as registers ask for.
    assert {refusal.code for refusal in report.refusals} <= {"registers", "sharing"}
    cubin = compile_cubin(list(report.kernels), "sm_90")
    assert not any(resources.spills for resources in cubin.resources.values())


# ---- what stays with torch


def test_the_largest_of_nothing_is_an_error_that_is_not_ours() -> None:
    for primitive in (prims.amax, prims.amin):
        with pytest.raises(RuntimeError, match="zero-size dimension"):
            jit(lambda x, primitive=primitive: primitive(x, (1,)))(torch.zeros(3, 0))
    assert jit(lambda x: prims.amax(x, (0,)))(torch.zeros(3, 0)).shape == (0,)


def test_dtypes_that_torch_reduces_in_its_own_way() -> None:
    for dtype in (torch.uint8, torch.bool):
        x = torch.ones(3, 4).to(dtype)
        compiled = jit(lambda x: prims.sum(x, (1,)))
        assert torch.equal(compiled(x), x.sum(1))
        assert [r.code for r in refusals(compiled)] == ["dtype"]


def test_sizes_that_are_unknown_are_refused() -> None:
    with pytest.warns(UserWarning, match="experimental"):
        compiled = jit(lambda x: x.sum(1) / 2, cache="symbolic values")
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x.sum(1) / 2)
    refused = {r.subject: r.code for r in refusals(compiled)}
    assert refused["sum"] == "symbolic-shape"


# ---- what torch's arguments mean


MEANINGS: list[Call] = [
    lambda x: x.sum(),
    lambda x: x.sum([]),
    lambda x: x.sum(-2),
    lambda x: x.sum((0, -1), keepdim=True),
    lambda x: x.sum(1, dtype=torch.float64),
    lambda x: x.mean(),
    lambda x: x.mean((0, 1), keepdim=True),
    lambda x: x.prod(1),
    lambda x: x.amax(),
    lambda x: x.amin((1, 2), keepdim=True),
    lambda x: x.max(),
    lambda x: x.max(1),
    lambda x: x.max(-1, keepdim=True),
    lambda x: x.argmax(),
    lambda x: x.argmin(0, keepdim=True),
    lambda x: x.argmax(keepdim=True),
    lambda x: x.var(),
    lambda x: x.var((0, 2)),
    lambda x: torch.var(x, 1, correction=2, keepdim=True),
    lambda x: torch.var_mean(x, (0, 1), correction=0),
    lambda x: torch.std(x, 2, correction=2),
    lambda x: (x > 1).any(0),
    lambda x: (x > -9).all((1,), keepdim=True),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP32_TOO], ids=str)
def test_dimensions_and_options(dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(4, 50, 6) + 0.5).to(dtype)
    compiled = check(lambda x: [call(x) for call in MEANINGS], x, device=device)
    assert refusals(compiled) == {}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integers_and_bools(dtype: torch.dtype, device: torch.device) -> None:
    calls: list[Call] = [
        lambda x: x.sum(1), lambda x: x.sum(), lambda x: x.prod(1), lambda x: x.amax(0),
        lambda x: x.amin(1), lambda x: x.sum(0, dtype=torch.float32),
    ]  # fmt: skip
    if dtype is not torch.bool:
        calls += [lambda x: x.argmax(1), lambda x: x.argmin()]
    if dtype is not torch.uint8:
        calls += [lambda x: x.any(1), lambda x: x.all(0)]
    x = torch.randint(0, 100, (5, 300)).to(dtype)
    compiled = check(lambda x: [call(x) for call in calls], x, device=device)
    assert refusals(compiled) == {}
    exact = torch.tensor([[2**62, 2**62, -1, 7]])
    assert jit(lambda x: x.sum(1))(exact.to(device)).item() == 2**62 + 2**62 + 6 - 2**64


def test_complex_numbers() -> None:
    x = torch.randn(3, 70, dtype=torch.complex64)
    compiled = check(lambda x: (x.sum(1), x.mean(0)), x)
    assert refusals(compiled) == {}
    # A variance is that of two views of the real numbers, which are torch's.
    compiled = check(lambda x: x.var(1), x)
    assert [r.code for r in refusals(compiled)] == ["view", "view"]


@pytest.mark.parametrize("shape", [(), (1,), (3, 0), (0, 3), (1, 1, 1)], ids=str)
def test_small_and_empty_shapes(shape: tuple[int, ...], device: torch.device) -> None:
    def program(x: Any) -> Any:
        folded = [x.sum(), x.sum(-1), x.mean(-1), (x > 0).any(), x.prod(-1), torch.softmax(x, -1)]
        if 0 not in x.shape:
            folded += [
                x.amax(),
                x.amin(-1),
                x.argmax(-1),
                x.argmin(),
                x.double().var(-1, correction=0),
            ]
        return folded

    check(program, torch.randn(shape), device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", [torch.var, torch.std, lambda x: x.var(0, correction=0)])
def test_spreads_on_a_gpu_are_not_computed_in_double(call: Call, dtype: torch.dtype) -> None:
    """Torch's CUDA kernel adds up in float, its CPU kernel in double, and so do these."""
    found = []
    for x in (*fake((64, 128), dtype=dtype), torch.ones(64, 128, dtype=dtype)):
        (fusion,) = traced(call, x)
        found.append(any(v.dtype is DataType.Double for v in fusion.fusion.values()))
    assert found == [False, True]
