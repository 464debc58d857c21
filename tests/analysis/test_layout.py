"""Layouts: what is a view, as torch has it; which order of dimensions results take in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from thunder_fuser.analysis.aliases import View, view_of
from thunder_fuser.analysis.layout import address_in, declared_layout, dense_layout, loop_order
from thunder_fuser.analysis.torch_strides import memory_orders, torch_memory
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.passes import run

Float, BFloat16 = DataType.Float, DataType.BFloat16
SIZES = (1, 2, 3, 4, 6)
CHAINS = 4000


def found_view(b: FusionBuilder, y: TensorView, layouts: Sequence[Layout]) -> View | None:
    fusion = b.build()
    held = dict(zip(fusion.tensor_inputs, layouts, strict=True))
    return view_of(y, fusion, held, held)


def layout_of(x: torch.Tensor) -> Layout:
    """As a call binds it."""
    return Layout(tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)))


# ---- chains of views, beside torch's


class Chain:
    """The same views of one tensor in a builder and in torch; elements are their own addresses."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        sizes = [self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 4))]
        self.memory = torch.arange(20_000)
        self.x = self._input(sizes)
        self.b = FusionBuilder()
        self.y = self.b.tensor(sizes, DataType.Int, contiguity=[False] * len(sizes))
        self.base = self.x

    def _input(self, sizes: Sequence[int]) -> torch.Tensor:
        """Dense, permuted, with gaps, with repeated elements, and off the start of its storage."""
        order = self.rng.sample(range(len(sizes)), len(sizes))
        strides, step = [0] * len(sizes), 1
        for k in reversed(order):
            strides[k] = step
            step *= sizes[k] + self.rng.choice((0, 0, 0, 2))
            if self.rng.random() < 0.1:
                strides[k] = 0
        return self.memory.as_strided(sizes, strides, self.rng.choice((0, 5)))

    def grow(self) -> None:
        self.rng.choice((self.permute, self.slice, self.reshape, self.widen, self.squeeze))()

    def permute(self) -> None:
        order = self.rng.sample(range(self.x.dim()), self.x.dim())
        self.x, self.y = self.x.permute(order), self.b.permute(self.y, order)

    def slice(self) -> None:
        cuts = []
        for size in self.x.shape:
            start = self.rng.randint(0, size - 1) if self.rng.random() < 0.4 else 0
            cuts.append((start, self.rng.randint(start + 1, size), self.rng.choice((1, 1, 2, 3))))
        self.x = self.x[tuple(slice(*cut) for cut in cuts)]
        self.y = self.b.slice(self.y, *map(list, zip(*cuts, strict=True)))

    def reshape(self) -> None:
        sizes = list(self.x.shape)
        for _ in range(self.rng.randint(1, 2)):
            k = self.rng.randrange(len(sizes))
            if k + 1 < len(sizes) and self.rng.random() < 0.6:
                sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
            else:
                factor = self.rng.choice([f for f in (1, 2, 3) if sizes[k] % f == 0])
                sizes[k : k + 1] = self.rng.sample([factor, sizes[k] // factor], 2)
        self.x, self.y = self.x.reshape(sizes), self.b.reshape(self.y, sizes)

    def widen(self) -> None:
        k = self.rng.randint(0, self.x.dim())
        flags = [False] * self.x.dim()
        flags.insert(k, True)
        sizes = list(self.x.shape)
        sizes.insert(k, self.rng.choice((1, 2, 3)))
        if len(sizes) > 6 or self.x.numel() * sizes[k] > 5000:
            return
        self.x = self.x.unsqueeze(k).expand(sizes)
        self.y = self.b.expand(self.b.broadcast(self.y, flags), sizes)

    def squeeze(self) -> None:
        dims = [
            k
            for k, dim in enumerate(self.y.domain.logical)
            if dim.is_broadcast and dim.expanded is None
        ]
        if dims and self.x.dim() > 1:
            k = self.rng.choice(dims)
            self.x, self.y = self.x.squeeze(k), self.b.squeeze(self.y, [k])


def grown(seed: int) -> Chain:
    chain = Chain(seed)
    for _ in range(chain.rng.randint(1, 5)):
        if chain.x.dim():
            chain.grow()
    return chain


def shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@pytest.mark.parametrize("first", range(0, CHAINS, CHAINS // 4))
def test_what_torch_keeps_as_a_view_is_one_and_every_view_shows_the_right_elements(
    first: int,
) -> None:
    views = ours_only = 0
    for seed in range(first, first + CHAINS // 4):
        chain = grown(seed)
        view = found_view(chain.b, chain.y, [layout_of(chain.base)])
        if shares_memory(chain.x, chain.memory):
            assert view is not None, f"seed {seed}: torch has {chain.x.stride()}\n{chain.b.build()}"
            views += 1
        if view is not None:
            ours_only += not shares_memory(chain.x, chain.memory)
            assert view.sizes == tuple(chain.x.shape)
            start = chain.base.storage_offset() + view.offset
            shown = chain.memory.as_strided(view.sizes, view.strides, start)
            assert torch.equal(shown, chain.x), f"seed {seed}: {view}\n{chain.b.build()}"
    # A chain is judged as a whole, so that a copy which later views undo is none.
    assert views > CHAINS // 8
    assert ours_only > 0


def test_a_copy_that_later_views_undo_is_a_view() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], Float)
    flat = b.reshape(b.permute(x, [1, 0]), [24])
    assert found_view(b, flat, [Layout((6, 1))]) is None
    back = b.permute(b.reshape(flat, [6, 4]), [1, 0])
    assert found_view(b, back, [Layout((6, 1))]) == View(x, (4, 6), (6, 1), 0)


def test_views_of_models_are_one_as_strided() -> None:
    b = FusionBuilder()
    qkv = b.tensor([2, 16, 4 * 6 * 8], BFloat16)
    heads = b.permute(b.reshape(qkv, [2, 16, 4, 6, 8]), [0, 2, 3, 1, 4])
    key = b.slice(heads, [0, 0, 4, 0, 0], [2, 4, 5, 16, 8])
    view = found_view(b, b.squeeze(key, [2]), [Layout((3072, 192, 1))])
    assert view == View(qkv, (2, 4, 16, 8), (3072, 48, 192, 1), 32)
    wide = b.expand(key, [2, 4, 4, 16, 8])
    assert found_view(b, wide, [Layout((3072, 192, 1))]) == View(
        qkv, (2, 4, 4, 16, 8), (3072, 48, 0, 192, 1), 32
    )
    # Heads and their repetitions cannot be one dimension.
    assert found_view(b, b.reshape(wide, [2, 16, 16, 8]), [Layout((3072, 192, 1))]) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.set(x),
        lambda b, x: b.permute(b.set(x), [1, 0]),
        lambda b, x: b.pad(x, [1, 0]),
        lambda b, x: b.cat([x, x]),
        lambda b, x: b.pointwise("neg", x),
        lambda b, x: b.slice(b.pad(x, [1, 0]), [0, 1], [4, 7]),
        lambda b, x: b.slice(x, [0, 3], [4, 3]),
    ],
    ids=["set", "set, permute", "pad", "cat", "neg", "slice of pad", "empty"],
)
def test_what_is_no_view(make: Callable[[FusionBuilder, TensorView], TensorView]) -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], Float)
    assert found_view(b, make(b, x), [Layout((6, 1))]) is None


