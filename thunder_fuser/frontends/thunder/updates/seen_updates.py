"""In-place updates that autograd sees: which arguments they update, and whether autograd allows it.

Autograd sees an update where gradients are enabled, through any view except a detached one, if the
argument or the written value requires gradients. Eager code raises when a leaf is updated, or a
view that autograd cannot follow. A kernel would update it anyway, and others may have run before:
so all arguments of a call are checked before anything runs. The check is made at each call, since a
trace does not show which arguments are leaves.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from thunder.core import dtypes, update_aliases
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms import is_constant_for_vjp

from thunder_fuser.frontends.thunder.autograd.gradient_flags import detaches
from thunder_fuser.frontends.thunder.claims.targets import primitives
from thunder_fuser.frontends.thunder.updates.effects import effect


@dataclass
class _Walk:
    """State of a walk through a trace before `update_aliases` is inserted.

    memories  first tensor in the memory of a view or of the result of an update, by name
    trained   tensors, by their memory, that require gradients
    copies    results that torch copies, of calls that give views otherwise
    found     memories with updates that autograd sees, and whether the first is made by a view
    """

    trained: set[str]
    copies: Container[str]
    memories: dict[str, str] = field(default_factory=dict)
    found: dict[str, bool] = field(default_factory=dict)

    def take(self, symbol: BoundSymbol) -> None:
        if not symbol.flat_proxy_args:
            return
        first = symbol.flat_proxy_args[0].name
        memory = self.memories.get(first, first)
        is_update = update_aliases._is_inplace_op(symbol)
        if is_update and _is_seen(symbol) and any(map(self._requires_grad, symbol.flat_proxy_args)):
            self.trained.add(memory)
            self.found.setdefault(memory, first != memory)
        if is_update or self._gives_view(symbol):
            self.memories |= dict.fromkeys((x.name for x in symbol.flat_proxy_outs), memory)
        else:
            self._compute(symbol)

    def _gives_view(self, symbol: BoundSymbol) -> bool:
        if detaches(symbol) or not update_aliases._is_view_creation_op(symbol):
            return False
        return not any(x.name in self.copies for x in symbol.flat_proxy_outs)

    def _compute(self, symbol: BoundSymbol) -> None:
        """Note which results of a call require gradients."""
        for prim in primitives([symbol]):
            if any(map(self._requires_grad, prim.flat_proxy_args)) and not is_constant(prim):
                outs = (x for x in prim.flat_proxy_outs if isinstance(x, TensorProxy))
                self.trained |= {x.name for x in outs if dtypes.is_inexact_dtype(x.dtype)}

    def _requires_grad(self, x: Proxy) -> bool:
        return self.memories.get(x.name, x.name) in self.trained


def seen_updates(
    trace: TraceCtx, arguments: Sequence[object], copies: Container[str]
) -> dict[str, bool]:
    """Return the names of the arguments that are updated and whose updates autograd sees, of a
    trace before `update_aliases` is inserted; and whether a view of it is the first updated.
    `copies`: results that torch copies, of calls that give views otherwise.
    """
    tensors = [x for x in arguments if isinstance(x, TensorProxy)]
    walk = _Walk({x.name for x in tensors if x.requires_grad}, copies)
    for symbol in trace.bound_symbols:
        walk.take(symbol)
    return {x.name: walk.found[x.name] for x in tensors if x.name in walk.found}


def _is_seen(symbol: BoundSymbol) -> bool:
    """True if a symbol, or a subsymbol, is an in-place copy outside of `torch.no_grad()`."""
    copies = (p for p in primitives([symbol]) if p.sym.id is PrimIDs.COPY_)
    return any(copy.kwargs.get("grad_enabled", True) for copy in copies)


def is_constant(prim: BoundSymbol) -> bool:
    return detaches(prim) or bool(is_constant_for_vjp(prim))


# ---- the check


def _check(*tensors: torch.Tensor, through_views: Sequence[bool]) -> None:
    """Raise a RuntimeError, as eager code does, if autograd does not allow to update a tensor.
    `through_views`: for each whether the update is made through a view of it.
    """
    for x, is_viewed in zip(tensors, through_views, strict=True):
        if x._is_view():
            _check_view(x)
        if x.requires_grad and x.is_leaf:
            _refuse_leaf(is_view=is_viewed)


def _check_view(x: torch.Tensor) -> None:
    base, kinds = x._base, torch._C._autograd.CreationMeta
    made = torch._C._autograd._get_creation_meta(x)
    if made in (kinds.NO_GRAD_MODE, kinds.INFERENCE_MODE):
        raise RuntimeError(
            "A view was created in no_grad mode and is being modified inplace with grad mode "
            "enabled: make both the view and the update inside of torch.no_grad(), or neither"
        )
    if made != kinds.DEFAULT:
        raise RuntimeError(
            f"Output {x.output_nr} of {type(x.grad_fn).__name__} is a view and is being modified "
            "inplace: autograd does not follow updates of one of several views that one call "
            "returns, nor of one that a custom function returns; update the tensor that it is a "
            "view of, through a slice, or compute a new tensor"
        )
    if base is not None and base.requires_grad and base.is_leaf:
        _refuse_leaf(is_view=True)


def _refuse_leaf(*, is_view: bool) -> None:
    what = "a view of a leaf Variable" if is_view else "a leaf Variable"
    raise RuntimeError(f"{what} that requires grad is being used in an in-place operation.")


_symbol = effect("fuser_check_updates", _check)


def check_of_updates(tensors: Sequence[TensorProxy], through_views: Sequence[bool]) -> BoundSymbol:
    """Return the symbol that checks, when it is run, whether autograd allows these updates."""
    found: BoundSymbol = _symbol.bind(*tensors, through_views=tuple(through_views), output=None)
    return found
