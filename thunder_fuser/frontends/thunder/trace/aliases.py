"""Alias analysis of a whole trace: names of one tensor, and tensors that may share memory.

Thunder's traces have values; what torch runs has memory. `update_aliases` gives every tensor of a
memory a new name before each operation on one of them, which orders reads and updates; updates in
place give their target one more. Views, and what may be one, lie in the memory of their source.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.autograd import attention, convolution
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, renamed
from thunder_fuser.frontends.thunder.trace.origin import Recorded, gives_view, results
from thunder_fuser.segment.regions.joint_graph import Role

_GIVE_NEW_MEMORY = frozenset((*attention.NAMES, *convolution.NAMES))


def updates(bsym: BoundSymbol) -> bool:
    """Whether a symbol, or a part of it, writes into an existing tensor."""
    return any(True for _ in targets(bsym))


class Aliases:
    """Names as tensors, and tensors as memories, each by the first name that it had.

    updated  memories that an update in place writes
    """

    def __init__(self, trace: TraceCtx, recorded: Recorded) -> None:
        self._tensors: dict[str, str] = {}
        self._memories: dict[str, str] = {}
        self._recorded = recorded
        # What views and renamings are made of, and results of them that are copies all the same.
        self._sources: dict[str, Proxy] = {}
        self._owners: set[str] = set()
        written: list[str] = []
        for bsym in trace.bound_symbols:
            self._note(bsym)
            written += targets(bsym)
        self.updated = frozenset(map(self.memory, written))
        # By memory: tensors that the user has when the forward is over.
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
        """The first name of the same tensor."""
        return _root(self._tensors, name)

    def memory(self, name: str) -> str:
        """The first tensor in the memory that a tensor may lie in."""
        return _root(self._memories, self.tensor(name))

    def is_owner(self, prim: BoundSymbol) -> bool:
        """Whether a primitive that moves no data ends a call whose result is new memory: Thunder
        repeats by views, and leaves out what rounds whole numbers.
        """
        return prim.flat_proxy_outs[0].name in self._owners

    def _is_owner(self, prim: BoundSymbol) -> bool:
        (new, old), *_ = _shown(prim)
        if TABLE[prim.sym.id].role is Role.UPDATE or not self._recorded.owns(new.name):
            return False
        # What the call has computed before is new anyway.
        while self._recorded.in_one_call(new.name, old.name):
            if old.name not in self._sources:
                return False
            old = self._sources[old.name]
        return True

    def matters(self, name: str) -> bool:
        """Whether anybody can tell a tensor from another one with its elements: because an update
        writes into its memory, or because the user has several tensors that lie there.
        """
        memory = self.memory(name)
        return memory in self.updated or len(self._seen.get(memory, ())) > 1

    def is_updated(self, name: str) -> bool:
        """Whether an update writes into the memory of a tensor, somewhere in the trace."""
        return bool(self.updated) and self.memory(name) in self.updated

    def looks_like_view(self, bsym: BoundSymbol) -> bool:
        """Whether torch gives a view where the parts of a call would copy, to other strides."""
        given = {p.name for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)}
        if not gives_view(bsym):
            return False
        outs = [out for out in bsym.flat_proxy_outs if isinstance(out, TensorProxy)]
        # A number in a tensor is gathered where nobody can tell.
        if len(given) > 1 and not any(self.matters(out.name) for out in outs):
            return False
        return any(not self._is_window(bsym, out) for out in outs)

    def _is_window(self, bsym: BoundSymbol, out: Proxy) -> bool:
        """Whether a call gives a result by views alone."""
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
        if claim is None and (gives_view(bsym) or _is_unknown(bsym)):
            sources = [p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)]
            # Thunder's views look at their first argument; nobody knows about others.
            for old in sources[:1] if gives_view(bsym) else sources:
                for new in bsym.flat_proxy_outs:
                    if isinstance(new, TensorProxy):
                        self._join(self._memories, new.name, old.name)

    def _join(self, table: dict[str, str], new: str, old: str) -> None:
        if table is self._memories:
            new, old = self.memory(new), self.memory(old)
        else:
            # Two tensors that turn out to be one share their memory, too.
            self._join(self._memories, new, old)
            new, old = self.tensor(new), self.tensor(old)
        if new != old:
            table[new] = old


def _root(table: dict[str, str], name: str) -> str:
    while name in table:
        name = table[name]
    return name


def _shown(prim: BoundSymbol) -> Iterator[tuple[Proxy, Proxy]]:
    """Results of a claimed primitive, and the arguments whose memory they lie in."""
    match TABLE[prim.sym.id].role:
        case Role.VIEW:
            yield prim.flat_proxy_outs[0], prim.flat_proxy_args[0]
        case Role.RENAME:
            yield from renamed(prim)
        case Role.UPDATE:
            yield from ((out, prim.args[1]) for out in prim.flat_proxy_outs)


def targets(bsym: BoundSymbol) -> Iterator[str]:
    """Names of what a symbol, or a part of it, updates."""
    claim = TABLE.get(bsym.sym.id)
    if claim is not None and claim.role is Role.UPDATE:
        yield bsym.args[1].name
    elif claim is None and not bsym.subsymbols and OpTags.IN_PLACE in (bsym.sym.tags or ()):
        yield from (p.name for p in bsym.flat_proxy_args[:1])
    for part in bsym.subsymbols:
        yield from targets(part)


def _is_unknown(bsym: BoundSymbol) -> bool:
    """Whether nobody here knows what a symbol does to memory: no primitive, and without parts.
    What attention and convolutions give is new.
    """
    is_known = isinstance(bsym.sym.id, PrimIDs) or bsym.sym.name in _GIVE_NEW_MEMORY
    return not bsym.subsymbols and not is_known
