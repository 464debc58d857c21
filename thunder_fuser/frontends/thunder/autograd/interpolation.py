"""Grad transform of interpolations: each element gathers the gradients of the results that read it.

They are summed in the order of the results, 16-bit ones in fp32, without atomics. A result that an
element's window holds and that reads another, or has a weight of 0, adds nothing, whatever its
gradient is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import thunder.torch as ltorch
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.rules import Rule
from thunder_fuser.frontends.thunder.composites.arguments import rounded, wide
from thunder_fuser.frontends.thunder.composites.interpolation import (
    GATHERED,
    Gathering,
    gatherings,
)


def _interpolate(
    a: TensorProxy,
    /,
    size: Sequence[int] | None = None,
    scale_factor: Sequence[float] | None = None,
    mode: str = "bilinear",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> TensorProxy:
    options = (align_corners, recompute_scale_factor, antialias)
    result: TensorProxy = GATHERED[mode](a, size, scale_factor, mode, *options)
    gradient = wide(get_grad(result))
    for gathering in reversed(gatherings(a, size, scale_factor, mode, align_corners) or ()):
        gradient = _gathered(gradient, gathering)
    put_grad(a, rounded(gradient, a))
    return result


def _gathered(gradient: TensorProxy, gathering: Gathering) -> TensorProxy:
    """Return the gradient of what is interpolated along one dimension."""
    taps = range(gathering.windows.taps)
    return reduce(ltorch.add, (_of_tap(gradient, gathering, number) for number in taps))


def _of_tap(gradient: TensorProxy, gathering: Gathering, number: int) -> TensorProxy:
    """Return what each element gets from the result with a number in its window."""
    dim, n, windows, along, *_ = gathering
    part = windows.tap(gradient, dim, n, number, 0.0)
    shape = [-1 if d == dim else 1 for d in range(gradient.ndim)]
    element = ltorch.reshape(ltorch.arange(n, device=gradient.device), shape)
    if along is None:
        reads = windows.tap(gathering.elements(gradient), 0, n, number, -1)
        return ltorch.where(ltorch.reshape(reads, shape) == element, part, 0.0)
    # Behind the last element, all of the weight is there.
    places = ltorch.clamp(along.places(gradient), None, float(n - 1))
    place = ltorch.reshape(windows.tap(places, 0, n, number, -1.0), shape)
    weight = 1 - ltorch.abs(place - ltorch.to(element, gradient.dtype))
    return ltorch.where(weight > 0, part * weight, 0.0)


RULES: Mapping[str, Rule] = {GATHERED["linear"].id: _interpolate}
"""Grad transforms by symbol id, which the executor registers."""
