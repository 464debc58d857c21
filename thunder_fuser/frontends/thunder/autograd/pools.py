"""Grad transforms of windowed pools: each image element gathers its gradient.

For max pooling the first of equal elements of a window gets the gradient, as in torch; for average
pooling each element gets its share. An element's gradients are summed in the order of its windows,
16-bit ones in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.rules import Rule
from thunder_fuser.frontends.thunder.composites.pools import (
    AVERAGE,
    LARGEST,
    OTHERS,
    WITH_PLACES,
    indices,
    of_average,
    of_largest,
)
from thunder_fuser.frontends.thunder.composites.windows import pool_of


def _max_pool(spatial: int) -> Rule:
    def rule(
        a: TensorProxy,
        /,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> Any:
        options = (kernel_size, stride, padding, dilation)
        pool = pool_of(a, spatial, *options, ceil_mode)
        result, places = WITH_PLACES[spatial](a, *options, False, ceil_mode)
        put_grad(a, of_largest(get_grad(result), places, pool))
        return (result, indices(places, pool)) if return_indices else result

    return rule


def _avg_pool(spatial: int) -> Rule:
    def rule(
        a: TensorProxy,
        /,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorProxy:
        by = (count_include_pad, divisor_override)
        pool = pool_of(a, spatial, kernel_size, stride, padding, 1, ceil_mode)
        result: TensorProxy = AVERAGE[spatial](a, kernel_size, stride, padding, ceil_mode, *by)
        put_grad(a, of_average(get_grad(result), pool, *by))
        return result

    return rule


RULES: Mapping[str, Rule] = {
    **{symbol.id: _max_pool(k) for calls in (LARGEST, OTHERS) for k, symbol in calls.items()},
    **{symbol.id: _avg_pool(k) for k, symbol in AVERAGE.items()},
}
"""Grad transforms by symbol id, which the executor registers."""
