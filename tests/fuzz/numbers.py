"""Numbers for random tensors: exact ones, ordinary ones, and those that arithmetic trips over."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch

from tests.support.inputs import QUARTERS

Number = int | float | complex | bool


def random_numbers(rng: random.Random, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A dense tensor of one kind of numbers, now and then with special values scattered in it."""
    count = math.prod(sizes)
    numbers: list[Number]
    if dtype is torch.bool:
        numbers = [k == 1 for k in rng.choices((0, 1), k=count)]
    elif dtype.is_complex:
        parts = (_floats(rng, count, torch.float32) for _ in range(2))
        numbers = [complex(*pair) for pair in zip(*parts, strict=True)]
    elif dtype.is_floating_point:
        numbers = list(_floats(rng, count, dtype))
    else:
        numbers = list(_integers(rng, count, dtype))
    exact = torch.float64 if dtype.is_floating_point else dtype
    return torch.tensor(numbers, dtype=exact).to(dtype).reshape(tuple(sizes))


def special_floats(dtype: torch.dtype) -> tuple[float, ...]:
    """NaN, infinities, zeros, and the largest and smallest numbers, normal and not."""
    info = torch.finfo(dtype)
    positive = (math.inf, info.max, info.tiny, info.smallest_normal / 4, 0.0, info.max / 3)
    return (math.nan, *positive, *(-x for x in positive))


def _floats(rng: random.Random, count: int, dtype: torch.dtype) -> list[float]:
    numbers = rng.choice(_KINDS)(rng, count)
    if rng.random() < 0.2:
        _scatter(rng, numbers, rng.sample(special_floats(dtype), rng.randint(1, 4)))
    return numbers


_KINDS: tuple[Callable[[random.Random, int], list[float]], ...] = (
    *(lambda rng, n: list(rng.choices(QUARTERS, k=n)),) * 4,
    *(lambda rng, n: [rng.gauss(0, 1) for _ in range(n)],) * 3,
    lambda rng, n: [float(k) for k in rng.choices(range(-3, 4), k=n)],
    lambda rng, n: [rng.gauss(0, 1) * 10.0 ** rng.randint(-3, 3) for _ in range(n)],
    lambda rng, n: [rng.uniform(0.1, 4) for _ in range(n)],
    lambda rng, n: [1000 + rng.gauss(0, 1) for _ in range(n)],
    lambda rng, n: [0.0] * n,
)


def _integers(rng: random.Random, count: int, dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    numbers = rng.choices(range(max(info.min, -4), 5), k=count)
    if rng.random() < 0.1:
        _scatter(rng, numbers, (info.max, info.min))
    return numbers


def _scatter(rng: random.Random, numbers: list, values: Sequence[Number]) -> None:  # type: ignore[type-arg]
    for value in values:
        if numbers:
            numbers[rng.randrange(len(numbers))] = value
