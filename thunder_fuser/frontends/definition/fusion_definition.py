"""FusionDefinition, nvFuser's class for fusions written by hand.

    with FusionDefinition() as fd:
        x = fd.from_pytorch(a)
        fd.add_output(fd.ops.relu(x))
    (y,) = fd.execute([a])

Its base classes record a definition (`Recorder`) and show what it compiles to (`Inspection`); this
class compiles and runs it.
"""

from __future__ import annotations

import contextvars
import logging
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import current
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition.calling import Device, called_with, device_of, flattened
from thunder_fuser.frontends.definition.executor_cache import FusionCache, FusionExecutorCache
from thunder_fuser.frontends.definition.inspection import Inspection
from thunder_fuser.frontends.definition.multidevice.api import output_shardings
from thunder_fuser.frontends.definition.multidevice.ranks import Ranks
from thunder_fuser.frontends.definition.operations.ops import Ops
from thunder_fuser.frontends.definition.operations.unavailable import HandSchedule
from thunder_fuser.frontends.definition.profile import FusionProfile, is_profiling, profiled
from thunder_fuser.frontends.definition.recording.recorder import Recorder
from thunder_fuser.frontends.definition.scripts import captured_logs, faked
from thunder_fuser.frontends.definition.validation.compare import check_outputs, expected_outputs
from thunder_fuser.ir.printer import to_python
from thunder_fuser.ir.size_equations import line_of
from thunder_fuser.runtime.binding.modes import wants_operations
from thunder_fuser.sharding.annotations import Placed
from thunder_fuser.sharding.mesh import DeviceMesh
from thunder_fuser.sharding.on_mesh import placed_on
from thunder_fuser.sharding.plan import MeshPlan, mesh_plan
from thunder_fuser.sharding.shardings import Shardings

_log = logging.getLogger(__name__)
_active: contextvars.ContextVar[FusionDefinition | None] = contextvars.ContextVar(
    "thunder_fuser_definition", default=None
)


