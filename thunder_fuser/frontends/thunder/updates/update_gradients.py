"""Gradients of in-place updates, whichever view of the memory they are made and read through.

A trace has values. After an update of one view Thunder records `update_aliases`, whose results are
the new values of all tensors in that memory. Its grad transform treats each of them as the old
value, so what is read through another view than the updated one had the gradient of before the
update.

Here the memory itself is the variable. The gradients of all views are summed in the layout of the
first tensor in the memory (the root), which gives the gradient of the root's new value. Its part
inside the updated view is the gradient of the written value; the rest is the gradient of the root's
old value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims, transforms, update_aliases
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.autograd.gradient_flags import differentiating
from thunder_fuser.frontends.thunder.claims.targets import primitives
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.updates.overwritten_arguments import (
    with_zeros_of_overwritten,
)
from thunder_fuser.frontends.thunder.updates.updated_arguments import (
    COPIES,
    returned_by,
    with_updated_results,
)

_original: Callable[..., Sequence[TensorProxy]] = transforms._grad_fn_map[PrimIDs.UPDATE_ALIASES]


def _slice_back(gradient: TensorProxy, view: BoundSymbol) -> TensorProxy:
    x, start, _, *given = view.args
    if 0 in gradient.shape:
        return ltorch.zeros_like(x)
    strides = given[0] if given and given[0] is not None else (1,) * x.ndim
    padding = [
        (low, extent - low - (n - 1) * step - 1, step - 1)
        for low, step, n, extent in zip(start, strides, gradient.shape, x.shape, strict=True)
    ]
    padded: TensorProxy = prims.pad(gradient, _zero(gradient), padding)
    return padded


def _transpose_back(gradient: TensorProxy, view: BoundSymbol) -> TensorProxy:
    order: Sequence[int] = view.args[1]
    return ltorch.permute(gradient, tuple(order.index(k) for k in range(len(order))))


def _reshape_back(gradient: TensorProxy, view: BoundSymbol) -> TensorProxy:
    return ltorch.reshape(gradient, view.args[0].shape)


def _broadcast_back(gradient: TensorProxy, view: BoundSymbol) -> TensorProxy:
    x, _, own = view.args
    kept = {k for j, k in enumerate(own) if x.shape[j] == gradient.shape[k]}
    if summed := tuple(k for k in range(gradient.ndim) if k not in kept):
        gradient = ltorch.sum(gradient, summed, keepdim=True)
    return _reshape_back(gradient, view)


_BACK: Mapping[object, Callable[[TensorProxy, BoundSymbol], TensorProxy]] = {
    PrimIDs.SLICE: _slice_back,
    PrimIDs.TRANSPOSE: _transpose_back,
    PrimIDs.SQUEEZE: _reshape_back,
    PrimIDs.RESHAPE: _reshape_back,
    PrimIDs.BROADCAST_IN_DIM: _broadcast_back,
    PrimIDs.SHALLOW_COPY: _reshape_back,
    PrimIDs.STRIDE_ORDER: _reshape_back,
}
"""Gradient of a view's operand, zeros where the view does not reach, by primitive."""


def _zero(like: TensorProxy) -> complex | float:
    return 0j if dtypes.is_complex_dtype(like.dtype) else 0.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a tensor in memory.

    root   name of the tensor that is the memory
    views  by which the tensor is seen, from the root on
    """

    root: str
    views: tuple[BoundSymbol, ...]

    def taken(self, gradient: TensorProxy) -> TensorProxy:
        """Return the part of the root's gradient that lies in this tensor."""
        for view in self.views:
            gradient = view.sym(gradient, *view.args[1:])
        return gradient

    def put_back(self, gradient: TensorProxy) -> TensorProxy:
        """Return a tensor like the root: this one's gradient where it lies, zeros elsewhere."""
        for view in reversed(self.views):
            gradient = _BACK[view.sym.id](gradient, view)
        return gradient


@dataclass(frozen=True, slots=True)
class _Alias:
    """A tensor that `update_aliases` gives a new value.

    update    the in-place copy that `old` is the result of, if it is one
    gradient  of the new value
    """

    old: TensorProxy
    place: _Place
    update: BoundSymbol | None
    gradient: TensorProxy

    @property
    def is_written(self) -> bool:
        """True if `old` is what an update has written, and autograd is told."""
        return self.update is not None and bool(self.update.kwargs.get("grad_enabled", True))


