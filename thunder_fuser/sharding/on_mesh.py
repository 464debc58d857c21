"""A fusion on a mesh: programs of its ranks, compiled on first use.

Every rank has a fusion of its own (localise.py), which is compiled as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.rebuild import Rebuild
from thunder_fuser.ir.tables.collectives import Communicator, communicating
from thunder_fuser.runtime.binding.sizes import bind_sizes
from thunder_fuser.runtime.fork import Lock
from thunder_fuser.sharding.annotations import Placed, annotated
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import DeviceMesh, Placement
from thunder_fuser.sharding.propagate import propagate
from thunder_fuser.sharding.rank_program import RankProgram, agree
from thunder_fuser.sharding.recent import Recent
from thunder_fuser.sharding.shardings import Shardings

Annotations = Mapping[TensorView, Callable[[Sequence[int]], Mapping[str, Placement]]]
"""For annotated tensors of a fusion, functions from their global sizes to placements by names of
mesh axes."""


_KNOWN = 4096
"""Most kinds of inputs that ranks remember to have agreed on."""


class _Placed:
    """Shardings for one choice of sizes, and cached programs of ranks."""

    def __init__(self, shardings: Shardings) -> None:
        self.shardings = shardings
        self._programs: dict[int, RankProgram] = {}
        self._lock = Lock()

    def program(self, rank: int) -> RankProgram:
        with self._lock:
            if rank not in self._programs:
                fusion = localise(self.shardings, rank)
                self._programs[rank] = RankProgram(fusion, name="sharded")
            return self._programs[rank]


class FusionOnMesh:
    """A fusion, possibly with open sizes, with the user's annotations of its tensors."""

    def __init__(self, fusion: Fusion, mesh: DeviceMesh, annotations: Annotations) -> None:
        self.fusion = fusion
        self.mesh = mesh
        self.annotations = annotations
        self.latest: Shardings | None = None
        self._placed = Recent[_Placed]()
        # Apart from the programs, which a rank may also make alone, to look at their plans.
        self._agreed: WeakKeyDictionary[Communicator, Recent[bool]] = WeakKeyDictionary()

    def shardings(self, whole: Sequence[Any] = ()) -> Shardings:
        """Return the placements of all tensors. `whole`: inputs with global sizes, of which only
        these are read; not needed without open sizes.

        Raises FuserValueError for annotations that do not fit, see `propagate`.
        """
        if not whole and not self.fusion.is_static:
            raise FuserValueError(
                "the definition leaves sizes open, and placements depend on them: pass inputs "
                "(fake tensors will do), as large as they are on all devices together"
            )
        self.latest = self._of_sizes(whole).shardings
        return self.latest

    def _of_sizes(self, whole: Sequence[Any]) -> _Placed:
        sizes = {} if self.fusion.is_static else bind_sizes(self.fusion, whole)
        values = {form.variables()[0]: size for form, size in sizes.items()}
        return self._placed.get(tuple(sizes.values()), lambda: _Placed(self._propagated(values)))

    def _propagated(self, values: Mapping[Any, int]) -> Shardings:
        """Return the shardings for given values of the open sizes."""
        names = {variable.name: size for variable, size in values.items()}
        new = Rebuild(
            self.fusion,
            lambda extent: extent if isinstance(extent, int) else extent.evaluate(names),
        )
        for expr in self.fusion.exprs:
            new.copy(expr)
        static = new.finish(self.fusion)
        asked = {}
        for tensor, place in self.annotations.items():
            found = new.tensor(tensor)
            asked[found] = place(found.sizes)
        return propagate(static, self.mesh, asked)

    def program(self, rank: int, whole: Sequence[Any] = ()) -> RankProgram:
        """Return the program of one rank, which takes its shard of each input."""
        self.shardings(whole)
        return self._of_sizes(whole).program(rank)

    def run(
        self,
        inputs: Sequence[Any],
        whole: Sequence[Any],
        rank: int,
        communicator: Communicator | None,
    ) -> list[torch.Tensor]:
        """Compute a rank's shards of the outputs from its shards of the inputs. A collective: every
        rank calls it. Raises FuserTypeError for tensor inputs that are no tensors; FuserError if
        the ranks' inputs are no shards of the same tensors, at the first call with such inputs.
        """
        if communicator is None:
            self._check(inputs)
            return self.program(rank, whole)(inputs)
        sizes = tuple(tuple(x.shape) for x in whole if isinstance(x, torch.Tensor))

        def prepare() -> str:
            self._check(inputs)
            program = self.program(rank, whole)
            program.prepare(inputs)
            return told(self.shardings(whole), whole, program)

        def agreed() -> bool:
            agree(communicator, self.mesh, inputs, prepare)
            return True

        self._agreed.setdefault(communicator, Recent(_KNOWN)).get(sizes, agreed)
        program = self.program(rank, whole)
        with communicating(communicator):
            return program(inputs)

    def _check(self, inputs: Sequence[Any]) -> None:
        for k, (value, x) in enumerate(zip(self.fusion.inputs, inputs, strict=False)):
            if isinstance(value, TensorView) and not isinstance(x, torch.Tensor):
                raise FuserTypeError(
                    f"input {k}, {value.name}: expected the tensor that this rank has, got "
                    f"{type(x).__name__}"
                )


def told(shardings: Shardings, whole: Sequence[Any], program: RankProgram) -> str:
    """Return what a rank tells the others of a program: names and global sizes of the inputs that
    are tensors, its collectives, and the whole program with its placements.
    """
    pairs = zip(shardings.fusion.inputs, whole, strict=False)
    found = [f"{v.name} {list(x.shape)}" for v, x in pairs if isinstance(x, torch.Tensor)]
    return ", ".join([*found, program.digest, shardings.digest])


def placed_on(fusion: Fusion, mesh: DeviceMesh, placed: Placed, whole: Sequence[Any]) -> Shardings:
    """Return the shardings of a fusion with annotations by names of its inputs. `whole` gives its
    open sizes, see `FusionOnMesh.shardings`.
    """
    static = FusionOnMesh(fusion, mesh, {}).shardings(whole).fusion
    found = annotated({t.name: t for t in static.tensor_inputs}, mesh, placed)
    named = {t: dict(zip(mesh.names, s, strict=True)) for t, s in found.items()}
    return propagate(static, mesh, named)
