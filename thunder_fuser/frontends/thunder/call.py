"""FusionCall: the callable that a trace calls for a fusion.

Nothing is compiled before the first call.  Arguments that kernels cannot read, such as a lazily
conjugated tensor or two that share memory, make the fusion run in torch, as eager code would.  So
does an internal error, with one warning; under the option `strict` it raises.  An error in a few
kernels replaces only these (`runtime/fallback.py`).  If the system lacks memory, disk or file
descriptors, or ends the compiler, a later call tries again.  No tensor is kept after its call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import current
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError, Refusal
from thunder_fuser.frontends.thunder import repro
from thunder_fuser.frontends.thunder.distributed.dtensors import FusionOnDTensors, has_dtensors
from thunder_fuser.frontends.thunder.regions.to_fusion import RegionProgram
from thunder_fuser.ir.fusion import Fusion, Val
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.binding.bind import bind
from thunder_fuser.runtime.binding.modes import is_forward_mode, is_transformed, wants_operations
from thunder_fuser.runtime.compilation.dynamic_sizes import Sizes
from thunder_fuser.runtime.fallback import (
    is_final,
    is_replaceable,
    warn_of_failure,
    warn_of_scarcity,
)
from thunder_fuser.runtime.random_state import with_seeds_in_memory
from thunder_fuser.runtime.scarcity import is_passing
from thunder_fuser.runtime.target import target_for
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.sharding.shardings import Shardings

logger = logging.getLogger(__name__)

_MOST_DOUBLINGS = 10
"""Failures for lack of resources after which the number of calls between attempts stays."""
_OF_NVFUSER = ("last_used", "last_inputs", "get_fd", "to_descriptors")


class KnownFusions:
    """Compiled fusions of a trace, by signature and by fusion: the layers of a model are equal
    fusions, which are built, planned and compiled once.

    sizes  sizes of the traced function that the trace is for; None if it has no others
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.sizes = sizes
        self.by_key: dict[Hashable, CompiledFusion] = {}


