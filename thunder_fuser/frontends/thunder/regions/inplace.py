"""In-place updates in regions, where tensors are functional values.

The update of a region's input is an output of the fusion. The update of a tensor that the region
defines is a new value, which later readers of the tensor read.  A fusion cannot express that an
alias of the updated tensor changes, too: a region ends before such a use.
"""

from __future__ import annotations

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, motion, operands
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.segment.regions.joint_graph import Role


class Memory:
    """Tracks the tensors and memories that the current region reads, defines and updates."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self.begin()

    def begin(self) -> None:
        """Start a new region."""
        self._made: set[str] = set()
        self._views: set[str] = set()
        # By memory: tensors there that the region reads or updates but does not define.
        self._given: dict[str, set[str]] = {}
        # Memories with a reshape, which torch copies if strides do not allow a view.
        self._reshaped: set[str] = set()
        # By updated memory: tensors whose values in the region are up to date.
        self._fresh: dict[str, set[str]] = {}

    def accepts(self, bsym: BoundSymbol) -> bool:
        """Add a fusible symbol; False if the region has to end before it."""
        # Only in-place updates end regions here.
        return not self._aliases.updated or all(self._accepts(prim) for prim in flatten(bsym))

    def _accepts(self, prim: BoundSymbol) -> bool:
        role = TABLE[prim.sym.id].role
        if role is Role.RENAME and not self._aliases.is_owner(prim):
            return True
        read = [p for p in operands(prim) if isinstance(p, TensorProxy)]
        if role is Role.UPDATE:
            read = [p for p in read if p.name != prim.args[1].name or p.name == prim.args[0].name]
        if not all([self._reads(p.name) for p in read]):  # noqa: C419 (all of them are read)
            return False
        if role is Role.UPDATE:
            return self._updates(prim.args[1].name)
        for out in prim.flat_proxy_outs:
            tensor = self._aliases.tensor(out.name)
            self._made.add(tensor)
            if role is Role.VIEW and not self._aliases.is_owner(prim):
                self._views.add(tensor)
                if motion(prim).may_copy:
                    self._reshaped.add(self._aliases.memory(out.name))
                self._fresh.get(self._aliases.memory(out.name), set()).add(tensor)
        return True

    def _reads(self, name: str) -> bool:
        """Note a read; True if the region's value of the tensor is up to date."""
        tensor, memory = self._aliases.tensor(name), self._aliases.memory(name)
        if tensor not in self._made:
            self._given.setdefault(memory, set()).add(tensor)
        fresh = self._fresh.get(memory)
        return fresh is None or tensor in fresh

    def _updates(self, name: str) -> bool:
        """Note an update; True if the region can do it. The region's value of the tensor must be up
        to date, the tensor must be no view made in the region, the region must not read the same
        memory as another tensor, and not reshape it, as that may be a copy.
        """
        tensor, memory = self._aliases.tensor(name), self._aliases.memory(name)
        if tensor in self._views or memory in self._reshaped or not self._reads(name):
            return False
        if self._given.get(memory, set()) - {tensor}:
            return False
        self._fresh[memory] = {tensor}
        return True
