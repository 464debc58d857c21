"""Alias analysis of a whole trace: names of one tensor, and tensors that may share memory.

Thunder's traces have values; what torch runs has memory. `update_aliases` gives all aliases of a
memory new names before each operation on one of them, which orders reads and updates; an in-place
update gives its target another name. Views, and results that may be views, share their source's
memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.autograd import attention, convolution
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, renamed
from thunder_fuser.frontends.thunder.claims.targets import (
    is_copy_of_torch,
    is_method,
    targets,
)
from thunder_fuser.frontends.thunder.trace.call_facts import gives_view
from thunder_fuser.frontends.thunder.trace.origin import Recorded, results
from thunder_fuser.segment.regions.joint_graph import Role

WRITES = frozenset(
    {
        *("index_copy", "index_add", "index_fill", "index_reduce", "masked_scatter"),
        *("scatter", "scatter_add", "scatter_reduce"),
        *("addmm", "addmv", "addr", "addbmm", "baddbmm"),
    }
)
"""Functions of torch that write other arguments into a copy of the first one, and have a method
that writes into it, by their names in a trace.
"""

SETITEM = "copy_with_setitem_impl"
"""The same for `x[index] = value`."""

_GIVE_NEW_MEMORY = frozenset((*attention.NAMES, *convolution.NAMES, *WRITES, SETITEM))


class Aliases:
    """Maps from names to tensors, and from tensors to memories; both are identified by first names.

    updated  memories that an in-place update writes
    """

    def __init__(self, trace: TraceCtx, recorded: Recorded) -> None:
        self._tensors: dict[str, str] = {}
        self._memories: dict[str, str] = {}
        self._recorded = recorded
        # Sources of views and renamings; and results of these that torch returns as copies.
        self._sources: dict[str, Proxy] = {}
        self._owners: set[str] = set()
        written: list[str] = []
        for bsym in trace.bound_symbols:
            self._note(bsym)
            written += targets(bsym)
        self.updated = frozenset(map(self.memory, written))
        # By memory: tensors that the user holds after the forward (arguments and results).
        self._seen: dict[str, set[str]] = {}
        arguments = (
            out
            for bsym in trace.bound_symbols
            if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL
            for out in bsym.flat_proxy_outs
        )
        for proxy in (*arguments, *results(trace)):
            if isinstance(proxy, TensorProxy):
                self._seen.setdefault(self.memory(proxy.name), set()).add(self.tensor(proxy.name))

    def tensor(self, name: str) -> str:
        """Return the first name of the tensor."""
        return _root(self._tensors, name)

    def memory(self, name: str) -> str:
        """Return the first name of the first tensor in the memory that a tensor may lie in."""
        return _root(self._memories, self.tensor(name))

    def is_owner(self, prim: BoundSymbol) -> bool:
        """True if a view or renaming ends a call whose result torch allocates: Thunder decomposes
        `repeat` into views, and drops the rounding of integers.
        """
        return prim.flat_proxy_outs[0].name in self._owners

    def ends_call(self, prim: BoundSymbol) -> bool:
        """True for a copy that ends a call of the user's, whose other parts compute its source."""
        if TABLE[prim.sym.id].role is not Role.COPY or not prim.flat_proxy_args:
            return False
        return self._recorded.in_one_call(
            prim.flat_proxy_outs[0].name, prim.flat_proxy_args[0].name
        )

    def _is_owner(self, prim: BoundSymbol) -> bool:
        (new, old), *_ = _shown(prim)
        if TABLE[prim.sym.id].role is Role.UPDATE or not self._recorded.owns(new.name):
            return False
        # A source that the same call has computed is new memory anyway.
        while self._recorded.in_one_call(new.name, old.name):
            if old.name not in self._sources:
                return False
            old = self._sources[old.name]
        return True

    def matters(self, name: str) -> bool:
        """True if aliasing of a tensor is observable: an update writes to its memory, or the user
        holds several tensors there.
        """
        memory = self.memory(name)
        return memory in self.updated or len(self._seen.get(memory, ())) > 1

    def is_updated(self, name: str) -> bool:
        """True if an update anywhere in the trace writes to the memory of a tensor."""
        return bool(self.updated) and self.memory(name) in self.updated

    def looks_like_view(self, bsym: BoundSymbol) -> bool:
        """True if torch returns a view where the call's decomposition would copy, with other
        strides.
        """
        given = {p.name for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)}
        if not gives_view(bsym):
            return False
        outs = [out for out in bsym.flat_proxy_outs if isinstance(out, TensorProxy)]
        # A 0-dim tensor index may be gathered if aliasing of the result is not observable.
        if len(given) > 1 and not any(self.matters(out.name) for out in outs):
            return False
        return any(not self._is_window(bsym, out) for out in outs)

    def _is_window(self, bsym: BoundSymbol, out: Proxy) -> bool:
        """True if the call's decomposition computes the result `out` by views alone."""
        sources = {new.name: old.name for prim in flatten(bsym) for new, old in _shown(prim)}
        given = {p.name for p in bsym.flat_proxy_args}
        name = out.name
        while name not in given and name in sources:
            name = sources[name]
        return name in given

    def _note(self, bsym: BoundSymbol) -> None:
        claim = TABLE.get(bsym.sym.id)
        if claim is not None and not bsym.subsymbols:
            for new, old in _shown(bsym):
                self._sources[new.name] = old
                if self._is_owner(bsym):
                    self._owners.add(new.name)
                    continue
                same = claim.role is not Role.VIEW
                self._join(self._tensors if same else self._memories, new.name, old.name)
            return
        for part in bsym.subsymbols:
            self._note(part)
        if is_copy_of_torch(bsym):
            self._join(self._tensors, bsym.flat_proxy_outs[0].name, bsym.args[1].name)
        elif claim is None and is_method(bsym):
            self._join(self._tensors, bsym.flat_proxy_outs[0].name, bsym.flat_proxy_args[0].name)
        elif claim is None and (gives_view(bsym) or _is_unknown(bsym)):
            sources = [p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)]
            # Thunder's views alias their first argument; an unknown call may alias any.
            for old in sources[:1] if gives_view(bsym) else sources:
                for new in bsym.flat_proxy_outs:
                    if isinstance(new, TensorProxy):
                        self._join(self._memories, new.name, old.name)

    def _join(self, table: dict[str, str], new: str, old: str) -> None:
        if table is self._memories:
            new, old = self.memory(new), self.memory(old)
        else:
            # Two names of one tensor share its memory, too.
            self._join(self._memories, new, old)
            new, old = self.tensor(new), self.tensor(old)
        if new != old:
            table[new] = old


def _root(table: dict[str, str], name: str) -> str:
    while name in table:
        name = table[name]
    return name


def _shown(prim: BoundSymbol) -> Iterator[tuple[Proxy, Proxy]]:
    """Yield pairs of a claimed prim's result and the argument that it aliases."""
    match TABLE[prim.sym.id].role:
        case Role.VIEW:
            yield prim.flat_proxy_outs[0], prim.flat_proxy_args[0]
        case Role.RENAME:
            yield from renamed(prim)
        case Role.UPDATE:
            yield from ((out, prim.args[1]) for out in prim.flat_proxy_outs)


def _is_unknown(bsym: BoundSymbol) -> bool:
    """True if the aliasing of a symbol's results is unknown: it is no prim, and has no subsymbols.
    Results of attention, of convolutions and of writes into a copy are new memory.
    """
    is_known = isinstance(bsym.sym.id, PrimIDs) or bsym.sym.name in _GIVE_NEW_MEMORY
    return not bsym.subsymbols and not is_known