class FusionCall:
    """A fusion that runs on positional arguments and returns a list with all of its outputs.

    shardings  placements and collectives of the last call on DTensors
    """

    def __init__(
        self,
        name: str,
        program: RegionProgram,
        known: KnownFusions | None = None,
    ) -> None:
        """`known`: compiled fusions of the same trace."""
        self.name = name
        self.device = program.device
        self.compiled, self._fusion = _compiled(name, program, known or KnownFusions())
        self._program: RegionProgram | None = program
        # Calls that run in torch before the kernels are tried again: forever after a bug.
        self._pause: float = 0
        self._failures = 0
        self._replaced: tuple[Refusal, ...] = ()
        self.shardings: Shardings | None = None
        self._on_dtensors: FusionOnDTensors | None = None
        fusion = self.compiled.fusion
        updated = {u.value: fusion.inputs.index(u.target) for u in fusion.updates}
        self._updated = tuple(
            (k, updated[value]) for k, value in enumerate(fusion.outputs) if value in updated
        )

    @property
    def fusion(self) -> Fusion:
        """The fusion with names of this trace, equal to `compiled.fusion`."""
        if self._fusion is None:
            assert self._program is not None
            self._fusion = self._program.build()
        return self._fusion

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        if self._pause or wants_operations():
            self._pause = max(self._pause - 1, 0)
            return self._in_torch(inputs)
        if self._on_dtensors is not None and has_dtensors(inputs):
            return self._on_mesh(inputs)
        try:
            outputs = self.compiled(inputs, self.device)
        except Exception as error:
            return self._recover(inputs, error)
        return self._with_updated(inputs, outputs)

    def _with_updated(
        self, inputs: Sequence[Any], outputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the updated input itself as result of an in-place update, so that an update of
        the result reaches the input.
        """
        for k, source in self._updated:
            outputs[k] = inputs[source]
        return outputs

    def _on_mesh(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on DTensors. An error is raised, not replaced by torch: other ranks would wait in
        their collectives for this one.
        """
        if self._on_dtensors is None:
            self._on_dtensors = FusionOnDTensors(self.fusion, self.name)
        with torch.no_grad():
            outputs = self._on_dtensors(inputs)
        self.shardings = self._on_dtensors.programs.latest
        return self._with_updated(inputs, outputs)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without process groups, which cannot be copied or pickled."""
        return {**self.__dict__, "_fusion": self.fusion, "_program": None, "_on_dtensors": None}

    def plan(self) -> SegmentedFusion:
        """Return the plan that ran in the last call, or, before any call, that of dense inputs."""
        latest = self.compiled.latest
        return latest.plan if latest else self.compiled.dense_plan(self.device)

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels of `plan()` as source, for the device that the trace names."""
        if self.compiled.latest:
            return self.compiled.latest.kernels
        info = target_for(self.device).device_info(self.device)
        return tuple(found.kernel for found in generate_kernels(self.plan(), info).values())

    @property
    def in_torch(self) -> tuple[Refusal, ...]:
        """Reasons that segments of `plan()`, or all of them, fell back to torch: internal errors, a
        missing compiler.
        """
        latest = self.compiled.latest
        return self._replaced if self._pause or latest is None else latest.in_torch

    def names(self) -> dict[str, str]:
        """Map result names of `plan()`, which may be that of an equal fusion, to the trace's."""
        exprs = zip(self.compiled.fusion.exprs, self.fusion.exprs, strict=True)
        return {theirs.origin.result: ours.origin.result for theirs, ours in exprs}

    def owners(self) -> list[int]:
        """Return the owner of each output's memory, as a position among inputs, then outputs."""
        plan = self.plan()
        targets = {update.value: update.target for update in plan.fusion.updates}
        # Views of a tensor that is no output share its memory: the first of them is the owner.
        first: dict[Val, int] = {value: k for k, value in enumerate(plan.fusion.inputs)}
        return [
            first.setdefault(targets.get(t) or plan.placement.root(t), k)
            for k, t in enumerate(plan.fusion.outputs, len(first))
        ]

    def _recover(self, inputs: Sequence[Any], error: Exception) -> list[torch.Tensor]:
        if is_final(error):
            raise error
        if FakeTensor in map(type, inputs):
            return self._in_torch(inputs)
        if has_dtensors(inputs):
            return self._on_mesh(inputs)
        if reason := self._unreadable(inputs):
            logger.info("%s runs in torch: %s", self.name, reason)
            return self._in_torch(inputs)
        if current().strict or not is_replaceable(error):
            raise error
        self._replaced = (Refusal("fallback", f"{type(error).__name__}: {error}", self.name),)
        if is_passing(error):
            # 1, 3, 7, ... calls: an attempt may take seconds.
            self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
            self._pause = 2**self._failures - 1
            warn_of_scarcity(self.name, error)
            return self._in_torch(inputs)
        self._pause = math.inf
        warn_of_failure(self.name, error, repro.save(self))
        return self._in_torch(inputs)

    def _unreadable(self, inputs: Sequence[Any]) -> str:
        """Return why kernels cannot take these arguments, which passed Thunder's guards, or ""."""
        try:
            bind(with_seeds_in_memory(self.fusion, inputs), inputs, self.device)
        except (FuserTypeError, FuserValueError) as mismatch:
            return str(mismatch)
        except FuserError:
            pass  # torch would not take them, either
        return ""

    def _in_torch(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        # A torch.func transform differentiates through torch's operations.
        transformed = is_transformed() or is_forward_mode()
        with torch.no_grad() if not transformed else nullcontext():
            return evaluate(
                with_seeds_in_memory(self.fusion, inputs),
                inputs,
                apply_updates=True,
                device=self.device,
                keep_kind=transformed or any(map(_has_kind, inputs)),
            ).outputs

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for attributes that Thunder's nvFuser tools read, the message says
        where the information is.
        """
        if name in _OF_NVFUSER:
            raise AttributeError(
                f"{self.name} is a fusion of thunder_fuser, which has no {name}: it keeps no inputs"
                " of calls. thunder_fuser.fusions(fn) has, of each fusion, repro() (a script that "
                "runs it on inputs like those), plan, kernels and refusals"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.fusion.exprs)} expressions on {self.device}>"


def _compiled(
    name: str, program: RegionProgram, known: KnownFusions
) -> tuple[CompiledFusion, Fusion | None]:
    """Return the compiled fusion of a region, and its Fusion if that had to be built."""
    signature = program.signature
    if signature is not None and signature in known.by_key:
        return known.by_key[signature], None
    fusion = program.build()
    found = known.by_key.setdefault(fusion, CompiledFusion(fusion, name, known.sizes))
    if signature is not None:
        known.by_key[signature] = found
    return found, fusion


def _has_kind(x: Any) -> bool:
    """True for a tensor that is not strided, or whose class overrides `__torch_dispatch__`."""
    if not isinstance(x, torch.Tensor) or isinstance(x, FakeTensor):
        return False
    dispatch = type(x).__torch_dispatch__
    return x.layout is not torch.strided or dispatch is not torch.Tensor.__torch_dispatch__
