"""Changes of a computed tensor's shape in place: `x.unsqueeze_(0)`, `x.t_()`.

Torch gives the tensor object the shape of a view of its memory, for all who hold it. Here the
program's proxy becomes that view: it takes its name and shape, and what was recorded of it before
names a copy with the old ones. Refused are changes of tensors from outside, which would keep their
new shape after the call, and of those that a call has returned again (`x.add_(1)`, `x.float()`),
which have a proxy for each. For functions compiled with this executor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import thunder.torch as ltorch
from thunder.core.interpreter import get_interpreterruntimectx
from thunder.core.jit_ext import get_jit_ctx
from thunder.core.proxies import TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites import views
from thunder_fuser.frontends.thunder.patches.changes.shapes_changed import note_changed_shape
from thunder_fuser.frontends.thunder.patches.patched import UntraceableError
from thunder_fuser.frontends.thunder.patches.tensors.known_tensors import at_once
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known
from thunder_fuser.frontends.thunder.updates.tensor_identity import has_other_names

Function = Callable[..., Any]

_TRANSPOSE: Function = partial(views.transpose, ltorch.transpose)
_VIEWS: Mapping[str, Function] = {
    "squeeze": partial(views.squeeze, ltorch.squeeze),
    "unsqueeze": ltorch.unsqueeze,
    "t": ltorch.t,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _TRANSPOSE),
}
"""Methods that give a view of all elements; with an underscore, they change the tensor."""


def _changed(name: str, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Let a proxy become the view that `self.name(..)` gives, and return it."""
    known(f"{name}_")
    trace = get_tracectx()
    recorded = trace.peek_scope()
    place = next((k for k, symbol in enumerate(recorded) if _makes(symbol, self.name)), None)
    if place is None or type(self) is not TensorProxy or not is_static(self.shape):
        raise _refused(name, "it gives a tensor from outside, or of symbolic sizes, another shape")
    if has_other_names(self):
        raise _refused(name, "it gives another shape to a tensor that a call has returned again")
    # Keys by the name of the proxy, which changes: of its name in the program, such as "mask".
    named = get_jit_ctx()._proxy_swapmap
    name_of_old = named.pop(variableify(self), None)
    old = copy.copy(self)
    if name_of_old is not None:
        named[variableify(old)] = name_of_old
    swap = {variableify(self): old}
    for k, symbol in enumerate(recorded):
        if any(p.name == self.name for p in (*symbol.flat_proxy_args, *symbol.flat_proxy_outs)):
            recorded[k] = symbol.from_bsym_swap_proxies(swap)
    view = _VIEWS[name](old, *args, **kwargs)
    vars(self).update(vars(view))
    _forget_attributes(self)
    note_changed_shape(trace, place)
    return self


def _refused(name: str, reason: str) -> UntraceableError:
    return UntraceableError(
        f"{name}_ in a compiled function: {reason}; write the call that returns a view, such as "
        f"x = x.{name}(..)"
    )


def _makes(symbol: BoundSymbol, name: str) -> bool:
    return any(p.name == name for p in symbol.flat_proxy_outs)


def _forget_attributes(x: TensorProxy) -> None:
    """Forget attributes of a value that the program has read, such as its shape."""
    reference = get_interpreterruntimectx()._known_wrappers.get(id(x))
    wrapped = reference[0]() if reference is not None else None
    if wrapped is not None:
        wrapped.attribute_wrappers.clear()


def register() -> None:
    """Add the methods to Thunder's tensors."""
    METHODS.update({f"{name}_": at_once(partial(_changed, name)) for name in _VIEWS})
