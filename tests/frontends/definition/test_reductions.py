"""fd.ops.sum and its kin: every way to call them, what they refuse, and numbers on each target."""

from __future__ import annotations

import functools
import inspect
import operator
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.frontends.definition.rebuilding import executed
from tests.support.batch import Batch, executable
from tests.support.inputs import laid_out, on_device
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.ir.printer import equal

INF, NAN = float("inf"), float("nan")
Define = Callable[..., Any]
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin,
    "any": torch.any, "all": torch.all,
}  # fmt: skip


def defined(define: Define, *inputs: torch.Tensor, static: bool = False) -> FusionDefinition:
    """`define(ops, *tensors)` gives the outputs."""
    with FusionDefinition() as fd:
        made = define(fd.ops, *(fd.from_pytorch(x, static_sizes=static) for x in inputs))
        for value in [made] if isinstance(made, Tensor) else made:
            fd.add_output(value)
    return fd


class Runs:
    """Many definitions, compiled as one program."""

    def __init__(self, device: torch.device, *, for_gpu: bool = False) -> None:
        self.device = device
        self._batch = Batch(device, H200 if for_gpu else None)
        self._planned: list[tuple[Any, list[torch.Tensor]]] = []

    def add(self, define: Define, *inputs: torch.Tensor) -> None:
        moved = on_device(inputs, self.device)
        compiled = CompiledFusion(defined(define, *moved).fusion)
        self._planned.append((executable(compiled, moved, self._batch, self.device), moved))

    def results(self) -> list[list[torch.Tensor]]:
        return [[t.cpu() for t in run(inputs)] for run, inputs in self._planned]


@pytest.fixture(params=["own", "H200"])
def runs(request: pytest.FixtureRequest, device: torch.device) -> Runs:
    """Scheduled for the device, and, on the host, as for a GPU."""
    if request.param == "H200" and device.type == "cuda":
        pytest.skip("a GPU's schedule is its own")
    return Runs(device, for_gpu=request.param == "H200")


# ---- calls


@pytest.mark.parametrize(
    ("call", "sizes", "dtype"),
    [
        (lambda o, x: o.sum(x), (), "Float"),
        (lambda o, x: o.sum(x, DataType.Double), (), "Double"),
        (lambda o, x: o.sum(x, dtype=DataType.Half), (), "Half"),
        (lambda o, x: o.sum(x, 1), (2, 4), "Float"),
        (lambda o, x: o.sum(x, -1, True), (2, 3, 1), "Float"),
        (lambda o, x: o.sum(x, dim=0, keepdim=False, dtype=DataType.Null), (3, 4), "Float"),
        (lambda o, x: o.sum(arg=x, dims=[0, 2], keepdim=True), (1, 3, 1), "Float"),
        (lambda o, x: o.sum(x, (2, 0), False, DataType.Double), (3,), "Double"),
        (lambda o, x: o.prod(x, [0]), (3, 4), "Float"),
        (lambda o, x: o.max(x, [-3], True, DataType.Null), (1, 3, 4), "Float"),
        (lambda o, x: o.min(x), (), "Float"),
        (lambda o, x: o.argmax(x, 1), (2, 4), "Int"),
        (lambda o, x: o.argmin(x, dim=-1, keepdim=True), (2, 3, 1), "Int"),
        (lambda o, x: o.argmax(x, [0, 2]), (3,), "Int"),
        (lambda o, x: o.argmin(x), (), "Int"),
        (lambda o, x: o.any(x, 1), (2, 4), "Bool"),
        (lambda o, x: o.all(x, [0, 1, 2], True), (1, 1, 1), "Bool"),
        (lambda o, x: o.var(x, [1]), (2, 4), "Float"),
        (lambda o, x: o.var(x, dims=[1], correction=0, keepdim=True), (2, 1, 4), "Float"),
        (lambda o, x: o.var_mean(x, [1], 2.5, True)[1], (2, 1, 4), "Float"),
        (lambda o, x: o.var_mean(arg=x, dims=[0, 1], keepdim=False)[0], (4,), "Float"),
        (lambda o, x: o.var_mean(x)[0], (), "Float"),
        (lambda o, x: o.welford(x, [1])[1], (2, 4), "Float"),
        (lambda o, x: o.welford(x, dim=-1)[2], (2, 3), "Int"),
    ],
)  # fmt: skip
def test_every_way_to_call(call: Define, sizes: tuple[int, ...], dtype: str) -> None:
    x = torch.zeros(2, 3, 4)
    fd = defined(call, x, static=True)
    (result,) = fd.fusion.outputs
    assert result.sizes == sizes
    assert result.dtype.name == dtype
    assert equal(executed(repr(fd)), fd.fusion)
    unknown = defined(call, x)
    assert equal(executed(repr(unknown)), unknown.fusion)