def test_a_number_on_the_cpu_lends_no_memory() -> None:
    b = FusionBuilder()
    x = b.tensor([], Float, is_cpu=True)
    assert found_view(b, b.broadcast(x, [True]), [Layout(())]) is None


@pytest.mark.parametrize(
    ("order", "strides", "is_view"),
    [
        ([1, 0], (6, 1), True),
        ([0, 1], (6, 1), False),
        ([0, 1], (1, 4), True),
        ([1, 0], (1, 4), False),
        ([1, 0], (8, 1), False),  # gaps
        ([1, 0], (0, 1), False),  # repeated rows
    ],
)
def test_a_stride_order_is_a_view_iff_memory_is_dense_in_it(
    order: list[int], strides: tuple[int, int], is_view: bool
) -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], Float, contiguity=[False, False])
    view = found_view(b, b.stride_order(x, order), [Layout(strides)])
    assert (view is not None) == is_view


def test_dimensions_of_size_1_have_the_stride_of_dense_tensors() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], Float)
    wide = b.broadcast(x, [False, True, False, True])
    view = found_view(b, wide, [Layout((6, 1))])
    assert view is not None
    assert view.strides == torch.empty(4, 1, 6, 1).stride()


def test_the_nearest_base_lends_its_memory() -> None:
    b = FusionBuilder()
    x = b.tensor([8], Float)
    y = b.slice(x, [2], [8])
    z = b.slice(y, [1], [5])
    fusion = b.build()
    layouts = {x: Layout((1,)), y: Layout((1,))}
    assert view_of(z, fusion, {x}, layouts) == View(x, (4,), (1,), 3)
    assert view_of(z, fusion, {x, y}, layouts) == View(y, (4,), (1,), 1)


