"""What differs between our results and torch's, element by element, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ULPS = 32.0
"""How far apart ordinary results may be: accuracy has tests of its own."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One function on one dtype.

    kind      what differs: nan, inf, zero (its sign), value, dtype, shape, error
    count     of how many elements
    example   the operands of the first one, ours, and torch's
    """

    name: str
    dtype: torch.dtype
    kind: str
    count: int = 1
    example: str = ""

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name:24} {dtype:10} {self.kind:6} {self.count:5}  {self.example}"


def differences(
    name: str,
    operands: Sequence[Tensor],
    ours: Tensor,
    theirs: Sequence[Tensor],
    truth: Tensor | None = None,
    noise: Tensor | None = None,
) -> list[Difference]:
    """At most one a kind. `theirs` are torch's results by several kernels: any of them will do.
    Nor is a value different that is as near to the truth as torch's, or that differs by the last
    places of what it is a difference of.

    noise  sizes of what was added up to give the results, where these may be much smaller
    """
    dtype, first = operands[0].dtype, theirs[0]
    if ours.dtype != first.dtype:
        return [Difference(name, dtype, "dtype", 1, f"{ours.dtype} for {first.dtype}")]
    if ours.shape != first.shape:
        return [Difference(name, dtype, "shape", 1, f"{ours.shape} for {first.shape}")]
    kinds = [_kinds(ours, t, noise) for t in theirs]
    if truth is not None and (ours.is_floating_point() or ours.is_complex()):
        far = (ours - truth).abs() > 2 * (first - truth).abs()
        allowed = _ULPS * torch.finfo(ours.dtype).eps * truth.abs()
        right = ours.isfinite() & ((ours - truth).abs() <= allowed)
        for kind in kinds:
            kind["value"] = kind["value"] & far
            for of_infinity in ("nan", "inf"):
                kind[of_infinity] = kind[of_infinity] & ~right
            if not ours.is_complex():
                kind["zero"] = kind["zero"] & (ours.signbit() != truth.signbit())
    wrong = torch.stack([sum(k.values(), torch.zeros_like(first, dtype=torch.bool)) for k in kinds])
    is_wrong = wrong.all(0)
    found = []
    for kind, mask in kinds[0].items():
        mask = mask & is_wrong
        if bool(mask.any()):
            found.append(_described(name, operands, ours, first, kind, mask))
    return found


def _described(
    name: str, operands: Sequence[Tensor], ours: Tensor, theirs: Tensor, kind: str, mask: Tensor
) -> Difference:
    at = tuple(int(k) for k in mask.nonzero()[0])
    if all(x.shape == mask.shape for x in operands):
        given = ", ".join(str(x[at].item()) for x in operands)
    elif at:
        given = str(operands[0][at[0]].tolist())
    else:
        given = "all"
    example = f"of {given}: {ours[at].item()}, torch {theirs[at].item()}"
    return Difference(name, operands[0].dtype, kind, int(mask.sum()), example)


def _kinds(ours: Tensor, theirs: Tensor, noise: Tensor | None) -> dict[str, Tensor]:
    if not (ours.is_complex() or ours.is_floating_point()):
        return {"value": ours != theirs}
    size = theirs.abs()
    if noise is not None:
        size = torch.where(noise.isfinite(), torch.maximum(size, noise.to(size.dtype)), size)
    if ours.is_complex():
        parts = [_kinds_of_parts(a, b, size) for a, b in _parts(ours, theirs)]
        return {kind: parts[0][kind] | parts[1][kind] for kind in parts[0]}
    return _kinds_of_parts(ours, theirs, size)


def _parts(a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    a, b = (torch.view_as_real(t.resolve_conj()) for t in (a, b))
    return [(a[..., k], b[..., k]) for k in (0, 1)]


def _kinds_of_parts(ours: Tensor, theirs: Tensor, size: Tensor) -> dict[str, Tensor]:
    info = torch.finfo(ours.dtype)
    nan = ours.isnan() != theirs.isnan()
    either = ours.isnan() | theirs.isnan()
    inf = ~either & ((ours.isinf() | theirs.isinf()) & (ours != theirs))
    zero = ~either & (ours == 0) & (theirs == 0) & (ours.signbit() != theirs.signbit())
    rest = ~either & ours.isfinite() & theirs.isfinite()
    a, b = ours.double(), theirs.double()
    near = torch.where(size.isfinite(), size, b.abs()).double()
    allowed = _ULPS * info.eps * near + 4 * info.tiny * info.eps
    return {"nan": nan, "inf": inf, "zero": zero, "value": rest & ((a - b).abs() > allowed)}