def test_they_can_be_listed_and_explained() -> None:
    fd = FusionDefinition()
    assert {*TORCH, "argmax", "argmin", "var", "var_mean"} <= set(dir(fd.ops))
    assert "`dtype`" in inspect.getdoc(fd.ops.sum)
    assert "`dtype`" not in inspect.getdoc(fd.ops.max)
    found = list(inspect.signature(fd.ops.sum).parameters)
    assert found == ["arg", "dims", "keepdim", "dtype", "dim", "keep_dim"]
    assert list(inspect.signature(fd.ops.var_mean).parameters)[:4] == [
        "arg", "dims", "correction", "keepdim",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda o, x: o.sum(x, [0, 0]), FuserValueError, "dimensions [0, 0] repeat"),
        (lambda o, x: o.sum(x, 3), FuserValueError, "dimension 3 is out of range"),
        (lambda o, x: o.sum(x, []), FuserValueError, "no dimensions are named"),
        (lambda o, x: o.sum(x, 0, dim=0), FuserTypeError, "pass either dims or dim"),
        (lambda o, x: o.sum(x, 1.5), FuserTypeError, "dims: expected a list of integers"),
        (lambda o, x: o.sum(x, True), FuserTypeError, "dim: expected an integer, got bool"),
        (lambda o, x: o.sum(x, 0, 2), FuserTypeError, "keepdim: expected True or False"),
        (lambda o, x: o.sum(x, dtype=torch.float32), FuserTypeError, "write DataType.Float"),
        (lambda o, x: o.sum(2.0), FuserTypeError, "expected a tensor"),
        (lambda o, x: o.max(x, [0], False, DataType.Half), FuserTypeError, "takes no dtype"),
        (lambda o, x: o.argmax(x, 0, False, DataType.Int32), FuserTypeError, "takes no dtype"),
        (lambda o, x: o.argmin(o.gt(x, 0)), FuserTypeError, "argmin does not take Bool"),
        (lambda o, x: o.var(x, [0], True), FuserTypeError, "correction: expected a number"),
        (lambda o, x: o.var_mean(o.gt(x, 0)), FuserTypeError, "expected a tensor of floats"),
        (lambda o, x: o.welford(o.gt(x, 0), [0]), FuserTypeError, "expected a tensor of floats"),
    ],
)  # fmt: skip
def test_errors_name_the_line(call: Define, kind: type[Exception], message: str) -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(kind, match=re.escape(message)) as caught:
        defined(call, x)
    assert f"at {__file__}:" in str(caught.value)


# ---- numbers


