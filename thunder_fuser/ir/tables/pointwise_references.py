"""Reference implementations, as functions of torch tensors, of pointwise operations for which torch
has none or none with the semantics of kernels: integers wrap around, and a quotient by 0 is 0.
"""

from __future__ import annotations

import torch


def _is_integral(x: torch.Tensor) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex)


def _is_minus_one(x: torch.Tensor) -> torch.Tensor:
    return x == -1 if x.dtype.is_signed else torch.zeros_like(x, dtype=torch.bool)


def _harmless(divisor: torch.Tensor) -> torch.Tensor:
    """Divisors without 0 and -1 (replaced by 1), by which integer division cannot trap."""
    return torch.where((divisor == 0) | _is_minus_one(divisor), torch.ones_like(divisor), divisor)


def div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not _is_integral(a):
        return torch.div(a, b)
    quotient = torch.div(a, _harmless(b), rounding_mode="trunc")
    signed = torch.where(_is_minus_one(b), -a, quotient)
    return torch.where(b == 0, torch.zeros_like(a), signed)


def fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.fmod(a, _harmless(b) if _is_integral(a) else b)


def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not _is_integral(a):
        return torch.remainder(a, b)
    rest = fmod(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def addcmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return a + scale * b * c


def threshold(x: torch.Tensor, bound: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.where(x <= bound, value, x)


def gcd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """torch.gcd, made non-negative: its sign is arbitrary if an operand is the lowest integer."""
    return torch.gcd(a, b).abs()


def lerp(start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch.lerp of contiguous operands: last bits of complex results depend on strides."""
    return torch.lerp(start.contiguous(), end.contiguous(), weight.contiguous())


def erfcinv(x: torch.Tensor) -> torch.Tensor:
    """Inverse of erfc(y) = 2 * ndtr(-sqrt(2) * y)."""
    return torch.special.ndtri(x * 0.5) * -(0.5**0.5)


def logical_right_shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Right shift that fills with zeros; 0 for amounts outside 0..bits-1."""
    bits = a.dtype.itemsize * 8
    amount = b.to(torch.int64)
    pattern = a.to(torch.int64)
    if bits < 64:
        pattern = pattern & ((1 << bits) - 1)
    # Shifting by one first clears the sign bit of 64-bit patterns.
    rest = ((pattern >> 1) & (2**63 - 1)) >> (amount - 1).clamp(0, 63)
    shifted = torch.where(amount == 0, pattern, rest)
    return torch.where((amount < 0) | (amount >= bits), 0, shifted).to(a.dtype)
