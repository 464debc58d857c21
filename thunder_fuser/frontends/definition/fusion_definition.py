"""FusionDefinition: the class that nvFuser's users know, on top of ours.

    with FusionDefinition() as fd:
        x = fd.from_pytorch(a)
        fd.add_output(fd.ops.relu(x))
    (y,) = fd.execute([a])

`Recorder` is the half that writes a definition down; this half runs and shows it.
"""

from __future__ import annotations

import contextvars
import logging
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import current
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition.calling import Device, called_with, device_of, flattened
from thunder_fuser.frontends.definition.executor_cache import FusionCache, FusionExecutorCache
from thunder_fuser.frontends.definition.graph import Fusion, graph_of
from thunder_fuser.frontends.definition.listing import math_text
from thunder_fuser.frontends.definition.multidevice import output_shardings
from thunder_fuser.frontends.definition.operations import Ops
from thunder_fuser.frontends.definition.profile import FusionProfile, is_profiling, profiled
from thunder_fuser.frontends.definition.ranks import Ranks
from thunder_fuser.frontends.definition.recorder import Recorder
from thunder_fuser.frontends.definition.scripts import captured_logs, faked, reproduction
from thunder_fuser.frontends.definition.unavailable import HandSchedule
from thunder_fuser.frontends.definition.validation import check_outputs, expected_outputs
from thunder_fuser.ir.printer import to_python
from thunder_fuser.ir.size_equations import line_of
from thunder_fuser.runtime.modes import wants_operations
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.sharding.annotations import Placed
from thunder_fuser.sharding.mesh import DeviceMesh
from thunder_fuser.sharding.on_mesh import placed_on
from thunder_fuser.sharding.plan import MeshPlan, mesh_plan
from thunder_fuser.sharding.shardings import Shardings

_log = logging.getLogger(__name__)
_active: contextvars.ContextVar[FusionDefinition | None] = contextvars.ContextVar(
    "thunder_fuser_definition", default=None
)