def close(found: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> None:
    """Within one rounding of the result and those of sums of that size of magnitudes."""
    assert found.shape == exact.shape
    assert torch.equal(found.isnan(), exact.isnan())
    infinite = exact.isinf()
    assert torch.equal(found[infinite].double(), exact[infinite])
    wide = torch.float64 if found.dtype is torch.float64 else torch.float32
    error = (found.double() - exact).abs().nan_to_num()
    allowed = torch.finfo(found.dtype).eps * exact.abs() + 16 * torch.finfo(wide).eps * scale
    assert bool((error <= allowed.nan_to_num())[exact.isfinite()].all())


FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """The same sizes: dense, transposed in memory, with gaps, off alignment, expanded."""
    rows, columns = x.shape
    wide = torch.zeros(rows, 2 * columns + 3, dtype=x.dtype)
    shifted = torch.zeros(rows * columns + 1, dtype=x.dtype)[1:].view(rows, columns)
    found = [x, x.t().contiguous().t(), wide[:, 3::2], shifted]
    for view in found[2:]:
        view.copy_(x)
    return [*found, x[:1].expand(rows, columns), x[:, :1].expand(rows, columns)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_any_layout(runs: Runs, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    given = []
    for sizes in ((33, 7), (3, 1000)):
        for x in layouts(torch.randn(sizes, generator=generator).to(dtype)):
            given.append(x)
            runs.add(
                lambda o, x: [o.sum(x, [1]), o.sum(x, [0], keepdim=True), o.sum(x), o.max(x, [1])],
                x,
            )
    for x, (rows, columns, both, largest) in zip(given, runs.results(), strict=True):
        exact, size = x.double(), x.double().abs()
        close(rows, exact.sum(1), size.sum(1))
        close(columns, exact.sum(0, True), size.sum(0, True))
        close(both, exact.sum(), size.sum())
        assert torch.equal(largest, x.amax(1))
        assert rows.dtype is columns.dtype is both.dtype is dtype


LENGTHS = (1, 2, 31, 32, 33, 127, 1000, 4096, 50257)


def test_rows_of_any_length_are_no_worse_than_in_eager(runs: Runs) -> None:
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(3, n, generator=generator) + 0.25 for n in LENGTHS]
    for x in given:
        runs.add(
            lambda o, x: [o.sum(x, 1), *o.var_mean(x, [1], 0), o.min(x, [1]), o.any(x, [1])], x
        )
    for x, (total, var, mean, least, any_) in zip(given, runs.results(), strict=True):
        exact, eps = x.double(), torch.finfo(torch.float32).eps
        for found, eager, truth, scale in (
            (total, x.sum(1), exact.sum(1), exact.abs().sum(1)),
            (mean, x.mean(1), exact.mean(1), exact.abs().mean(1)),
            (var, x.var(1, correction=0), exact.var(1, correction=0), exact.var(1, correction=0)),
        ):
            ours, theirs = ((t.double() - truth).abs().max() for t in (found, eager))
            assert ours <= torch.maximum(theirs, 2 * eps * scale.max()), x.shape
        assert torch.equal(least, x.amin(1))
        assert any_.all()


def test_welford_gives_mean_squared_deviations_and_count(runs: Runs) -> None:
    x = torch.randn(33, 70, generator=torch.Generator().manual_seed(7)) + 100
    runs.add(lambda o, x: [*o.welford(x, [1]), *o.welford(x)], x)
    ((mean, squares, count, *whole),) = runs.results()
    exact = x.double()
    assert count.tolist() == [70] * 33
    assert whole[2].item() == 33 * 70
    for found, truth in (
        (mean, exact.mean(1)), (squares, 70 * exact.var(1, correction=0)),
        (whole[0], exact.mean()), (whole[1], 33 * 70 * exact.var(correction=0)),
    ):  # fmt: skip
        assert torch.allclose(found.double(), truth, rtol=1e-5)


def test_nan_and_infinities(runs: Runs) -> None:
    given = []
    for length in (5, 33, 1000):
        x = torch.randn(6, length, generator=torch.Generator().manual_seed(length))
        x[0, length // 2], x[1, -1], x[2, 0], x[2, -1] = NAN, INF, INF, -INF
        x[3], x[4, 1], x[4, 2] = -INF, NAN, -INF
        for dtype in (torch.float32, torch.bfloat16):
            given.append(x.to(dtype))
            runs.add(
                lambda o, x: [
                    o.sum(x, [1]), o.max(x, [1]), o.min(x, [1]), o.max(x, [0]), o.any(x, [1]),
                    o.all(x, [1]), o.max(x),
                ],
                given[-1],
            )  # fmt: skip
    for x, found in zip(given, runs.results(), strict=True):
        exact = x.double()
        close(found[0], exact.sum(1), exact.abs().nan_to_num().sum(1))
        wanted = (x.amax(1), x.amin(1), x.amax(0), x.any(1), x.all(1), x.amax())
        for value, torchs in zip(found[1:], wanted, strict=True):
            assert torch.equal(value.isnan(), torchs.isnan())
            assert torch.equal(value.double().nan_to_num(), torchs.double().nan_to_num())


def test_positions_of_any_layout_length_and_dtype(runs: Runs) -> None:
    """Few different values, so that most extremes have equals, also across threads and blocks."""
    generator = torch.Generator().manual_seed(6)
    given = []
    for length in LENGTHS[:-1]:
        x = torch.randint(0, 9, (5, length), generator=generator).float()
        x[1, length // 2 :], x[2], x[3, -1] = NAN, -INF, INF
        dtypes = [torch.float32]
        if length in (33, 1000):
            dtypes += [torch.bfloat16, torch.float64]
            given.append(torch.randint(-2, 2, (3, length), generator=generator).to(torch.int8))
            given.append(torch.randint(-2, 2, (3, length), generator=generator))
        given += [x.to(dtype) for dtype in dtypes]
    given += layouts(torch.randint(0, 5, (33, 70), generator=generator).float())
    for x in given:
        runs.add(lambda o, x: [o.argmax(x, 1), o.argmin(x), o.argmin(x, 0, True), o.max(x, [1])], x)
    for x, found in zip(given, runs.results(), strict=True):
        wanted = (x.argmax(1), x.argmin(), x.argmin(0, True), x.amax(1))
        for value, torchs in zip(found, wanted, strict=True):
            assert value.dtype is torchs.dtype
            assert torch.equal(value.nan_to_num(), torchs.nan_to_num()), (x.shape, x.dtype)


def test_sets_of_bits(runs: Runs) -> None:
    """One by one: what every schedule folds in another order has the same bits."""
    generator = torch.Generator().manual_seed(3)
    given = []
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64):
        for sizes in ((5, 4000), (700, 3)):
            x = torch.randint(-(2**62), 2**62, sizes, generator=generator).to(dtype)
            given.append(x)
            runs.add(lambda o, x: [o.xor_sum(x, [0]), o.xor_sum(x, [1]), o.xor_sum(x)], x)
    for x, found in zip(given, runs.results(), strict=True):
        columns = functools.reduce(operator.xor, x.unbind(0))
        wanted = (columns, functools.reduce(operator.xor, x.unbind(1)), _folded(columns))
        for value, one_by_one in zip(found, wanted, strict=True):
            assert value.dtype is x.dtype
            assert torch.equal(value, one_by_one), (x.shape, x.dtype)


def _folded(x: torch.Tensor) -> torch.Tensor:
    return functools.reduce(operator.xor, x.unbind(0))


def test_integers_bools_and_complex_numbers(runs: Runs) -> None:
    generator = torch.Generator().manual_seed(2)
    given = []
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.complex64):
        for sizes in ((5, 40), (700, 3)):
            x = torch.randint(0, 4, sizes, generator=generator).to(dtype)
            ops = [op for op in TORCH if not (x.is_complex() and op in ("max", "min"))]
            given.append((x, ops))
            runs.add(lambda o, x, ops=ops: [getattr(o, op)(x, [1]) for op in ops], x)
    for (x, ops), found in zip(given, runs.results(), strict=True):
        for op, value in zip(ops, found, strict=True):
            wanted = TORCH[op](x, 1)
            assert value.dtype is (torch.bool if op in ("any", "all") else wanted.dtype)
            if op == "prod" and x.is_complex():
                close(value.real, wanted.real.double(), wanted.abs().double())
                close(value.imag, wanted.imag.double(), wanted.abs().double())
            else:
                assert torch.equal(value, wanted.to(value.dtype)), op


def test_dtypes_are_converted_to_first(runs: Runs) -> None:
    x = torch.tensor([[0.75, 1.5, 2051.0, 2051.0, 2051.0]])
    y = torch.tensor([[2**24, 1, 1]], dtype=torch.int32)
    runs.add(
        lambda o, x, y: [
            o.sum(x, [1], dtype=DataType.Int),
            o.sum(x, [1], dtype=DataType.Half),
            o.prod(x, [1], dtype=DataType.Double),
            o.sum(y, dtype=DataType.Double),
            o.sum(y, [1], dtype=DataType.Int32),
        ],
        x, y,
    )  # fmt: skip
    ((whole, half, product, exact, narrow),) = runs.results()
    assert whole.item() == 1 + 3 * 2051
    assert half.dtype is torch.float16
    assert half.item() == torch.sum(x, dtype=torch.float16).item()
    assert product.item() == 0.75 * 1.5 * 2051.0**3
    assert exact.item() == 2**24 + 2
    assert narrow.dtype is torch.int32
    assert narrow.item() == 2**24 + 2


def test_no_elements_and_no_dimensions(runs: Runs) -> None:
    empty, scalar = torch.zeros(3, 0), torch.tensor(2.5)
    runs.add(
        lambda o, x: [o.sum(x, [1]), o.prod(x), o.any(x, [1]), o.all(x, [1], True), o.sum(x, [0])],
        empty,
    )
    runs.add(lambda o, x: [*o.var_mean(x, [1]), o.add(o.sum(x, [1], True), 1.0)], empty)
    runs.add(lambda o, x: [o.sum(x), o.max(x, [-1]), *o.var_mean(x, correction=0)], scalar)
    first, second, third = runs.results()
    assert [t.tolist() for t in first] == [[0, 0, 0], 1, [False] * 3, [[True]] * 3, []]
    assert second[0].isnan().all()
    assert second[1].isnan().all()
    assert second[2].tolist() == [[1], [1], [1]]
    assert [t.item() for t in third] == [2.5, 2.5, 0, 2.5]


def test_what_is_shown_often_counts_often(runs: Runs) -> None:
    """Expanded dimensions, of inputs and in the definition, whether they are folded or kept."""
    x, row = torch.arange(3.0)[:, None].expand(3, 50), torch.arange(40.0)
    runs.add(lambda o, x: [o.sum(x, [1]), o.sum(x), o.prod(x, [0]), o.max(x, [1], True)], x)
    runs.add(
        lambda o, row: [
            o.sum(o.broadcast_in_dim(row, [300, 40], [1]), [0]),
            o.sum(o.broadcast_in_dim(row, [300, 40], [1])),
            o.var(o.broadcast_in_dim(row, [300, 40], [1]), [1]),
        ],
        row,
    )
    first, second = runs.results()
    assert first[0].tolist() == [0, 50, 100]
    assert first[1].item() == 150
    assert first[2].tolist() == [0] * 50
    assert first[3].tolist() == [[0], [1], [2]]
    assert torch.equal(second[0], 300 * row)
    assert second[1].item() == 300 * 780
    assert torch.allclose(second[2], row.var().expand(300))


def test_reductions_of_reductions_and_what_reads_them(runs: Runs) -> None:
    x = torch.randint(-8, 8, (6, 5, 33), generator=torch.Generator().manual_seed(3)).float()

    def define(o: Any, x: Tensor) -> Sequence[Tensor]:
        inner = o.sum(x, [2])
        columns = o.max(x, [0, 1], keepdim=True)
        return [
            inner,
            o.max(inner, [1]),
            o.permute(o.mul(inner, 2.0), [1, 0]),
            o.broadcast(inner, [True, False, False]),
            o.sub(x, columns),
            o.add(o.sum(o.sub(x, columns), [2], True), o.min(x)),
            o.slice(inner, [1, 0], [6, 5], [2, 1]),
            o.sum(o.segment_set(o.mul(x, x)), [1]),
            o.segment_set(o.sum(x, [1])),
            o.cat([inner, inner], 1),
        ]

    runs.add(define, x)
    (found,) = runs.results()
    inner, columns = x.sum(2), x.amax((0, 1), True)
    wanted = [
        inner, inner.amax(1), 2 * inner.t(), inner[None], x - columns,
        (x - columns).sum(2, True) + x.min(), inner[1::2], (x * x).sum(1), x.sum(1),
        torch.cat([inner, inner], 1),
    ]  # fmt: skip
    for k, (value, exact) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(value, exact), k


def test_updates_beside_reductions(runs: Runs) -> None:
    """Inputs are written into when everything that reads them has."""
    generator = torch.Generator().manual_seed(4)
    for seed in range(6):
        x = torch.randint(-8, 8, (5, 40), generator=generator).float()
        s = torch.randint(-8, 8, (5, 1), generator=generator).float()
        total, largest = x.sum(1, True), x.amax(0, True)

        def define(fd: FusionDefinition, x: Tensor, s: Tensor, seed: int = seed) -> None:
            o = fd.ops
            total, largest = o.sum(x, [1], True), o.max(x, [0], True)
            new = (o.sub(x, total), o.sub(x, largest), o.add(x, s))[seed % 3]
            fd.add_output(new, x)
            fd.add_output(total, s) if seed < 3 else fd.add_output(total)
            fd.add_output(o.mul(o.add(x, s), largest))

        with FusionDefinition() as fd:
            define(fd, fd.from_pytorch(x), fd.from_pytorch(s))
        wanted = (x - total, x - largest, x + s)[seed % 3].clone()
        product = (x + s) * largest
        given = [x.to(runs.device, copy=True), s.to(runs.device, copy=True)]
        compiled = executable(CompiledFusion(fd.fusion), given, runs._batch, runs.device)
        found = compiled(given)
        assert torch.equal(given[0].cpu(), wanted), seed
        assert torch.equal(found[-1].cpu(), product), seed
        assert torch.equal((given[1] if seed < 3 else found[0]).cpu(), total), seed


def test_one_definition_runs_on_all_sizes() -> None:
    define: Define = lambda o, x: [o.sum(x, [1]), *o.var_mean(x, [0], 1, True)]  # noqa: E731
    fd = defined(define, torch.zeros(2, 2))
    rng = random.Random(0)
    for sizes in ((3, 5), (4, 300), (7, 1)):
        x, _ = laid_out(rng, torch.randn(sizes, generator=torch.Generator().manual_seed(5)))
        x = x.contiguous()
        total, var, mean = fd.execute([x])
        assert torch.allclose(total, x.sum(1), atol=1e-5)
        wanted = torch.var_mean(x, 0, keepdim=True)
        assert torch.allclose(var, wanted[0], rtol=1e-4)
        assert torch.allclose(mean, wanted[1], atol=1e-6)


def test_the_largest_of_nothing_is_refused_when_sizes_are_known() -> None:
    fd = defined(lambda o, x: o.max(x, [1]), torch.zeros(2, 2))
    with pytest.raises(FuserValueError, match=rf"no max of nothing .*{re.escape(__file__)}"):
        fd.execute([torch.zeros(2, 0)])
