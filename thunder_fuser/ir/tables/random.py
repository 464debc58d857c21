"""The one table of random numbers: how words of Philox become numbers of a distribution.

Element n of a tensor, counted in logical order, belongs to call n // k of the generator and is its
(n % k)-th number, where k = 4, or 2 for Double: the call's subsequence is n // k, its key the seed,
its counter the offset. So a number is a function of (seed, offset, n) and nothing else; wherever it
is computed, and how often, it is the same. This is nvFuser's convention, and therefore Thunder's
`uniform_philox`. Numbers that nvFuser gives outside of a distribution's range differ: its uniform
Float may round to the upper bound, and its normal is infinite once in 2^25.

bernoulli is a uniform number of 32 bits that was compared with a constant (passes/random_masks.py):
it asks whether the element's word is one of some neighbours.

uniform has the same bits on every target and in `reference`. The last bits of normal are those of
the logarithm and the sine at hand.
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
"""Of the numbers that are drawn."""

WORDS = 2**32
"""How many words there are for an element, but for those of Double."""


def standard_dtype(dtype: DataType) -> DataType:
    """The type of a standard number, and of a distribution's parameters: the type that computes for
    the numbers' own, and words for a mask.
    """
    return DataType.UInt32 if dtype is DataType.Bool else compute_dtype(dtype)


def numbers_per_call(dtype: DataType) -> int:
    """Numbers that one call of the generator is good for."""
    return 2 if dtype is DataType.Double else 4


Reference = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, DataType], torch.Tensor]
"""(words, a, b, dtype): numbers before rounding. `words` has a dimension of calls, one of the
elements of a call, and one of the words of an element; a and b choose the precision."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One row.

    parameters  names of the two numbers that choose from the family of distributions
    reference   the distribution on Philox words
    cost        arithmetic per element, in units of one fp32 instruction; Philox included
    standard    C++ template that fills an array with the numbers of some calls
    spelling    C++ over {ctype}, {number} (a standard one) and the parameters {0} and {1}; gives a
                value that is rounded already
    reproducible  the same bits on every target and in `reference`
    dtypes      what is drawn
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
        """FuserTypeError for a dtype that is not drawn."""
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
        """The first `count` numbers, not rounded to a storage dtype that is narrower than fp32."""
        k = numbers_per_call(dtype)
        calls = torch.arange(-(-count // k), device=seed.device)
        words = philox.words(seed, calls, offset).reshape(-1, k, philox.WORDS // k)
        return self.reference(words, *parameters, dtype).reshape(-1)[:count]


def _unit(words: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """In (0, 1], in the type that computes."""
    if dtype is DataType.Double:
        z = words[..., 0] ^ (words[..., 1] << 21)
        return z.to(torch.float64) * 2**-53 + 2**-54
    return words[..., 0].to(torch.float32) * 2**-32 + 2**-33


def _uniform(
    words: torch.Tensor, low: torch.Tensor, high: torch.Tensor, dtype: DataType
) -> torch.Tensor:
    """Rounded at once, whatever the precision: what is rounded to `high` becomes `low`."""
    wide, stored = compute_dtype(dtype).torch, dtype.torch
    first, last = low.to(wide), high.to(wide)
    u = _unit(words, dtype)
    value = fused(last - first, u, first).to(stored)
    inside = (u < 1) & (value < last.to(stored))
    return torch.where(inside, value, first.to(stored)).to(low.dtype)


def _normal(
    words: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: DataType
) -> torch.Tensor:
    """Box and Muller: neighbours share radius and angle, and are its sine and its cosine."""
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
    """Whether the word is one of `count` neighbours; behind the last word comes the first."""
    return (words[..., 0] - first) % WORDS < count


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c, rounded once (in Double as good as always)."""
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
    # Rounded to odd, a sum in float64 still knows on which side of a tie of float32 it is.
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
    """The row of that name; FuserValueError, with the nearest names, where there is none."""
    found = TABLE.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no distribution {name!r}{hint}")
    return found