class FusionDefinition(Recorder):
    """A fusion written by hand; compiled at the first call for each kind of inputs.

    Written in a `with` block, or by a subclass in its method `definition`. `id` and `max_length`
    are accepted for old scripts and mean nothing.
    """

    def __init__(self, id: int | None = None, max_length: int = 9999) -> None:
        super().__init__()
        self.fake_inputs: list[Any] | None = None
        """What `execute(save_repro_inputs=True)` kept: the inputs as fake tensors."""
        self.sched = HandSchedule()
        self._fec: FusionExecutorCache | None = None
        self._profile: FusionProfile | None = None
        self._debug_output: str | None = None
        self._is_told = False
        self._ranks: Ranks | None = None
        self._tokens: list[contextvars.Token[FusionDefinition | None]] = []

    def __enter__(self) -> FusionDefinition:
        current()  # reads the environment, which may ask for what is logged from here on
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
        """Overridden by subclasses, which define themselves when they are first executed."""

    # ---- running

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
        """Run on tensors and numbers, which may be nested in lists; the outputs in order.

        device                   where a fusion without tensor inputs runs (an int names a GPU)
        save_repro_inputs        keep the inputs as fake tensors, for `last_repro_script`
        print_repro              print `repro_script_for` these inputs
        profile                  measure the call: see the method of that name
        capture_debug_output     keep what the log channels say: see `debug_output`
        override_user_schedule   do not say that a `schedule` method of the class is not used

        nvFuser's other options are accepted and have no meaning here. Raises NotImplementedError
        without a definition, FuserTypeError or FuserValueError for inputs that do not fit it.
        """
        if not self._is_told:
            self._say_what_is_not_used(override_user_schedule)
        if capture_debug_output:
            with captured_logs() as log:
                outputs = self.execute(
                    inputs, device=device, save_repro_inputs=save_repro_inputs,
                    print_repro=print_repro, profile=profile,
                )  # fmt: skip
            self._debug_output = log.getvalue()
            return outputs
        compiled = self.compiled
        if self.loops:
            # Inputs and outputs are what this process' rank has of them.
            outputs = self.ranks.execute(flattened(inputs))
            self._record_output_shardings()
            return outputs
        flat, where = self._drawn(inputs, device), device_of(device)
        self._debug_output = None
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
        """The same: nvFuser runs a schedule that was written by hand, which does not exist here."""
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
        both values.
        """
        flat = self._drawn(inputs, device)
        expected = expected_outputs(self.fusion.plain, flat, reference_outputs, device_of(device))
        outputs = self.execute(flat, device=device, **options)
        check_outputs(outputs, expected)
        return outputs

    def manual_validate(
        self, inputs: Sequence[Any], reference_outputs: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """The same: see `manual_execute`."""
        return self.validate(inputs, reference_outputs)

    def profile(self) -> FusionProfile:
        """What the last `execute(inputs, profile=True)` cost, kernel by kernel."""
        if self._profile is None:
            raise FuserError("nothing is measured yet: call execute(inputs, profile=True)")
        return self._profile

    def debug_output(self) -> str | None:
        """What the log channels said in the last call, or None if it did not capture it."""
        return self._debug_output

    def clone(self) -> FusionDefinition:
        """A definition of the same operations, which is open for more."""
        found = FusionDefinition()
        found._builder = self._builder.copied()
        return found

    # ---- looking

    @property
    def fusion(self) -> Fusion:
        """What is defined so far."""
        return graph_of(self._builder.build(), self)

    @property
    def fec(self) -> FusionExecutorCache:
        """What runs the definition; there from the first call on, or from when it is set."""
        if self._fec is None:
            raise AttributeError("fec: nothing is executed yet; call execute(inputs), or plan()")
        return self._fec

    @fec.setter
    def fec(self, value: FusionExecutorCache) -> None:
        self._finished = True
        self._fec = value

    @property
    def compiled(self) -> CompiledFusion:
        """The callable behind `execute`; the definition is finished from then on."""
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
        """(True, "") for a definition that can be executed, else (False, why not)."""
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
        """What the ranks of a mesh run; the definition is finished from then on."""
        if self._ranks is None:
            self._ranks = Ranks(self.compiled.fusion, self.loops)
        return self._ranks

    def execute_with_dtensors(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on DTensors, all on one mesh, and numbers; the outputs are DTensors. Placements of
        the outputs are inferred. A collective: every rank calls it.

        Raises FuserTypeError for tensors that are no DTensors, FuserValueError for several meshes
        and for shards that are uneven.
        """
        outputs = self.ranks.execute_with_dtensors(flattened(inputs))
        self._record_output_shardings()
        return outputs

    def shardings(self, inputs: Sequence[Any] = ()) -> Shardings:
        """Where every tensor is, and what is communicated. `inputs`, as large as those of all
        devices together (fake tensors will do), give the sizes that the definition leaves open.
        """
        return self.ranks.on_mesh.shardings(flattened(list(inputs)))

    def mesh_plan(
        self,
        inputs: Sequence[Any] = (),
        mesh: DeviceMesh | None = None,
        placed: Placed | None = None,
    ) -> MeshPlan:
        """What each rank runs, what it sends, what is replicated; made without devices.

        The mesh is that of the definition's tensors, or `mesh`, on which `placed` says by names of
        inputs (`T0`, or a pattern) along which dimension what is cut: `{"T0": {"tp": 0}}`.
        """
        if mesh is None:
            return mesh_plan(self.shardings(inputs))
        given = flattened(list(inputs))
        return mesh_plan(placed_on(self.compiled.fusion, mesh, placed or {}, given))

    def _record_output_shardings(self) -> None:
        placed = self.ranks.latest
        self.fec.output_shardings = output_shardings(placed) if placed else ()

    def plan(
        self, inputs: Sequence[Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> SegmentedFusion:
        """What runs: kernels, bytes, boundaries.

        Inputs (fake tensors will do) give the sizes that the definition leaves open. Without them
        it is what ran in the last call. Before the first one, or with `sizes`, bytes are formulas
        in the open sizes, and the plan is the one for `sizes`, which are named as the plan names
        them, or for large ones: see `CompiledFusion.plan`.
        """
        compiled = self.compiled
        if inputs is None and sizes is None and compiled.latest is not None:
            return compiled.latest.plan
        return compiled.plan(None if inputs is None else self._completed(inputs), sizes)

    def kernels(self, inputs: Sequence[Any]) -> tuple[Kernel, ...]:
        """The kernels for such inputs, as text; compiles nothing."""
        return self._executor_cache().kernels(inputs)

    def cuda_code_for(
        self,
        inputs: Sequence[Any],
        intrinsic_code: bool = False,
        override_user_schedule: bool = False,
    ) -> str:
        """The source of these kernels; with `intrinsic_code` what it includes, as well."""
        return self._executor_cache().get_cuda_kernel(inputs, intrinsic_code)

    def last_cuda_code(
        self, intrinsic_code: bool = False, override_user_schedule: bool = False
    ) -> str:
        """The source of the kernels that were compiled last."""
        return self._executor_cache().last_cuda_code(intrinsic_code)

    def fusion_ir(self) -> str:
        """The operations as they are defined."""
        return math_text(self.fusion)

    def scheduled_fusion_ir_for(
        self,
        inputs: Sequence[Any],
        tensor_transforms: bool = False,
        override_user_schedule: bool = False,
    ) -> str:
        """The plan for such inputs, the launches, and the operations after the passes.

        With `tensor_transforms` the program that makes each tensor's dimensions, as well.
        """
        return self._executor_cache().get_scheduled_ir(inputs, tensor_transforms)

    def last_scheduled_fusion_ir(
        self, tensor_transforms: bool = False, override_user_schedule: bool = False
    ) -> str:
        """The same for what was compiled last."""
        return self._executor_cache().get_most_recent_scheduled_ir(tensor_transforms)

    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """A script that runs this definition on random inputs of the same kind."""
        flat = None if inputs is None else self._completed(inputs)
        return reproduction(self.compiled.fusion, flat)

    getReproString = repro_script_for

    def last_repro_script(self) -> str:
        """The script for the last `execute(inputs, save_repro_inputs=True)`."""
        if self.fake_inputs is None:
            raise FuserError("no inputs are kept: call execute(inputs, save_repro_inputs=True)")
        return self.repro_script_for(self.fake_inputs)

    def __repr__(self) -> str:
        return to_python(self._builder.build())

    def _drawn(self, inputs: Sequence[Any], device: Device) -> list[Any]:
        """All inputs of a call: the given ones, and what random numbers take from torch."""
        count = self._builder.draws
        if count and len(flattened(inputs)) == len(self.fusion.inputs):
            return flattened(inputs)
        return called_with(inputs, device, count)

    def _completed(self, inputs: Sequence[Any]) -> list[Any]:
        """The same for a question about the inputs, for which nothing is drawn."""
        return self._executor_cache().completed(inputs)

    def _is_begun(self) -> bool:
        fusion = self._builder.build()
        return bool(fusion.inputs or fusion.exprs)

    def _say_what_is_not_used(self, silently: bool) -> None:
        """Schedules that a subclass writes by hand: this compiler makes its own. Said once."""
        self._is_told = True
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
