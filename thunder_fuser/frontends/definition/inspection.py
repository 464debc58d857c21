"""Inspection of a definition: its graph, its plans, the source of its kernels, and scripts that run
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition.executor_cache import FusionExecutorCache
from thunder_fuser.frontends.definition.graph import Fusion, graph_of
from thunder_fuser.frontends.definition.listing import math_text
from thunder_fuser.frontends.definition.operations.arguments import named_sizes
from thunder_fuser.frontends.definition.recording.recorder import Recorder
from thunder_fuser.frontends.definition.scripts import reproduction
from thunder_fuser.segment.plan import SegmentedFusion


class Inspection(Recorder, ABC):
    """A definition that can be inspected. Nothing here runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.fake_inputs: list[Any] | None = None
        """Inputs of `execute(save_repro_inputs=True)` as fake tensors; None before such a call."""

    @property
    @abstractmethod
    def compiled(self) -> CompiledFusion:
        """The callable behind `execute`; reading it finishes the definition."""

    @abstractmethod
    def _executor_cache(self) -> FusionExecutorCache:
        """The executor cache of the finished definition."""

    @property
    def fusion(self) -> Fusion:
        """The fusion as defined so far."""
        return graph_of(self._builder.build(), self)

    def plan(
        self, inputs: Sequence[Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> SegmentedFusion:
        """The execution plan: kernels, bytes, boundary tensors.

        Inputs (fake tensors will do) give the sizes that the definition leaves open. Without
        inputs: the plan of the last call. Before the first call, or with `sizes`, bytes are
        formulas in the open sizes, and the plan is made for `sizes`, keyed as in the plan's text,
        or for large sizes: see `CompiledFusion.plan`.
        """
        named = None if sizes is None else named_sizes(sizes)
        compiled = self.compiled
        if inputs is None and sizes is None and compiled.latest is not None:
            return compiled.latest.plan
        return compiled.plan(None if inputs is None else self._completed(inputs), named)

    def kernels(self, inputs: Sequence[Any]) -> tuple[Kernel, ...]:
        """The kernels for such inputs, as source text; compiles nothing."""
        return self._executor_cache().kernels(inputs)

    def cuda_code_for(
        self,
        inputs: Sequence[Any],
        intrinsic_code: bool = False,
        override_user_schedule: bool = False,
    ) -> str:
        """Source of these kernels; with `intrinsic_code` also the headers that they include."""
        return self._executor_cache().get_cuda_kernel(inputs, intrinsic_code)

    def last_cuda_code(
        self, intrinsic_code: bool = False, override_user_schedule: bool = False
    ) -> str:
        """Source of the kernels compiled last; FuserError before the first call."""
        return self._executor_cache().last_cuda_code(intrinsic_code)

    def fusion_ir(self) -> str:
        """The operations as defined, before any pass."""
        return math_text(self.fusion)

    def scheduled_fusion_ir_for(
        self,
        inputs: Sequence[Any],
        tensor_transforms: bool = False,
        override_user_schedule: bool = False,
    ) -> str:
        """The plan for such inputs, its launches, and the operations after the passes.

        With `tensor_transforms` also the domain transforms of each tensor.
        """
        return self._executor_cache().get_scheduled_ir(inputs, tensor_transforms)

    def last_scheduled_fusion_ir(
        self, tensor_transforms: bool = False, override_user_schedule: bool = False
    ) -> str:
        """`scheduled_fusion_ir_for` the inputs compiled last; FuserError before the first call."""
        return self._executor_cache().get_most_recent_scheduled_ir(tensor_transforms)

    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """A script that defines the fusion and, given inputs, runs it on random ones like these."""
        flat = None if inputs is None else self._completed(inputs)
        return reproduction(self.compiled.fusion, flat)

    getReproString = repro_script_for

    def last_repro_script(self) -> str:
        """The script for the last `execute(inputs, save_repro_inputs=True)`."""
        if self.fake_inputs is None:
            raise FuserError("no inputs are kept: call execute(inputs, save_repro_inputs=True)")
        return self.repro_script_for(self.fake_inputs)

    def _completed(self, inputs: Sequence[Any]) -> list[Any]:
        """Flat inputs of a query, completed by a placeholder RNG state; nothing is drawn."""
        return self._executor_cache().completed(inputs)
