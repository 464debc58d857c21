"""Random tensors for tests: what is in them, and how they lie in memory."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from thunder_fuser.ir.dtypes import DataType, Number

QUARTERS = tuple(k / 4 for k in range(-8, 9))
"""Numbers that every float dtype holds, 8-bit ones included: their sums and products are exact."""
SPECIAL = (math.nan, math.inf, -math.inf, -0.0)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a definition may promise about a tensor's memory (see TensorDomain)."""

    allocation: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    expanded: tuple[bool, ...]


def random_tensor(
    rng: random.Random, sizes: Sequence[int], dtype: DataType, *, special: bool = False
) -> torch.Tensor:
    """Quarters in [-2, 2], or small integers; now and then normal numbers or extreme values.

    `special`: floats are among the largest and smallest, normal and not.
    """
    count = math.prod(sizes)
    kind = rng.random()
    numbers: list[Number]
    if dtype is DataType.Bool:
        numbers = [k == 1 for k in rng.choices((0, 1), k=count)]
    elif dtype.is_integral:
        numbers = list(rng.choices(range(0 if dtype.is_unsigned else -8, 9), k=count))
        if kind < 0.15:
            bits = 8 * dtype.itemsize - (not dtype.is_unsigned)
            _scatter(rng, numbers, (2**bits - 1, 0 if dtype.is_unsigned else -(2**bits)))
    elif dtype.is_complex:
        real, imag = (rng.choices(QUARTERS, k=count) for _ in range(2))
        numbers = [complex(*parts) for parts in zip(real, imag, strict=True)]
    else:
        normal = (rng.gauss(0, 1) for _ in range(count))
        numbers = list(normal if kind < 0.3 else rng.choices(QUARTERS, k=count))
        if rng.random() < 0.4:
            _scatter(rng, numbers, SPECIAL)
        if special:
            _scatter(rng, numbers, rng.choices((*SPECIAL, *_extremes(dtype)), k=count // 2 + 1))
    exact = torch.float64 if dtype.is_floating else dtype.torch
    return torch.tensor(numbers, dtype=exact).to(dtype.torch).reshape(tuple(sizes))


def _extremes(dtype: DataType) -> tuple[float, ...]:
    info = torch.finfo(dtype.torch)
    found = (info.max, info.max / 3, info.smallest_normal, info.smallest_normal / 4)
    return (0.0, *found, *(-x for x in found))


def _scatter(rng: random.Random, numbers: list[Number], values: Sequence[Number]) -> None:
    for value in values:
        if numbers:
            numbers[rng.randrange(len(numbers))] = value


def laid_out(
    rng: random.Random, data: torch.Tensor, repeats: float = 0.08
) -> tuple[torch.Tensor, Layout]:
    """The tensor permuted in memory, with gaps, off alignment, or with repeated (stride 0) dims.

    `repeats`: how often a dimension is repeated.
    """
    sizes = data.shape
    order = list(range(len(sizes)))
    if rng.random() < 0.3:
        rng.shuffle(order)
    expanded = tuple(size > 1 and rng.random() < repeats for size in sizes)
    gaps = [int(rng.random() < 0.1) for _ in sizes]
    for k, repeated in enumerate(expanded):
        data = data.narrow(k, 0, 1) if repeated else data
    room = [data.shape[k] + 2 * gaps[k] for k in order]
    offset = rng.choice((0, 0, 0, 1, 3))
    block = torch.zeros(math.prod(room) + offset, dtype=data.dtype)[offset:].view(room)
    for axis, k in enumerate(order):
        block = block.narrow(axis, gaps[k], data.shape[k])
    view = block.permute([order.index(k) for k in range(len(order))])
    view.copy_(data)
    view = view.expand(sizes)
    return view, Layout(tuple(order), contiguity(view, order, expanded), expanded)


def contiguity(
    tensor: torch.Tensor, allocation: Sequence[int], expanded: Sequence[bool]
) -> tuple[bool | None, ...]:
    """Per dimension in memory order: dense with the next one inside it; None for broadcasts."""
    flags: list[bool | None] = []
    step = 1
    for k in reversed(allocation):
        if expanded[k] or tensor.shape[k] == 1:
            flags.insert(0, None)
        else:
            flags.insert(0, tensor.stride(k) == step)
            step = tensor.stride(k) * max(tensor.shape[k], 1)
    return tuple(flags)


def copy_of(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """The same numbers with the same strides and offset, in memory of its own."""
    memory = (
        torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        .set_(tensor.untyped_storage())
        .to(device or tensor.device, copy=True)
    )
    return memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def on_device(inputs: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Inputs on the device, with their strides: x.to(device) makes what is expanded or has gaps
    dense. A definition is made of these, since a tensor of no dimensions that stays on the CPU is
    a number of the host to it.
    """
    return [x if x.device == device else copy_of(x, device) for x in inputs]
