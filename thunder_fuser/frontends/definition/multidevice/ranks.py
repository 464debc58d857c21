"""A definition on a mesh: the program of each rank, on local shards or on DTensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.frontends.definition.multidevice.api import (
    LoopDomain,
    common_mesh,
    this_rank,
    whole_inputs,
)
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.sharding.communicators import process_groups
from thunder_fuser.sharding.on_mesh import FusionOnMesh
from thunder_fuser.sharding.shardings import Shardings

if TYPE_CHECKING:
    from thunder_fuser.sharding.dtensors import DTensorPrograms


class Ranks:
    """A fusion, the loop domains that its user gave to tensors, and the programs made of both.

    latest         placements of the last call; None before
    with_dtensors  programs for DTensors; None before the first such call
    """

    def __init__(self, fusion: Fusion, loops: Mapping[TensorView, LoopDomain]) -> None:
        self.fusion = fusion
        self.loops = loops
        self.latest: Shardings | None = None
        self._on_mesh: FusionOnMesh | None = None
        self.with_dtensors: DTensorPrograms | None = None

    @property
    def on_mesh(self) -> FusionOnMesh:
        """The fusion on the mesh of its tensors; FuserValueError if they have none, or several."""
        if self._on_mesh is None:
            mesh = common_mesh(self.loops)
            if mesh is None:
                raise FuserValueError(
                    "no tensor of the definition has a mesh; give them one: "
                    "x.set_device_mesh(multidevice.DeviceMesh(torch.arange(n)))"
                )
            asked = {tensor: loops.placements for tensor, loops in self.loops.items()}
            self._on_mesh = FusionOnMesh(self.fusion, mesh, asked)
        return self._on_mesh

    def execute(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run this rank's program: its shards of the outputs from its shards of the inputs."""
        self._check_draws(inputs)
        mesh = self.on_mesh.mesh
        groups = None if mesh.size == 1 else process_groups(mesh)
        whole = whole_inputs(self.fusion, inputs, self.loops)
        self.latest = self.on_mesh.shardings(whole)
        return self.on_mesh.run(inputs, whole, this_rank(), groups)

    def execute_with_dtensors(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on DTensors and numbers; return DTensors."""
        from thunder_fuser.sharding import dtensors  # deferred: torch takes long to import its own

        self._check_draws(inputs)
        fusion, name = self.fusion, "execute_with_dtensors"
        dtensors.check_all_dtensors(inputs, name)
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        if len(inputs) != len(fusion.inputs) or len(tensors) != len(fusion.tensor_inputs):
            raise FuserValueError(
                f"the definition takes {len(fusion.inputs)} inputs, {len(fusion.tensor_inputs)} of "
                f"them tensors; got {len(inputs)} and {len(tensors)}"
            )
        if self.with_dtensors is None:
            self.with_dtensors = dtensors.DTensorPrograms(fusion, name)
        outputs = self.with_dtensors(inputs)
        self.latest = self.with_dtensors.latest
        return list(outputs)

    def _check_draws(self, inputs: Sequence[Any]) -> None:
        if self.fusion.draws and len(inputs) != len(self.fusion.inputs):
            raise FuserError(
                "random numbers on a mesh must be the same on every rank: give rng_seed and "
                "rng_offset to the operations that draw them"
            )
