"""Simplified programs against the elements that they bring, and their dimensions."""

from __future__ import annotations

import random

import torch

from thunder_fuser.ir.domain import (
    Expand,
    IterDomain,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    broadcast,
    iteration,
    replay,
    tensor_domain,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.reference_moves import moved
from thunder_fuser.ir.view_programs import simplified, view_name

FILL = -7


def drawn(source: random.Random) -> tuple[list[IterDomain], list[Transform]]:
    """Dimensions, some of them expanded, and a program that applies to them."""
    root = [iteration(source.choice((1, 2, 3, 4, 6))) for _ in range(source.randint(1, 3))]
    if source.random() < 0.3:
        root[0] = broadcast(3)
    dims, steps = tuple(root), []
    for _ in range(source.randint(1, 8)):
        step = _step(source, dims)
        if step is not None and _numel(replay(dims, (step,))) <= 500:
            steps.append(step)
            dims = replay(dims, (step,))
    return root, steps


def _numel(dims: tuple[IterDomain, ...]) -> int:
    total = 1
    for d in dims:
        total *= int(d.size)
    return total


def _step(source: random.Random, dims: tuple[IterDomain, ...]) -> Transform | None:
    rank = len(dims)
    kind = source.choice((Split, Merge, Merge, Resize, Resize, NewBroadcast, Squeeze, Expand))
    if kind is NewBroadcast:
        return NewBroadcast(source.randint(0, rank)) if rank < 5 else None
    if not rank or source.random() < 0.2:
        return Reorder(tuple(source.sample(range(rank), rank)))
    axis = source.randrange(rank)
    size = int(dims[axis].size)
    if kind is Split:
        factors = [f for f in (1, 2, 3, 4, 6) if size and size % f == 0]
        inner = source.choice(factors) if factors else 1
        return Split(axis, size // inner, inner)
    if kind is Merge:
        return Merge(source.randrange(rank - 1)) if rank > 1 else None
    if kind is Resize:
        left, right = source.choice((-1, 0, 0, 2)), source.choice((-1, 0, 0, 1))
        return Resize(axis, left, right) if size + min(left, 0) + min(right, 0) > 0 else None
    if not dims[axis].is_broadcast:
        return None
    if kind is Squeeze:
        return Squeeze(axis)
    return Expand(axis, source.choice((2, 3))) if dims[axis].expanded is None else None


def elements(root: list[IterDomain], steps: tuple[Transform, ...]) -> torch.Tensor:
    """Which root element is where; FILL where a pad is."""
    sizes = [int(d.size) for d in root]
    held = [1 if d.is_broadcast else int(d.size) for d in root]
    numbers = torch.arange(int(torch.tensor(held).prod())).reshape(held).expand(sizes)
    view = TensorView(0, DataType.Int, tensor_domain(root, steps))
    return moved(numbers, view, torch.tensor(FILL))


def test_elements_and_dimensions_stay() -> None:
    source = random.Random(5)
    shorter = 0
    for _ in range(4000):
        root, steps = drawn(source)
        simple = simplified(root, steps)
        assert replay(root, simple) == replay(root, steps), (root, steps, simple)
        assert torch.equal(elements(root, simple), elements(root, tuple(steps))), (root, steps)
        assert simplified(root, simple) == simple
        assert len(simple) <= len(steps)
        shorter += len(simple) < len(steps)
    assert shorter > 1500


def test_a_program_and_its_inverse_cancel() -> None:
    source = random.Random(6)
    for _ in range(300):
        sizes = [source.choice((2, 3, 4, 6)) for _ in range(3)]
        root = [iteration(n) for n in sizes]
        order = tuple(source.sample(range(3), 3))
        back = tuple(order.index(k) for k in range(3))
        k = source.randrange(3)
        steps: list[Transform] = [
            *(Reorder(order), NewBroadcast(k), Expand(k, 5)),
            *(Split(0 if k else 1, 1, sizes[order[0]]), Merge(0 if k else 1)),
            *(Squeeze(k), Reorder(back)),
        ]
        assert simplified(root, steps) == ()


def test_two_spellings_of_one_view_become_one() -> None:
    root = [iteration(4), iteration(6), iteration(8)]
    slice_then_permute = [Resize(0, -1, 0), Resize(2, 0, -3), Reorder((2, 0, 1))]
    permute_then_slice = [Reorder((2, 0, 1)), Resize(1, -1, 0), Resize(0, 0, -3)]
    assert simplified(root, slice_then_permute) == simplified(root, permute_then_slice)
    flat = [Merge(0), Merge(0), Split(0, 4, 48), Split(1, 6, 8)]
    assert simplified(root, flat) == ()
    two_reshapes = [Merge(0), Merge(0), Split(0, 4, 48)]
    assert simplified(root, two_reshapes) == (Merge(1),)


def test_cuts_that_are_padded_again_do_not_cancel() -> None:
    root = [iteration(8)]
    assert simplified(root, [Resize(0, -2, 0), Resize(0, 2, 0)]) == (
        Resize(0, -2, 0),
        Resize(0, 2, 0),
    )
    assert simplified(root, [Resize(0, 2, 1), Resize(0, -2, -1)]) == ()
    assert simplified(root, [Resize(0, -2, 3), Resize(0, -1, -1)]) == (Resize(0, -3, 2),)


def test_resizing_an_expanded_dimension_is_not_idle() -> None:
    """The result is an ordinary dimension, which later steps may treat differently."""
    assert simplified([broadcast(4)], [Resize(0, 0, 0)]) == (Resize(0, 0, 0),)


def test_names_say_what_the_steps_are() -> None:
    assert view_name((), pads=False) == "permute"
    assert view_name((Reorder((1, 0)),), pads=False) == "permute"
    assert view_name((Resize(0, -1, 0),), pads=False) == "slice"
    assert view_name((Resize(0, 1, 0),), pads=True) == "pad"
    assert view_name((NewBroadcast(0),), pads=False) == "broadcast"
    assert view_name((NewBroadcast(0), Expand(0, 4)), pads=False) == "broadcast_in_dim"
    assert view_name((Resize(0, -1, 0), Reorder((1, 0))), pads=False) == "reshape"
