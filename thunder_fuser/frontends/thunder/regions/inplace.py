"""Updates in place, in regions where every tensor is a value.

The update of a region's input is an output of the fusion, the update of a tensor that the region
makes is a new value, and whoever reads the tensor afterwards gets it.  What a fusion cannot say is
that another tensor in the same memory changes, too.  A region ends before that.
"""

from __future__ import annotations

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, motion, operands
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.segment.regions.joint_graph import Role


class Memory:
    """What the present region reads and updates, tensor by tensor."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self.begin()

    def begin(self) -> None:
        """A new region begins."""
        self._made: set[str] = set()
        self._views: set[str] = set()
        # By memory: tensors there that the region reads or updates and did not make.
        self._given: dict[str, set[str]] = {}
        # Memories that were reshaped: where strides do not allow a view, torch has copied them.
        self._reshaped: set[str] = set()
        # By memory that was updated: tensors that show what it holds now.
        self._fresh: dict[str, set[str]] = {}

    def accepts(self, bsym: BoundSymbol) -> bool:
        """Add a fusible symbol; False if the region has to end before it."""
        # Nothing is refused before an update.
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
        """Whether the region knows what a tensor holds."""
        tensor, memory = self._aliases.tensor(name), self._aliases.memory(name)
        if tensor not in self._made:
            self._given.setdefault(memory, set()).add(tensor)
        fresh = self._fresh.get(memory)
        return fresh is None or tensor in fresh

    def _updates(self, name: str) -> bool:
        """Whether the region can update a tensor: its own values must show it, no kernel may read
        the same memory as another tensor, and what may be a copy comes before the region.
        """
        tensor, memory = self._aliases.tensor(name), self._aliases.memory(name)
        if tensor in self._views or memory in self._reshaped or not self._reads(name):
            return False
        if self._given.get(memory, set()) - {tensor}:
            return False
        self._fresh[memory] = {tensor}
        return True
