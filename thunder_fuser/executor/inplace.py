"""Updates in place, in regions where every tensor is a value.

The update of a region's input is an output of the fusion, the update of a tensor that the region
makes is a new value, and whoever reads the tensor afterwards gets it.  What a fusion cannot say is
that another tensor in the same memory, a view, changes too.  A region ends before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core.symbol import BoundSymbol

from thunder_fuser.executor.claims.claim import Role
from thunder_fuser.executor.claims.table import TABLE, flatten


def updates(bsym: BoundSymbol) -> bool:
    """Whether a symbol, or a part of it, writes into an existing tensor."""
    return any(True for _ in _targets(bsym))


def overwritten(symbols: Sequence[BoundSymbol]) -> frozenset[str]:
    """Names of tensors that may lie in memory that an update in place writes.

    `symbols` are a whole trace in order, fused ones as primitives.
    """
    found = {name for bsym in symbols for name in _targets(bsym)}
    if not found:
        return frozenset()
    # Views before the update, and after it; a symbol that is not fused may give a view.
    for ordered in (symbols[::-1], symbols):
        for bsym in ordered:
            claim = TABLE.get(bsym.sym.id)
            if claim is None or claim.role in (Role.VIEW, Role.RENAME, Role.UPDATE):
                around = {p.name for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)}
                if around & found:
                    found |= around
    return frozenset(found)


def _targets(bsym: BoundSymbol) -> Iterator[str]:
    """Names of what a symbol, or a part of it, updates."""
    claim = TABLE.get(bsym.sym.id)
    if claim is not None and claim.role is Role.UPDATE:
        yield bsym.args[1].name
    for part in bsym.subsymbols:
        yield from _targets(part)


class Memory:
    """Which tensors share memory, over a whole trace, and what the present region did to them."""

    def __init__(self) -> None:
        self._base: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """A new region begins."""
        self._views: set[str] = set()
        # By the base that was updated: the names that show the new value.
        self._updated: dict[str, set[str]] = {}

    def accepts(self, bsym: BoundSymbol) -> bool:
        """Add a fusible symbol; False if the region has to end before it."""
        return all(self._accepts(prim) for prim in flatten(bsym))

    def _accepts(self, prim: BoundSymbol) -> bool:
        read = [p.name for p in prim.flat_proxy_args]
        for name in read:
            fresh = self._updated.get(self._base_of(name))
            if fresh is not None and name not in fresh:
                return False
        out = prim.flat_proxy_outs[0].name
        match TABLE[prim.sym.id].role:
            case Role.UPDATE:
                return self._update(prim.args[1].name, out)
            case Role.VIEW:
                self._views.add(out)
                self._base[out] = self._base_of(read[0])
            case Role.RENAME:
                base = self._base[out] = self._base_of(read[0])
                if base in self._updated:
                    self._updated[base].add(out)
        return True

    def _update(self, target: str, out: str) -> bool:
        base = self._base_of(target)
        if any(self._base_of(view) == base for view in self._views):
            return False
        self._base[out] = base
        self._updated.setdefault(base, set()).update((target, out))
        return True

    def _base_of(self, name: str) -> str:
        return self._base.get(name, name)
