"""fd.ops.gather and its kin: how to call them, what they refuse, and numbers on each target.

Indexed reads copy, so that results have torch's bits.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontends.definition.rebuilding import executed
from tests.support.batch import Batch, executable
from tests.support.inputs import laid_out, on_device, random_tensor
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserIndexError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.ir.printer import equal

Define = Callable[..., Any]
DTYPES = tuple(d for d in DataType if d is not DataType.Null)
CPU = torch.device("cpu")


def defined(define: Define, *inputs: torch.Tensor) -> FusionDefinition:
    """`define(ops, *tensors)` gives the outputs."""
    with FusionDefinition() as fd:
        made = define(fd.ops, *map(fd.from_pytorch, inputs))
        for value in [made] if isinstance(made, Tensor) else made:
            fd.add_output(value)
    return fd


class Runs:
    """Definitions, compiled as one program, with the expected results."""

    def __init__(self, device: torch.device, *, for_gpu: bool) -> None:
        self.device = device
        self._batch = Batch(device, H200 if for_gpu else None)
        self._planned: list[tuple[Any, list[torch.Tensor], list[torch.Tensor]]] = []

    def add(self, define: Define, expected: list[torch.Tensor], *inputs: torch.Tensor) -> None:
        moved = on_device(inputs, self.device)
        compiled = CompiledFusion(defined(define, *moved).fusion)
        run = executable(compiled, moved, self._batch, self.device)
        self._planned.append((run, moved, expected))

    def check(self) -> None:
        for run, inputs, expected in self._planned:
            for found, wanted in zip(run(inputs), expected, strict=True):
                assert found.dtype == wanted.dtype
                assert found.shape == wanted.shape
                assert torch.equal(bits(found), bits(wanted)), run.plan.fusion


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().contiguous().reshape(-1).view(torch.uint8)


@pytest.fixture(params=["own", "H200"])
def runs(request: pytest.FixtureRequest, device: torch.device) -> Runs:
    """Scheduled for the device, and, on the host, as for a GPU."""
    if request.param == "H200" and device.type == "cuda":
        pytest.skip("a GPU's schedule is its own")
    return Runs(device, for_gpu=request.param == "H200")


# ---- calls


@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        (lambda o, x, i: o.index_select(x, o.reshape(i, [12]), 1), (5, 12, 6)),
        (lambda o, x, i: o.index_select(arg=x, index=o.reshape(i, [12]), dim=-1), (5, 4, 12)),
        (lambda o, x, i: o.take_along_axis(x, o.broadcast(i, [False, False, True]), 2), None),
        (lambda o, x, i: o.gather(arg=x, index=o.reshape(i, [3, 2, 2]), dim=-3), (3, 2, 2)),
        (lambda o, x, i: o.embedding_fwd(i, o.reshape(x, [20, 6])), (3, 4, 6)),
        (
            lambda o, x, i: o.embedding_fwd(i, o.reshape(x, [20, 6]), 2, None, 2.0, False, False),
            (3, 4, 6),
        ),
    ],
)
def test_every_way_to_call(call: Define, sizes: tuple[int, ...] | None) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 4, 6], True)
        i = fd.define_tensor([3, 4], True, DataType.Int)
        if sizes is None:
            with pytest.raises(FuserValueError, match="do not broadcast"):
                call(fd.ops, x, i)
            return
        y = call(fd.ops, x, i)
        fd.add_output(y)
    assert y.val.sizes == sizes
    assert equal(executed(repr(fd)), fd.fusion)


def test_they_can_be_listed_and_explained() -> None:
    fd = FusionDefinition()
    assert {"index_select", "take_along_axis", "gather", "embedding_fwd"} <= set(dir(fd.ops))
    assert list(inspect.signature(fd.ops.gather).parameters) == ["arg", "index", "dim"]
    assert list(inspect.signature(fd.ops.embedding_fwd).parameters) == [
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse",
    ]  # fmt: skip
    assert "broadcast to each other" in (inspect.getdoc(fd.ops.take_along_axis) or "")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda o, x: o.index_select(x, x, 0), FuserTypeError, "expected an index of dtype Int or"),
        (lambda o, x: o.gather(x, 3, 0), FuserTypeError, "gather: expected a tensor"),
        (lambda o, x: o.gather(x, x, 1.0), FuserTypeError, "dim: expected an integer"),
        (lambda o, x: o.embedding_fwd(x, x, max_norm=1.0), FuserTypeError, "an index of dtype Int"),
    ],
)
def test_errors_name_the_line(call: Define, error: type[Exception], message: str) -> None:
    with FusionDefinition() as fd, pytest.raises(error, match=message) as caught:
        call(fd.ops, fd.define_tensor([5, 5], True))
    assert __file__ in str(caught.value)


# ---- numbers


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_every_dtype_is_copied_bit_for_bit(runs: Runs, index_dtype: torch.dtype) -> None:
    rng = random.Random(0)
    rows = torch.tensor([3, 0, 6, 6, 1]).to(index_dtype)
    along = torch.tensor([[rng.randrange(7) for _ in range(16)] for _ in range(3)]).to(index_dtype)
    for dtype in DTYPES:
        x = random_tensor(rng, [7, 16], dtype)
        expected = x.view(torch.uint8).view(7, 16, -1)
        taken = expected[along.long(), torch.arange(16)].flatten().view(dtype.torch).view(3, 16)
        runs.add(
            lambda o, x, i, j: [o.index_select(x, i, 0), o.gather(x, j, 0)],
            [expected[rows.long()].flatten().view(dtype.torch).view(5, 16), taken],
            x, rows, along,
        )  # fmt: skip
    runs.check()


def test_any_layout_of_input_and_index(runs: Runs) -> None:
    rng = random.Random(1)
    for _ in range(30):
        sizes = [rng.choice((1, 2, 3, 5, 8, 16)) for _ in range(rng.randint(1, 4))]
        dim = rng.randrange(len(sizes))
        x, _ = laid_out(rng, random_tensor(rng, sizes, DataType.Float))
        chosen = [1 if rng.random() < 0.2 else n for n in sizes]
        chosen[dim] = rng.choice((0, 1, 4, 8, 9))
        i, _ = laid_out(rng, torch.randint(sizes[dim], chosen))
        flat = i.flatten()
        runs.add(
            lambda o, x, i, flat, dim=dim: [
                o.take_along_axis(x, i, dim), o.gather(x, i, dim), o.index_select(x, flat, dim),
            ],
            [torch.take_along_dim(x, i, dim), torch.gather(x, dim, i), x.index_select(dim, flat)],
            x, i, flat,
        )  # fmt: skip
    runs.check()


@pytest.mark.parametrize("columns", [1, 3, 8, 64, 100])
def test_embeddings_of_rows_of_any_length(runs: Runs, columns: int) -> None:
    for dtype in (torch.bfloat16, torch.float64):
        w = torch.randn(50, columns).to(dtype)
        for sizes in ([], [1], [33], [2, 3, 5], [0, 4]):
            i = torch.randint(50, sizes)
            runs.add(
                lambda o, i, w: o.embedding_fwd(i, w), [torch.nn.functional.embedding(i, w)], i, w
            )
    runs.check()


def test_indices_and_inputs_that_the_kernel_computes(runs: Runs) -> None:
    x, i = torch.randn(20, 16), torch.randint(100, (9,))
    y = (x * 2).t().reshape(16, 20)

    def define(o: Any, x: Tensor, i: Tensor) -> list[Tensor]:
        rows = o.remainder(o.add(i, 3), 16)
        wide = o.permute(o.mul(x, 2.0), [1, 0])
        padded = o.pad(wide, [1, 1])
        joined = o.cat([wide, o.slice(wide, [0, 0], [4, 20])], 0)
        again = o.index_select(o.iota(16), rows, 0)
        return [
            o.index_select(wide, rows, 0),
            o.index_select(padded, rows, 1),
            o.index_select(joined, o.add(rows, 2), 0),
            o.index_select(wide, o.index_select(again, o.remainder(rows, 9), 0), 0),
        ]

    rows = (i + 3) % 16
    expected = [
        y[rows],
        torch.nn.functional.pad(y, [1, 1])[:, rows],
        torch.cat([y, y[:4]])[rows + 2],
        y[rows[rows % 9]],
    ]
    runs.add(define, expected, x, i)
    runs.check()


def test_what_is_read_feeds_reductions_and_reductions_are_read(runs: Runs) -> None:
    w, i = torch.randn(30, 24).round(decimals=1), torch.randint(30, (40,))
    target = torch.randint(24, (40,))
    rows = w[i]

    def define(o: Any, w: Tensor, i: Tensor, target: Tensor) -> list[Tensor]:
        rows = o.embedding_fwd(i, w)
        largest = o.max(rows, [1])
        picked = o.squeeze(o.gather(rows, o.broadcast(target, [False, True]), 1), [1])
        return [
            o.sub(largest, picked),
            o.sub(rows, o.broadcast(largest, [False, True])),
            o.index_select(o.max(w, [1]), i, 0),
            o.max(o.gather(rows, o.broadcast(target, [False, True]), 1), [0, 1]),
        ]

    picked = rows.gather(1, target[:, None])
    largest = rows.amax(1)
    expected = [largest - picked[:, 0], rows - largest[:, None], w.amax(1)[i], picked.amax()]
    runs.add(define, expected, w, i, target)
    runs.check()


def test_an_index_that_a_row_computes(runs: Runs) -> None:
    """A stage leaves the index, the next ones read another tensor there, at every column."""
    x = torch.randint(-3, 9, (13, 40))
    w = torch.randn(80, 40)

    def define(o: Any, x: Tensor, w: Tensor) -> list[Tensor]:
        row = o.add(o.max(x, [1]), 5)
        found = o.embedding_fwd(row, w)
        return [found, o.max(o.add(found, o.cast(x, DataType.Float)), [1])]

    rows = w[x.amax(1) + 5]
    runs.add(define, [rows, (rows + x).amax(1)], x, w)
    columns, table = torch.randint(0, 9, (40, 64)), torch.randn(80, 64)
    runs.add(
        lambda o, x, w: o.gather(w, o.max(x, [0], keepdim=True), 0),
        [table.gather(0, columns.amax(0, keepdim=True))],
        columns, table,
    )  # fmt: skip
    runs.check()


# ---- indices that do not exist


@pytest.mark.parametrize("wrong", [-1, 7, 2**40, -(2**63)])
@pytest.mark.parametrize("debug", [False, True])
def test_an_index_out_of_bounds_is_an_error_on_the_host(wrong: int, debug: bool) -> None:
    x, i = torch.randn(7, 5), torch.tensor([0, 6, 2, 1])
    with options(host_debug=debug):
        fd = defined(lambda o, x, i: o.index_select(x, i, 0), x, i)
        assert torch.equal(fd.execute([x, i])[0], x[i])
        message = rf"index_select\(T0, T1, 0\): index {wrong} is out of bounds for size 7"
        with pytest.raises(FuserIndexError, match=message) as caught:
            fd.execute([x, torch.tensor([0, 6, wrong, 1])])
        assert f"(in index_select at {__file__}:" in str(caught.value)
        assert torch.equal(fd.execute([x, i])[0], x[i])


def test_an_index_of_an_expanded_or_constant_tensor_is_checked_too() -> None:
    i = torch.tensor([0, 3, 1])
    for define in (
        lambda o, x, i: o.index_select(o.expand(x, [3]), i, 0),
        lambda o, x, i: o.index_select(o.full([3], 1.0, DataType.Float), i, 0),
        lambda o, x, i: o.index_select(o.iota(3), i, 0),
        lambda o, x, i: o.index_select(x, i, 0),
    ):
        with FusionDefinition() as fd:
            x, index = fd.define_tensor([1], True), fd.define_tensor([3], True, DataType.Int)
            fd.add_output(define(fd.ops, x, index))
        with pytest.raises(FuserIndexError):
            fd.execute([torch.zeros(1), i])


def test_indices_that_nobody_needs_are_not_errors() -> None:
    """Elements in front of a slice, and lanes behind the end of a row."""
    x = torch.randn(9)
    fd = defined(
        lambda o, x, i: o.slice(o.index_select(x, i, 0), [1], [4]), x, torch.zeros(4).long()
    )
    (found,) = fd.execute([x, torch.tensor([99, 3, 8, 0])])
    assert torch.equal(found, x[torch.tensor([3, 8, 0])])
    with FusionDefinition() as fd:
        table = fd.define_tensor([4], True)
        index = fd.define_tensor([3, 33], True, DataType.Int)
        # Where nothing is loaded the index would be -1.
        read = fd.ops.index_select(table, fd.ops.reshape(fd.ops.sub(index, 1), [99]), 0)
        fd.add_output(fd.ops.sum(fd.ops.reshape(read, [3, 33]), [1]))
    given = torch.randint(1, 5, (3, 33))
    data = torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert torch.equal(fd.execute([data, given])[0], data[given - 1].sum(1))


def test_an_error_leaves_what_would_be_updated_as_it_was() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([1000], True), fd.define_tensor([1000], True)
        index = fd.define_tensor([1000], True, DataType.Int)
        fd.add_output(fd.ops.add(x, fd.ops.index_select(y, index, 0)), alias_input=x)
    x, y = torch.zeros(1000), torch.ones(1000)
    good, bad = torch.arange(1000), torch.arange(1000)
    bad[777] = 1000
    with pytest.raises(FuserIndexError):
        fd.execute([x, y, bad])
    assert torch.equal(x, torch.zeros(1000))
    fd.execute([x, y, good])
    assert torch.equal(x, torch.ones(1000))
