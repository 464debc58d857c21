"""Arguments whose values are all overwritten before a result reads them: their gradients are zeros.

In `y = x * 2; y.zero_()` the result does not depend on `x`, and Thunder gives it no gradient. Torch
goes back through the update to `x` and gives it zeros, which an optimizer does not skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.frontends.thunder.autograd.gradient_flags import detaches, is_differentiable
from thunder_fuser.frontends.thunder.claims.targets import primitives, updates
from thunder_fuser.frontends.thunder.updates.seen_updates import is_constant
from thunder_fuser.frontends.thunder.updates.updated_arguments import returned_by, returning


def with_zeros_of_overwritten(trace: TraceCtx, joint: TraceCtx) -> TraceCtx:
    """Return the joint trace of a trace, with zeros as the gradients of arguments that torch goes
    back to, and that have none.
    """
    returned, gradients = returned_by(trace), returned_by(joint).get("output", ())
    arguments = returned.get("flat_args", ())
    missing = [k for k, x in enumerate(gradients) if x is None and _is_trained(arguments[k])]
    if not missing or not any(map(updates, trace.bound_symbols)):
        return joint
    reached = _reached(trace, returned["output"])
    found = returning(joint, {})
    zeros = {k: _add_zeros(found, arguments[k]) for k in missing if arguments[k].name in reached}
    return returning(found, {"output": tuple(zeros.get(k, x) for k, x in enumerate(gradients))})


def _is_trained(x: object) -> bool:
    return is_differentiable(x) and bool(getattr(x, "requires_grad", False))


def _reached(trace: TraceCtx, results: Any) -> set[str]:
    """Return the names of the tensors that torch goes back to from these results, also through
    updates, to what was there before.
    """
    names = {x.name for x in tree_flatten(results)[0] if isinstance(x, TensorProxy)}
    for symbol in reversed([*_followed(trace)]):
        if any(is_differentiable(x) and x.name in names for x in symbol.flat_proxy_outs):
            names |= {x.name for x in symbol.flat_proxy_args if is_differentiable(x)}
    return names


def _followed(trace: TraceCtx) -> Iterator[BoundSymbol]:
    """Yield the primitives that autograd follows."""
    for symbol in trace.bound_symbols:
        if not detaches(symbol):
            yield from (prim for prim in primitives([symbol]) if _is_followed(prim))


def _is_followed(prim: BoundSymbol) -> bool:
    is_unseen = prim.sym.id is PrimIDs.COPY_ and not prim.kwargs.get("grad_enabled", True)
    return not is_unseen and not is_constant(prim)


def _add_zeros(joint: TraceCtx, x: TensorProxy) -> TensorProxy:
    """Add zeros like `x` to the end of a joint trace, which is in its backward."""
    zero = 0j if dtypes.is_complex_dtype(x.dtype) else 0.0
    with tracectx(joint):
        joint.push_scope([])
        found: TensorProxy = prims.full(x.shape, zero, device=x.device, dtype=x.dtype)
        added = joint.pop_scope()
    for symbol in added:
        symbol.tags.add(BoundSymbolTag.BACKWARD)
    joint.bound_symbols[-1:-1] = added
    return found