# ---- addresses


def test_addresses_are_torchs() -> None:
    x = torch.arange(2000)[7:].as_strided((3, 4, 5), (1, 100, 7))
    b = FusionBuilder()
    view = b.tensor([3, 4, 5], DataType.Int, contiguity=[False] * 3)
    context = Context()
    index = [context.var(f"d{k}", 0, n - 1) for k, n in enumerate(view.sizes)]
    address = address_in(view, index, layout_of(x), context)
    for point in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        at = address.evaluate({f"d{k}": i for k, i in enumerate(point)})
        assert x[tuple(point)].item() == 7 + at


# ---- order of dimensions


def orders_of(fusion: Fusion, *tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """The strides that the outputs are given."""
    held = dict(zip(fusion.tensor_inputs, map(layout_of, tensors), strict=True))
    orders = memory_orders(torch_memory(fusion, held))
    return [dense_layout(t, orders[t]).strides for t in fusion.outputs]


def permuted(rng: random.Random, sizes: Sequence[int]) -> torch.Tensor:
    order = rng.sample(range(len(sizes)), len(sizes))
    memory = torch.zeros([sizes[k] for k in order])
    return memory.permute([order.index(k) for k in range(len(sizes))])


@pytest.mark.parametrize("seed", range(200))
def test_pointwise_results_lie_as_in_torch(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.sample((2, 3, 4, 5, 7), rng.randint(2, 4))
    x = permuted(rng, sizes)
    row = torch.zeros(sizes[-1])
    channel = torch.zeros(sizes[1:2] + [1] * (len(sizes) - 2))
    y = rng.choice((x, row, channel, permuted(rng, sizes)))
    b = FusionBuilder()
    first, second = (
        b.tensor(t.shape, Float, contiguity=[None if n == 1 else False for n in t.shape])
        for t in (x, y)
    )
    for operands in ((first, second), (second, first)):
        b.output(b.pointwise("add", *operands))  # type: ignore[arg-type]
    b.output(b.pointwise("relu", first))  # type: ignore[arg-type]
    expected = [(x + y).stride(), (y + x).stride(), torch.relu(x).stride()]
    assert orders_of(b.build(), x, y) == expected


@pytest.mark.parametrize("seed", range(0, 600, 100))
def test_results_of_views_lie_as_in_torch(seed: int) -> None:
    """Also when the views have become one, which then stands for several of torch's."""
    looked_at = 0
    for k in range(seed, seed + 100):
        rng = random.Random(k)
        x = permuted(rng, [rng.choice((2, 3, 4, 6)) for _ in range(rng.randint(2, 4))])
        b = FusionBuilder()
        view, y = b.tensor(x.shape, Float, contiguity=[False] * x.dim()), x
        given = view
        for _ in range(rng.randint(1, 4)):
            view, y = rng.choice((_turn, _merge, _divide, _cut))(rng, b, view, y)
        # Behind a copy several orders are torch's, depending on where it was made.
        if view is given or y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
            continue
        looked_at += 1
        b.output(b.pointwise("relu", view))  # type: ignore[arg-type]
        assert orders_of(run(b.build()), x) == [torch.relu(y).stride()], f"seed {k}"
    assert looked_at > 50


Viewed = tuple[TensorView, torch.Tensor]


def _turn(rng: random.Random, b: FusionBuilder, x: TensorView, y: torch.Tensor) -> Viewed:
    order = rng.sample(range(x.rank), x.rank)
    return b.permute(x, order), y.permute(order)


def _merge(rng: random.Random, b: FusionBuilder, x: TensorView, y: torch.Tensor) -> Viewed:
    k = rng.randrange(x.rank)
    sizes = [*x.sizes[:k], x.sizes[k] * x.sizes[k + 1], *x.sizes[k + 2 :]] if k + 1 < x.rank else []
    return (b.reshape(x, sizes), y.reshape(sizes)) if sizes else (x, y)


def _divide(rng: random.Random, b: FusionBuilder, x: TensorView, y: torch.Tensor) -> Viewed:
    k = rng.randrange(x.rank)
    if x.sizes[k] % 2 or x.sizes[k] == 2:
        return x, y
    sizes = [*x.sizes[:k], 2, x.sizes[k] // 2, *x.sizes[k + 1 :]]
    return b.reshape(x, sizes), y.reshape(sizes)


def _cut(rng: random.Random, b: FusionBuilder, x: TensorView, y: torch.Tensor) -> Viewed:
    k = rng.randrange(x.rank)
    if x.sizes[k] < 3:
        return x, y
    starts = [int(i == k) for i in range(x.rank)]
    return b.slice(x, starts, list(x.sizes)), y.narrow(k, 1, x.sizes[k] - 1)


def test_channels_last_goes_through_a_network() -> None:
    x = torch.zeros(2, 8, 4, 4).to(memory_format=torch.channels_last)
    b = FusionBuilder()
    view = b.tensor(x.shape, Float, contiguity=[False] * 4)
    bias = b.broadcast(b.tensor([8], Float), [False, True, True])
    y = b.pointwise("relu", b.pointwise("add", view, bias))
    b.output(b.cast(y, BFloat16))  # type: ignore[arg-type]
    b.output(b.pad(y, [1, 1]))  # type: ignore[arg-type]
    b.output(b.permute(y, [0, 2, 3, 1]))  # type: ignore[arg-type]
    last, padded, moved = orders_of(b.build(), x, torch.zeros(8))
    assert last == x.stride()
    assert padded == torch.zeros(2, 8, 4, 6).to(memory_format=torch.channels_last).stride()
    assert moved == (128, 32, 8, 1)


def test_an_explicit_order_wins() -> None:
    b = FusionBuilder()
    x = b.tensor([2, 3, 4], Float)
    b.output(b.stride_order(b.pointwise("neg", x), [0, 2, 1]))  # type: ignore[arg-type]
    assert orders_of(b.build(), torch.zeros(2, 3, 4)) == [(1, 8, 2)]


@pytest.mark.parametrize(
    ("sizes", "strides", "order"),
    [
        ((2, 3, 4), (12, 4, 1), (0, 1, 2)),
        ((2, 3, 4), (1, 8, 2), (1, 2, 0)),
        ((2, 1, 4), (4, 0, 1), (1, 0, 2)),
        ((1, 1, 1), (0, 0, 0), (0, 1, 2)),
    ],
)
def test_loops_walk_memory_from_outside_in(
    sizes: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...]
) -> None:
    x = FusionBuilder().tensor(sizes, Float)
    assert loop_order(x, Layout(strides)) == order


def test_declared_layouts_are_dense_in_the_declared_order() -> None:
    b = FusionBuilder()
    plain = b.tensor([2, 3, 4], Float)
    reordered = b.tensor([2, 3, 4], Float, allocation=[0, 2, 1])
    repeated = b.tensor([2, 3, 4], Float, expanded=[False, True, False])
    gapped = b.tensor([2, 3, 4], Float, contiguity=[False, True, True])
    strides = [declared_layout(t).strides for t in (plain, reordered, repeated, gapped)]
    assert strides == [(12, 4, 1), (12, 1, 3), (4, 0, 1), (12, 4, 1)]