class FusionDefinition(Inspection):
    """A fusion written by hand; compiled at the first call for each kind of inputs.

    Defined in a `with` block, or in the method `definition` of a subclass. `id` and `max_length`
    are accepted for compatibility and ignored. A definition can be copied and pickled; a restored
    one has the plan of the last call, and compiles at its next one.
    """

    def __init__(self, id: int | None = None, max_length: int = 9999) -> None:
        super().__init__()
        self.sched = HandSchedule()
        self._fec: FusionExecutorCache | None = None
        self._profile: FusionProfile | None = None
        self._debug_output: str | None = None
        self._has_warned = False
        self._ranks: Ranks | None = None
        self._tokens: list[contextvars.Token[FusionDefinition | None]] = []

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy: outside of any `with` block, without process groups and fake tensors,
        which cannot be pickled.
        """
        return {**super().__getstate__(), "_ranks": None, "_tokens": [], "fake_inputs": None}

    def __enter__(self) -> FusionDefinition:
        current()  # reads the environment, which may enable logging from here on
        if self._finished:
            raise FuserError("this definition is finished; write another one with a new object")
        self._tokens.append(_active.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _active.reset(self._tokens.pop())
        self._finished = True

    def definition(self) -> None:
        """Hook for subclasses: defines the fusion before its first execution."""

    # ---- execution

    def execute(
        self,
        inputs: Sequence[Any],
        *,
        device: Device = None,
        save_repro_inputs: bool = False,
        print_repro: bool = False,
        profile: bool = False,
        capture_debug_output: bool = False,
        override_user_schedule: bool = False,
        auto_schedule: bool = True,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Run on tensors and numbers, which may be nested in lists; return the outputs in order.

        device                   device of a fusion without tensor inputs (an int names a GPU)
        save_repro_inputs        keep the inputs as fake tensors, for `last_repro_script`
        print_repro              print `repro_script_for` these inputs
        profile                  measure the call: see `profile`
        capture_debug_output     keep the log output of the call: see `debug_output`
        override_user_schedule   do not warn that a `schedule` method of the class is not used

        Other options are nvFuser's and ignored. Raises NotImplementedError without a definition,
        FuserTypeError or FuserValueError for inputs that do not fit it.
        """
        if not self._has_warned:
            self._warn_of_unused_schedule(override_user_schedule)
        if not capture_debug_output:
            self._debug_output = None
            return self._execute(inputs, device, save_repro_inputs, print_repro, profile)
        with captured_logs() as log:
            outputs = self._execute(inputs, device, save_repro_inputs, print_repro, profile)
        self._debug_output = log.getvalue()
        return outputs

    def _execute(
        self,
        inputs: Sequence[Any],
        device: Device,
        save_repro_inputs: bool,
        print_repro: bool,
        profile: bool,
    ) -> list[torch.Tensor]:
        compiled = self.compiled
        if self.loops:
            # On a mesh, inputs and outputs are the local shards of this process' rank.
            outputs = self.ranks.execute(flattened(inputs))
            self._record_output_shardings()
            return outputs
        flat, where = self._drawn(inputs, device), device_of(device)
        if save_repro_inputs:
            self.fake_inputs = faked(flat)
        if print_repro:
            print(self.repro_script_for(flat))
        if profile or is_profiling():
            outputs, self._profile = profiled(compiled, flat, where, self.fec.fusion_id)
            return outputs
        return compiled.in_torch(flat, where) if wants_operations() else compiled(flat, where)

    def manual_execute(
        self, inputs: Sequence[Any], heuristic_params: object = None
    ) -> list[torch.Tensor]:
        """Return `execute(inputs)`; FuserError if `heuristic_params` of a schedule are given."""
        if heuristic_params is not None:
            raise FuserError(
                "manual_execute: heuristic_params describe a schedule, and thunder_fuser makes "
                "every schedule itself; leave them out, or call execute(inputs)"
            )
        return self.execute(inputs)

    def validate(
        self,
        inputs: Sequence[Any],
        reference_outputs: Sequence[torch.Tensor] | None = None,
        device: Device = None,
        **options: Any,
    ) -> list[torch.Tensor]:
        """Execute, compare with the reference (default: torch, one operation at a time), return.

        `options` are those of `execute`. Raises FuserError that names the output, the element and
        both values, or FuserValueError for a wrong number of references.
        """
        flat = self._drawn(inputs, device)
        expected = expected_outputs(self.fusion.plain, flat, reference_outputs, device_of(device))
        outputs = self.execute(flat, device=device, **options)
        check_outputs(outputs, expected)
        return outputs

    def manual_validate(
        self, inputs: Sequence[Any], reference_outputs: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """`validate(inputs, reference_outputs)`: returns the outputs or raises FuserError."""
        return self.validate(inputs, reference_outputs)

    def profile(self) -> FusionProfile:
        """Times and bytes per kernel of the last `execute(inputs, profile=True)`."""
        if self._profile is None:
            raise FuserError("nothing is measured yet: call execute(inputs, profile=True)")
        return self._profile

    def debug_output(self) -> str | None:
        """Log output of the last call, or None if the call did not capture it."""
        return self._debug_output

    def clone(self) -> FusionDefinition:
        """An unfinished copy of this definition, to which operations can be added."""
        found = FusionDefinition()
        found._builder = self._builder.copied()
        return found

    # ---- compilation

    @property
    def fec(self) -> FusionExecutorCache:
        """The executor cache of the definition; AttributeError before it is compiled or set."""
        if self._fec is None:
            raise AttributeError("fec: nothing is executed yet; call execute(inputs), or plan()")
        return self._fec

    @fec.setter
    def fec(self, value: FusionExecutorCache) -> None:
        self._finished = True
        self._fec = value

    @property
    def compiled(self) -> CompiledFusion:
        """The callable behind `execute`; reading it finishes the definition."""
        return self._executor_cache().compiled

    def _executor_cache(self) -> FusionExecutorCache:
        if self._fec is None:
            defined, problem = self.validate_definition()
            if not defined:
                raise NotImplementedError(problem)
            self._log_definition()
            self.fec = FusionCache.compiled(self.fusion)
        return self.fec

    def _log_definition(self) -> None:
        if _log.isEnabledFor(logging.INFO):
            built = self._builder.build()
            counts = len(built.exprs), len(built.inputs), len(built.outputs)
            _log.info("%d operations, %d inputs, %d outputs", *counts)
            _log.debug("%s", to_python(built))

    def validate_definition(self) -> tuple[bool, str]:
        """(True, "") for a definition that can be executed, else (False, reason)."""
        if not self._is_begun():
            self.definition()
        schedule = getattr(self, "multidevice_schedule", None)
        if schedule is not None and self._is_begun() and not self.loops:
            schedule()
        if not self._is_begun():
            return False, "Fusion does not exist! Define one: with FusionDefinition() as fd: ..."
        if not self._builder.build().results:
            last = self._builder.build().exprs[-1:]
            seen = "".join(f"; its last operation is {e.op}{line_of(e.origin)}" for e in last)
            return False, f"Fusion is empty! Give it an output: fd.add_output(...){seen}"
        return True, ""

    # ---- on several devices

    @property
    def ranks(self) -> Ranks:
        """The programs of the ranks of a mesh; reading it finishes the definition."""
        if self._ranks is None:
            self._ranks = Ranks(self.compiled.fusion, self.loops)
        return self._ranks

    def execute_with_dtensors(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on DTensors, all on one mesh, and numbers; return DTensors of inferred placements. A
        collective: every rank calls it.

        Raises FuserTypeError for tensors that are no DTensors, FuserValueError for several meshes
        and for uneven shards.
        """
        outputs = self.ranks.execute_with_dtensors(flattened(inputs))
        self._record_output_shardings()
        return outputs

    def shardings(self, inputs: Sequence[Any] = ()) -> Shardings:
        """Placements of all tensors, and the collectives between them. `inputs` of global size
        (fake tensors will do) give the sizes that the definition leaves open.
        """
        return self.ranks.on_mesh.shardings(flattened(list(inputs)))

    def mesh_plan(
        self,
        inputs: Sequence[Any] = (),
        mesh: DeviceMesh | None = None,
        placed: Placed | None = None,
    ) -> MeshPlan:
        """Kernels, collectives and replicated tensors of each rank; planned without devices.

        The mesh is that of the definition's tensors, or `mesh`; then `placed` maps inputs' names
        (`T0`, or a pattern) to the dimension sharded over each mesh axis: `{"T0": {"tp": 0}}`.
        """
        if mesh is None:
            return mesh_plan(self.shardings(inputs))
        given = flattened(list(inputs))
        return mesh_plan(placed_on(self.compiled.fusion, mesh, placed or {}, given))

    def _record_output_shardings(self) -> None:
        placed = self.ranks.latest
        self.fec.output_shardings = output_shardings(placed) if placed else ()

    def __repr__(self) -> str:
        return to_python(self._builder.build())

    def _drawn(self, inputs: Sequence[Any], device: Device) -> list[Any]:
        """Flat inputs of a call, completed by the RNG seed and offsets drawn from torch."""
        count = self._builder.draws
        if count and len(flattened(inputs)) == len(self.fusion.inputs):
            return flattened(inputs)
        return called_with(inputs, device, count)

    def _is_begun(self) -> bool:
        fusion = self._builder.build()
        return bool(fusion.inputs or fusion.exprs)

    def _warn_of_unused_schedule(self, silently: bool) -> None:
        """Warn, once, that a subclass's `schedule` method is not used."""
        self._has_warned = True
        if hasattr(self, "schedule") and not silently:
            warnings.warn(
                f"{type(self).__name__}.schedule is not used: thunder_fuser makes every schedule "
                "itself, and results do not depend on it. Remove the method, or pass "
                "override_user_schedule=True to execute.",
                stacklevel=3,
            )


def _innermost() -> Recorder:
    found = _active.get()
    if found is None:
        raise FuserError("no definition is open: use this inside with FusionDefinition() as fd")
    return found


ops = Ops(_innermost)
"""The operations on the innermost definition whose `with` block is open."""
