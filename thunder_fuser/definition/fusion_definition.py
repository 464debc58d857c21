"""FusionDefinition: the class that nvFuser's users know, on top of ours.

    with FusionDefinition() as fd:
        x = fd.from_pytorch(a)
        fd.add_output(fd.ops.relu(x))
    (y,) = fd.execute([a])

`Recorder` is the half that writes a definition down; this half runs and shows it.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from thunder_fuser.codegen.kernel import Kernel, program_text
from thunder_fuser.definition.operations import Ops
from thunder_fuser.definition.profile import FusionProfile
from thunder_fuser.definition.recorder import Recorder
from thunder_fuser.definition.scripts import faked, reproduction
from thunder_fuser.definition.validation import check_outputs, expected_outputs
from thunder_fuser.errors import FuserError, FuserTypeError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.printer import to_python
from thunder_fuser.runtime.dispatch import CompiledFusion
from thunder_fuser.runtime.generator import draw
from thunder_fuser.segment.plan import SegmentedFusion

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
        self._compiled: CompiledFusion | None = None
        self._profile: FusionProfile | None = None
        self._tokens: list[contextvars.Token[FusionDefinition | None]] = []

    def __enter__(self) -> FusionDefinition:
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
        device: int | str | torch.device | None = None,
        save_repro_inputs: bool = False,
        profile: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Run on tensors and numbers, which may be nested in lists; the outputs in order.

        `device` is where a fusion without tensor inputs runs (an int names a CUDA device). With
        `profile` the call is measured: see the method of that name. nvFuser's options are accepted
        and have no meaning here. Raises NotImplementedError without a definition, FuserTypeError or
        FuserValueError for inputs that do not fit it.
        """
        compiled = self.compiled
        flat = self._drawn(inputs, device)
        if save_repro_inputs:
            self.fake_inputs = faked(flat)
        if profile:
            return self._profiled(flat, _device(device))
        return compiled(flat, _device(device))

    def validate(
        self,
        inputs: Sequence[Any],
        reference_outputs: Sequence[torch.Tensor] | None = None,
        *,
        device: int | str | torch.device | None = None,
    ) -> list[torch.Tensor]:
        """Execute, compare with the reference (default: torch, one operation at a time), return.

        Raises FuserError that names the output, the element and both values.
        """
        flat = self._drawn(inputs, device)
        where = _device(device)
        expected = expected_outputs(self.fusion, flat, reference_outputs, where)
        outputs = self.compiled(flat, where)
        check_outputs(outputs, expected)
        return outputs

    def profile(self) -> FusionProfile:
        """What the last `execute(inputs, profile=True)` cost."""
        if self._profile is None:
            raise FuserError("nothing is measured yet: call execute(inputs, profile=True)")
        return self._profile

    # ---- looking

    @property
    def fusion(self) -> Fusion:
        """What is defined so far."""
        return self._builder.build()

    @property
    def compiled(self) -> CompiledFusion:
        """The callable behind `execute`; the definition is finished from then on."""
        if self._compiled is None:
            defined, problem = self.validate_definition()
            if not defined:
                raise NotImplementedError(problem)
            self._finished = True
            self._compiled = CompiledFusion(self.fusion, name="definition")
        return self._compiled

    def validate_definition(self) -> tuple[bool, str]:
        """(True, "") for a definition that can be executed, else (False, why not)."""
        if not self._is_begun():
            self.definition()
        if not self._is_begun():
            return False, "Fusion does not exist! Define one: with FusionDefinition() as fd: ..."
        if not self.fusion.results:
            return False, "Fusion is empty! Give it an output: fd.add_output(...)"
        return True, ""

    def plan(
        self, inputs: Sequence[Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> SegmentedFusion:
        """What would run: kernels, bytes, boundaries.

        Inputs (fake tensors will do) give the sizes that the definition leaves open. Without them
        bytes are formulas in these sizes, and the plan is the one for `sizes`, which are named as
        the plan names them, or for large ones: see `CompiledFusion.plan`.
        """
        given = None if inputs is None else self._completed(inputs)
        return self.compiled.plan(given, sizes)

    def kernels(self, inputs: Sequence[Any]) -> tuple[Kernel, ...]:
        """The kernels for such inputs, as text; compiles nothing."""
        return self.compiled.kernels(self._completed(inputs))

    def cuda_code_for(self, inputs: Sequence[Any]) -> str:
        """The source of these kernels."""
        return program_text(self.kernels(inputs))

    def last_cuda_code(self) -> str:
        """The source of the kernels that were compiled last."""
        executables = () if self._compiled is None else self._compiled.executables
        if not executables:
            raise FuserError(
                "nothing is compiled yet: call execute first, or cuda_code_for(inputs)"
            )
        return program_text(executables[-1].kernels)

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
        return to_python(self.fusion)

    def _profiled(self, inputs: list[Any], device: torch.device | None) -> list[torch.Tensor]:
        start = time.perf_counter()
        outputs = self.compiled(inputs, device)
        if any(t.is_cuda for t in outputs):
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        plan = self.compiled.plan(inputs)
        kernels = tuple(k.name for k in self.compiled.kernels(inputs))
        self._profile = FusionProfile(1e3 * elapsed, len(plan.segments), kernels, plan.bytes)
        return outputs

    def _drawn(self, inputs: Sequence[Any], device: int | str | torch.device | None) -> list[Any]:
        """All inputs of a call: the given ones, and what random numbers take from torch."""
        flat, count = _flat(inputs), self._builder.draws
        if not count:
            return flat
        seed, offset = draw(_device_of(flat, _device(device)), count)
        return [*flat, seed, *range(offset, offset + count)]

    def _completed(self, inputs: Sequence[Any]) -> list[Any]:
        """The same for a question about the inputs, for which nothing is drawn."""
        flat, count = _flat(inputs), self._builder.draws
        if not count or len(flat) == len(self.fusion.inputs):
            return flat
        return [*flat, 0, *range(count)]

    def _is_begun(self) -> bool:
        fusion = self.fusion
        return bool(fusion.inputs or fusion.exprs)


def _flat(inputs: Sequence[Any]) -> list[Any]:
    """Inputs with nested lists (vectors) unrolled."""
    if isinstance(inputs, torch.Tensor) or not isinstance(inputs, (list, tuple)):
        raise FuserTypeError(f"inputs: expected a list, got {type(inputs).__name__}")
    return list(_leaves(inputs))


def _leaves(inputs: Sequence[Any]) -> Iterator[Any]:
    for x in inputs:
        if isinstance(x, (list, tuple)):
            yield from _leaves(x)
        else:
            yield x


def _device(device: int | str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _device_of(inputs: Sequence[Any], device: torch.device | None) -> torch.device:
    """Where these inputs make a fusion run, as far as they are in order."""
    found = [x.device for x in inputs if isinstance(x, torch.Tensor)]
    cuda = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return next((d for d in found if d.type == "cuda"), device or next(iter(found), cuda))


def _innermost() -> Recorder:
    found = _active.get()
    if found is None:
        raise FuserError("no definition is open: use this inside with FusionDefinition() as fd")
    return found


ops = Ops(_innermost)
"""The operations on the innermost definition whose `with` block is open."""
