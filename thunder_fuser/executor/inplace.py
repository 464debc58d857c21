"""Updates in place inside a region, where every tensor is a value.

The update of a region's input is an output of the fusion, and whoever reads the input after it gets
the new value.  Two things a fusion cannot say: the update of a tensor that it computes itself, and
that a view taken before an update shows the new elements after it.  A region ends before them.
"""

from __future__ import annotations

from thunder.core.symbol import BoundSymbol

from thunder_fuser.executor.claims.claim import Role
from thunder_fuser.executor.claims.table import TABLE, flatten


def updates(bsym: BoundSymbol) -> bool:
    """Whether a symbol, or a part of it, writes into an existing tensor."""
    claim = TABLE.get(bsym.sym.id)
    return (claim is not None and claim.role is Role.UPDATE) or any(map(updates, bsym.subsymbols))


class Memory:
    """Follows the tensors of a region that is being formed."""

    def __init__(self) -> None:
        self._computed: set[str] = set()
        self._base: dict[str, str] = {}
        self._stale: set[str] = set()

    def accepts(self, bsym: BoundSymbol) -> bool:
        """Add a fusible symbol; False if the region has to end before it."""
        return all(self._accepts(prim) for prim in flatten(bsym))

    def _accepts(self, prim: BoundSymbol) -> bool:
        read = [p.name for p in prim.flat_proxy_args]
        role = TABLE[prim.sym.id].role
        if any(name in self._stale for name in read):
            return False
        if role is Role.UPDATE:
            target = prim.args[1].name
            if target in self._computed or target in self._base:
                return False
            self._stale |= {view for view, base in self._base.items() if base == target}
        elif role is Role.VIEW:
            self._base[prim.output.name] = self._base.get(read[0], read[0])
        else:
            self._computed.add(prim.output.name)
        return True
