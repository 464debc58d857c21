"""Inputs of a definition: what it promises about their memory, and tensors that keep that."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.inputs import QUARTERS, random_tensor
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.view_arguments import stride_order_of

Fill = Callable[[int], torch.Tensor]
"""Numbers for a memory of so many elements."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a definition says of a tensor, whatever its sizes are.

    sizes     -1 for an open one
    order     dimensions in memory, outermost first
    loose     in that order: the dimension need not be dense with those inside of it
    expanded  dimensions of stride 0
    apart     no element is in the place of another: the tensor can be updated
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    loose: tuple[bool, ...]
    expanded: tuple[bool, ...]
    apart: bool

    def arguments(self, rng: random.Random, dtype: DataType) -> tuple[list[Any], dict[str, Any]]:
        """Of `define_tensor`: one of its spellings."""
        flags = [
            None if self.sizes[k] == 1 or self.expanded[k] else not loose
            for k, loose in zip(self.order, self.loose, strict=True)
        ]
        named: dict[str, Any] = {"dtype": dtype}
        if self.order != tuple(range(len(self.order))) or rng.random() < 0.2:
            named["stride_order"] = list(stride_order_of(self.order))
        if None not in flags and len(set(flags)) == 1 and rng.random() < 0.5:
            return [list(self.sizes)], named | {"contiguity": flags[0]}
        if rng.random() < 0.1:
            return [], named | {"symbolic_sizes": list(self.sizes), "contiguous": flags}
        return [list(self.sizes), flags], named

    def tensor(self, rng: random.Random, sizes: Sequence[int], fill: Fill) -> torch.Tensor:
        """One of those sizes, at some offset, with gaps or overlaps where it is loose."""
        strides = [0] * len(sizes)
        step, gaps = 1, rng.choice((0, 0, 1, 3))
        for k, loose in zip(reversed(self.order), reversed(self.loose), strict=True):
            if self.expanded[k]:
                continue
            if sizes[k] == 1:
                strides[k] = rng.choice((step, 0, 1, 7))
                continue
            if loose:
                step = step + gaps if self.apart or rng.random() < 0.8 else max(step // 2, 1)
            strides[k] = step
            step *= max(sizes[k], 1)
        offset = rng.choice((0, 0, 0, 1, 3))
        last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if n)
        memory = fill(offset + last + 1)
        return memory.as_strided(tuple(sizes), strides, offset)


def random_promise(rng: random.Random, sizes: Sequence[int], apart: bool) -> Promise:
    rank = len(sizes)
    order = list(range(rank))
    if rng.random() < 0.3:
        rng.shuffle(order)
    is_loose = rng.choice((0.0, 0.0, 0.3, 1.0))
    loose = tuple(rng.random() < is_loose for _ in sizes)
    expanded = tuple(not apart and size != 1 and rng.random() < 0.08 for size in sizes)
    return Promise(tuple(sizes), tuple(order), loose, expanded, apart)


def numbers(rng: random.Random, dtype: DataType, special: bool) -> Fill:
    return lambda count: random_tensor(rng, [count], dtype, special=special)


def quarters(rng: random.Random, dtype: DataType) -> Fill:
    """Ordinary floats."""
    return lambda count: torch.tensor(rng.choices(QUARTERS, k=count)).to(dtype.torch)


def positions(rng: random.Random, dtype: DataType, bound: int) -> Fill:
    """Indices below `bound`."""
    return lambda count: torch.tensor(
        [rng.randrange(bound) for _ in range(count)], dtype=dtype.torch
    )
