"""A definition's graph under nvFuser's names: `fd.fusion`.

It is the definition's `ir.Fusion` with nvFuser's methods. nvFuser's inputs and outputs are methods;
the IR's are tuples. Here they are both: tuples of IR values that, called, return the handles that
the definition's operations take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thunder_fuser.frontends.definition.listing import kernels_of_definition, math_text
from thunder_fuser.ir import fusion as ir
from thunder_fuser.ir.printer import equal, structural_hash, to_python

if TYPE_CHECKING:
    from thunder_fuser.frontends.definition.recording.recorder import Recorder


class Values(tuple[Any, ...]):
    """IR values of one definition; calling the tuple returns a list of handles to them."""

    owner: Recorder

    def __call__(self) -> list[Any]:
        found: list[Any] = self.owner.handle(list(self))
        return found


@dataclass(frozen=True, eq=False)
class Fusion(ir.Fusion):
    """The graph of a definition. Equal to another one of the same structure, names aside."""

    def vals(self) -> list[Any]:
        """Handles to all inputs and computed values, in order."""
        found: list[Any] = self._owner.handle(list(self.values()))
        return found

    def print_math(self, from_outputs_only: bool = True) -> str:
        """Inputs, outputs, and one line per operation, as text.

        Without `from_outputs_only`, operations that no output depends on are shown too.
        """
        return math_text(self, from_outputs_only)

    def print_kernel(self, compile_params: object = None) -> str:
        """Source of the kernels for a GPU: that of the option `cuda_arch`, or an H200; for the
        sizes of the definition, and for large ones where it leaves some open.

        `compile_params` is nvFuser's and ignored.
        """
        return kernels_of_definition(self.plain)

    @property
    def plain(self) -> ir.Fusion:
        """The graph as an `ir.Fusion` without reference to a definition."""
        inputs, outputs = tuple(self.inputs), tuple(self.outputs)
        return ir.Fusion(inputs, self.exprs, outputs, self.updates, self.draws)

    @property
    def _owner(self) -> Recorder:
        assert isinstance(self.inputs, Values)
        return self.inputs.owner

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if isinstance(other, ir.Fusion) else NotImplemented

    def __hash__(self) -> int:
        return hash(structural_hash(self))

    def __repr__(self) -> str:
        return to_python(self)


def graph_of(fusion: ir.Fusion, owner: Recorder) -> Fusion:
    """The graph of `owner`; with a finished recorder, one that can only be inspected."""
    inputs, outputs = Values(fusion.inputs), Values(fusion.outputs)
    inputs.owner = outputs.owner = owner
    return Fusion(inputs, fusion.exprs, outputs, fusion.updates, fusion.draws)
