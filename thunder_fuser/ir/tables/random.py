"""The table of random distributions: functions from Philox words to random numbers.

Element n of a tensor, counted in logical order, belongs to call n // k of the generator and is its
(n % k)-th number, where k = 4, or 2 for Double: the call's subsequence is n // k, its key the seed,
its counter the offset. So a number is a function of (seed, offset, n) alone, and is the same
wherever and however often it is computed. This is nvFuser's convention, and therefore Thunder's
`uniform_philox`. Numbers that nvFuser gives outside of a distribution's range differ: its uniform
Float may round to the upper bound, and its normal is infinite once in 2^25.

bernoulli is a 32-bit uniform number compared with a constant (passes/random_masks.py): it tests
whether the element's word is in a contiguous range.

uniform has the same bits on every target and in `reference`. The last bits of normal are those of
the target's logarithm and sine.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir import philox
from thunder_fuser.ir.dtypes import DataType, compute_dtype

DTYPES = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)
"""Dtypes of random numbers."""

WORDS = 2**32
"""Number of possible 32-bit words per element (Double uses 64 bits)."""


def standard_dtype(dtype: DataType) -> DataType:
    """The type of standard numbers and of a distribution's parameters: the compute dtype of the
    numbers' own; UInt32 words for a mask.
    """
    return DataType.UInt32 if dtype is DataType.Bool else compute_dtype(dtype)


def numbers_per_call(dtype: DataType) -> int:
    """Numbers obtained from one call of the generator."""
    return 2 if dtype is DataType.Double else 4


Reference = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, DataType], torch.Tensor]
"""(words, a, b, dtype) -> numbers before rounding. `words` is [calls, elements per call, words per
element]; the dtypes of a and b choose the precision.
"""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One distribution.

    parameters  names of the distribution's two parameters
    reference   the distribution as a function of Philox words
    cost        arithmetic per element, in units of one fp32 instruction; Philox included
    standard    C++ template that fills an array with the standard numbers of some calls
    spelling    C++ over {ctype}, {number} (a standard one) and the parameters {0} and {1}; gives a
                value that is rounded already
    reproducible  the same bits on every target and in `reference`
    dtypes      dtypes that can be drawn
    """

    name: str
    parameters: tuple[str, str]
    reference: Reference
    cost: int
    standard: str
    spelling: str
    reproducible: bool = False
    dtypes: tuple[DataType, ...] = DTYPES

    def check(self, dtype: DataType) -> None:
        """FuserTypeError for a dtype that cannot be drawn."""
        if dtype not in self.dtypes:
            known = ", ".join(d.name for d in self.dtypes)
            raise FuserTypeError(f"{self.name}: expected one of {known}, got {dtype.name}")

    def numbers(
        self,
        seed: torch.Tensor,
        offset: torch.Tensor,
        parameters: tuple[torch.Tensor, torch.Tensor],
        count: int,
        dtype: DataType,
    ) -> torch.Tensor:
        """The first `count` numbers, not rounded to storage dtypes narrower than fp32."""
        k = numbers_per_call(dtype)
        calls = torch.arange(-(-count // k), device=seed.device)
        words = philox.words(seed, calls, offset).reshape(-1, k, philox.WORDS // k)
        return self.reference(words, *parameters, dtype).reshape(-1)[:count]


def _unit(words: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Uniform numbers in (0, 1], in the compute dtype."""
    if dtype is DataType.Double:
        z = words[..., 0] ^ (words[..., 1] << 21)
        return z.to(torch.float64) * 2**-53 + 2**-54
    return words[..., 0].to(torch.float32) * 2**-32 + 2**-33


def _uniform(
    words: torch.Tensor, low: torch.Tensor, high: torch.Tensor, dtype: DataType
) -> torch.Tensor:
    """Rounded to `dtype` at once, in any precision; a value that rounds to `high` becomes `low`."""
    wide, stored = compute_dtype(dtype).torch, dtype.torch
    first, last = low.to(wide), high.to(wide)
    u = _unit(words, dtype)
    value = fused(last - first, u, first).to(stored)
    inside = (u < 1) & (value < last.to(stored))
    return torch.where(inside, value, first.to(stored)).to(low.dtype)


def _normal(
    words: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: DataType
) -> torch.Tensor:
    """Box-Muller: two adjacent elements share radius and angle, by its sine and its cosine."""
    pairs = words.unflatten(1, (words.shape[1] // 2, 2))
    u, v = (_unit(pairs[:, :, n], dtype) for n in range(2))
    turn = torch.where(v < 1, v, 0.0) * v.new_tensor(2 * math.pi)
    radius = (u.to(std.dtype).log() * -2.0).sqrt()
    angle = turn.to(std.dtype)
    both = torch.stack([radius * angle.sin(), radius * angle.cos()], dim=-1)
    return both * std + mean


def _bernoulli(
    words: torch.Tensor, first: torch.Tensor, count: torch.Tensor, dtype: DataType
) -> torch.Tensor:
    """True if the word is in first..first + count - 1, modulo 2^32."""
    return (words[..., 0] - first) % WORDS < count


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Fused multiply-add a * b + c, rounded once (for Double, except in rare cases)."""
    if a.dtype is torch.float32:
        product, error = a.double() * b.double(), a.new_zeros((), dtype=torch.float64)
    else:
        product = a * b
        (a1, a2), (b1, b2) = _split(a), _split(b)
        error = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    total = product + c
    part = total - product
    error = error + ((product - (total - part)) + (c - part))
    if a.dtype is torch.float64:
        return total + error
    # A float64 sum rounded to odd remains on the right side of a tie of float32.
    bits = total.view(torch.int64) - ((error > 0) != (total > 0)).to(torch.int64)
    return torch.where(error == 0, total, (bits | 1).view(torch.float64)).float()


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A float64 as a sum of two with 26 bits each."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


_ROWS = (
    Distribution(
        *("uniform", ("minval", "maxval"), _uniform, 24),
        *("tf::uniforms", "tf::uniform<{ctype}>({number}, {0}, {1})", True),
    ),
    Distribution(
        *("normal", ("mean", "std"), _normal, 60),
        *("tf::normals", "tf::normal<{ctype}>({number}, {0}, {1})"),
    ),
    Distribution(
        *("bernoulli", ("first", "count"), _bernoulli, 21),
        *("tf::words", "tf::bernoulli({number}, {0}, {1})", True, (DataType.Bool,)),
    ),
)

TABLE: Mapping[str, Distribution] = MappingProxyType({row.name: row for row in _ROWS})
"""Every distribution by name."""


def lookup(name: str) -> Distribution:
    """The row of that name; FuserValueError with the nearest names if there is none."""
    found = TABLE.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no distribution {name!r}{hint}")
    return found
