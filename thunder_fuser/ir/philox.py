"""Philox 4x32-10 in torch integers: the bit-exact oracle for `csrc_templates/philox.cuh`.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
"""

from __future__ import annotations

import torch

WORDS = 4
"""32-bit words per call of the generator."""

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def words(seed: torch.Tensor, subsequence: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Four words, as integers in 0 .. 2^32 - 1, for each element of `subsequence`.

    All tensors are int64 with the bits of unsigned integers; seed and offset are 0-dim. The counter
    has curand's layout: the offset, then the subsequence.
    """
    key = [*_halves(seed)]
    low, high = _halves(subsequence)
    a, b = (half.expand(low.shape) for half in _halves(offset))
    c, d = low, high
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = _product(_MULTIPLIERS[0], a), _product(_MULTIPLIERS[1], c)
        a, b, c, d = high1 ^ b ^ key[0], low1, high0 ^ d ^ key[1], low0
        key = [(part + step) & _LOW for part, step in zip(key, _KEY_STEPS, strict=True)]
    return torch.stack([a, b, c, d], dim=-1)


def _halves(number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return number & _LOW, (number >> 32) & _LOW


def _product(factor: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(upper, lower) word of the product, which wraps around in int64 with the right bits."""
    low, high = _halves(word * factor)
    return high, low
