"""Grad transform of `x[mask] = value`, whose value may have been repeated.

Thunder's own indexes the gradient by the mask, which gives as many elements as the mask has places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import _copy_with_setitem_grad

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put_to
from thunder_fuser.frontends.thunder.claims.setitem import mask_of


def _setitem(x: TensorProxy, index: Any, value: Any) -> TensorProxy:
    mask = mask_of(x, index)
    if mask is None or not isinstance(value, TensorProxy):
        found: TensorProxy = _copy_with_setitem_grad(x, index, value)
        return found
    result: TensorProxy = prims.copy_with_setitem(x, index, value)
    g = get_grad(result)
    put_grad(x, prims.copy_with_setitem(g, index, 0))
    chosen = ltorch.reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    put_to(value, ltorch.where(chosen, g, 0.0))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {PrimIDs.COPY_WITH_SETITEM: _setitem}