class _History:
    """Producers of the tensors of a trace, by primitives."""

    def __init__(self, trace: TraceCtx) -> None:
        symbols = primitives(trace.bound_symbols)
        self._producers = {x.name: s for s in symbols for x in s.flat_proxy_outs}
        # What torch allocates, though it be composed of views, such as `repeat`.
        computed = (s for s in trace.bound_symbols if not update_aliases._is_view_creation_op(s))
        self._copies = {x.name for s in computed for x in s.flat_proxy_outs}
        self._copies.update(returned_by(trace).get(COPIES, ()))

    def aliases(
        self, tensors: Sequence[TensorProxy], gradients: Sequence[TensorProxy]
    ) -> list[_Alias]:
        """Return tensors with their places, of which those in one memory have a common root."""
        firsts = [self._first_name(x.name) for x in tensors]
        found = []
        for x, first, gradient in zip(tensors, firsts, gradients, strict=True):
            made = self._producers.get(x.name)
            update = made if made is not None and made.sym.id is PrimIDs.COPY_ else None
            found.append(_Alias(x, self._place(first, set(firsts)), update, gradient))
        return found

    def _first_name(self, name: str) -> str:
        """Return the name of a tensor before all updates of its memory."""
        while (maker := self._producers.get(name)) is not None:
            if maker.sym.id is PrimIDs.UPDATE_ALIASES:
                names = [x.name for x in maker.flat_proxy_outs]
                name = maker.flat_proxy_args[names.index(name)].name
            elif maker.sym.id is PrimIDs.COPY_:
                name = maker.args[1].name
            else:
                break
        return name

    def _view(self, name: str) -> BoundSymbol | None:
        """Return the primitive that a tensor is made by if it is a view."""
        maker = self._producers.get(name)
        is_view = maker is not None and maker.sym.id in _BACK and name not in self._copies
        return maker if is_view else None

    def _place(self, name: str, known: set[str]) -> _Place:
        """Return the place of a tensor in the first of the `known` ones that it is a view of."""
        found = _Place(name, ())
        views: tuple[BoundSymbol, ...] = ()
        while (maker := self._view(name)) is not None:
            views = (maker, *views)
            name = self._first_name(maker.args[0].name)
            if name in known:
                found = _Place(name, views)
        return found


_history: ContextVar[_History | None] = ContextVar("history", default=None)


def _update_aliases(tensors: Sequence[TensorProxy]) -> Sequence[TensorProxy]:
    """Grad transform of `update_aliases`."""
    history = _history.get()
    if history is None or not is_patched():
        theirs: Sequence[TensorProxy] = _original(tensors)
        return theirs
    results: Sequence[TensorProxy] = prims.update_aliases(tensors)
    aliases = history.aliases(tensors, [get_grad(result) for result in results])
    for root in dict.fromkeys(alias.place.root for alias in aliases):
        _put_gradients([alias for alias in aliases if alias.place.root == root])
    return results


def _put_gradients(aliases: Sequence[_Alias]) -> None:
    """Put the gradients of the old values of tensors in one memory."""
    written = next((alias for alias in aliases if alias.is_written), None)
    if written is None:
        for alias in aliases:
            # Autograd does not see an update without gradients: it has that of the value before.
            put_grad(alias.old if alias.update is None else alias.update.args[1], alias.gradient)
        return
    of_root, *others = (alias.place.put_back(alias.gradient) for alias in aliases)
    for other in others:
        of_root = ltorch.add(of_root, other)
    put_grad(written.old, written.place.taken(of_root))
    root = next((alias for alias in aliases if not alias.place.views), None)
    if root is not None and root is not written:
        is_written = written.place.put_back(ltorch.ones_like(written.gradient))
        put_grad(root.old, ltorch.where(is_written != 0, _zero(of_root), of_root))


def _on_trace(
    original: Callable[..., TraceCtx], trace: TraceCtx, /, *args: Any, **kwargs: Any
) -> TraceCtx:
    """Differentiate a trace, whose history grad transforms may ask."""
    if is_patched():
        trace = with_updated_results(trace)
    token = _history.set(_History(trace))
    try:
        with differentiating(trace):
            found = original(trace, *args, **kwargs)
    finally:
        _history.reset(token)
    if is_patched():
        found.bound_symbols = [_unseen(_of_a_shape(s)) for s in found.bound_symbols]
        found = with_zeros_of_overwritten(trace, found)
    return found


def _of_a_shape(symbol: BoundSymbol) -> BoundSymbol:
    """Return a symbol whose zeros have a shape, which may be `()`. Thunder gives the gradient of
    what no result depends on as zeros of sizes, and torch makes none of no sizes.
    """
    if symbol.sym != ltorch.zeros or symbol.args:
        return symbol
    zero = _zero(symbol.output)
    return prims.full.bind((), zero, **symbol.kwargs, output=symbol.output).from_bsym(
        tags=symbol.tags
    )


def _unseen(symbol: BoundSymbol) -> BoundSymbol:
    """Return a symbol whose in-place copies leave autograd to the results of the call. Otherwise
    torch would ask whether a view is a leaf, as all are that are made without gradients.
    """
    if symbol.sym.id is PrimIDs.COPY_:
        return symbol.from_bsym(kwargs={**symbol.kwargs, "grad_enabled": False})
    if symbol.subsymbols:
        return symbol.from_bsym(subsymbols=[*map(_unseen, symbol.subsymbols)])
    return symbol


def register() -> None:
    """Patch Thunder's grad transforms."""
    transforms.register_grad(PrimIDs.UPDATE_ALIASES, _update_aliases)
    autodiff.grad_transform_on_trace = partial(_on_trace, autodiff.grad_transform_on_trace)
