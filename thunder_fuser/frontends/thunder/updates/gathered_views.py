"""Views in torch that a differentiated trace computes as copies: a diagonal, or a call that Thunder
does not decompose.

Thunder differentiates the parts of a call, and the parts of a diagonal gather its elements. An
update of such a view would be lost, and the view would not show later updates of its memory, so the
program is refused.
"""

from __future__ import annotations

from thunder.core import update_aliases
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.updates.layouts import is_whole_view
from thunder_fuser.frontends.thunder.updates.seen_updates import is_constant

_GATHERED = frozenset(
    {
        *("torch.diagonal", "torch.real", "torch.imag", "torch.view_as_real"),
        *("Tensor.as_strided", "Tensor.indices", "Tensor.values"),
    }
)


def refuse_updates_through_gathers(trace: TraceCtx) -> None:
    """Raise a NotImplementedError if memory that such a view shows is updated, through it or before
    it is read again.
    """
    last = {x.name: k for k, s in enumerate(trace.bound_symbols) for x in s.flat_proxy_args}
    memories: dict[str, str] = {}
    # By name of a tensor: of the call that makes it, or what it is a view of, a copy.
    gathered: dict[str, str] = {}
    for k, symbol in enumerate(trace.bound_symbols):
        if not symbol.flat_proxy_args:
            continue
        source = symbol.flat_proxy_args[0].name
        memory = memories.get(source, source)
        if update_aliases._is_inplace_op(symbol):
            lost = {name: call for name, call in gathered.items() if memories[name] == memory}
            for name, call in lost.items():
                if name == source or last.get(name, 0) > k:
                    raise NotImplementedError(
                        f"{symbol.sym.name} updates memory that a result of {call} shows, which "
                        f"gradients take for a copy. Compute a new tensor (torch.where) instead of "
                        f"the update, or pass detached tensors."
                    )
        if update_aliases._is_view_creation_op(symbol):
            # Without gradients, such as under `torch.no_grad()`, a call stays whole.
            is_one = symbol.sym.id in _GATHERED or is_whole_view(symbol)
            is_copy = is_one and not is_constant(symbol)
            maker = symbol.sym.name if is_copy else gathered.get(source)
            for x in symbol.flat_proxy_outs:
                if isinstance(x, TensorProxy):
                    memories[x.name] = memory
                    if maker is not None:
                        gathered[x.name] = maker
