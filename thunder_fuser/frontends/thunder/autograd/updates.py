"""Grad transform of the in-place copy that ends an update, whose source may be broadcast.

Where a number fills a tensor (`x.copy_(x.sum())`), Thunder's rule gives the number the gradient of
the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

from thunder.core import prims
from thunder.core.prims import PrimIDs, get_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put_to


def _copy(source: TensorProxy, target: TensorProxy, *, grad_enabled: bool) -> TensorProxy:
    result: TensorProxy = prims.copy_(source, target, grad_enabled=grad_enabled)
    put_to(source, get_grad(result))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {PrimIDs.COPY_: _copy}
