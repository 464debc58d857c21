"""Grad transforms of calls that compute as torch's kernels do, where Thunder's lose accuracy.

Thunder differentiates the decomposition of a call. A select multiplies the gradient of the side not
taken with 0, so that an overflow there becomes NaN; the gradient of `expm1(x)` is its result plus
1, which absorbs small results. And a decomposed call can no longer be claimed as a whole.
A rule here records the call itself, and the operations of torch's backward kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from thunder.core.prims import PrimIDs

from thunder_fuser.frontends.thunder.autograd import (
    activations,
    interpolation,
    losses,
    norms,
    pointwise,
    pools,
    reductions,
    setitem,
    updates,
)
from thunder_fuser.frontends.thunder.autograd.rules import Rule

RULES: Mapping[PrimIDs | str, Rule] = {
    **activations.RULES,
    **pointwise.RULES,
    **reductions.RULES,
    **losses.RULES,
    **norms.RULES,
    **pools.RULES,
    **interpolation.RULES,
    **setitem.RULES,
    **updates.RULES,
}
"""Grad transforms by symbol id, which the executor registers."""
