"""CompiledFusion: a callable Fusion with a cache of Executables, one per input key.

If the guard of the previous call accepts the inputs, its Executable runs again; otherwise the key
(shapes, strides, dtypes, alignment, device) is looked up. Only a new key is compiled: bind,
specialise, passes, plan, schedule, code generation, compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import (
    GeneratedPlan,
    generate_kernels,
    generate_plan,
    link_plan,
    plan_bound,
    plan_unbound,
)
from thunder_fuser.config import Options, current
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError, InternalError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.log import Pieces
from thunder_fuser.observers import Watch
from thunder_fuser.runtime.binding.bind import (
    Binding,
    Key,
    bind,
    bind_dense,
    check_updates,
    key_of,
    size_inputs,
)
from thunder_fuser.runtime.binding.guards import Guard, no_guard
from thunder_fuser.runtime.binding.modes import is_transformed, without_modes
from thunder_fuser.runtime.compilation.dynamic_sizes import DynamicSizes, Sizes
from thunder_fuser.runtime.executable import Executable, ExecutableInfo
from thunder_fuser.runtime.executable_lru import EXECUTABLES, now
from thunder_fuser.runtime.fallback import is_final, keep_from_torch
from thunder_fuser.runtime.fork import Lock
from thunder_fuser.runtime.random_state import with_seeds_in_memory
from thunder_fuser.runtime.target import planned_for, target_for
from thunder_fuser.segment.plan import SegmentedFusion


@dataclass(frozen=True, slots=True)
class _Latest:
    """Executable, guard, options and device of the latest call: fast path of the next call."""

    options: Options | None = None
    device: torch.device | None = None
    guard: Guard = no_guard
    executable: Executable | None = None


class CompiledFusion:
    """A fusion, specialised and compiled per shape, stride, dtype, alignment class, device and
    options.

    Sizes may be symbolic. Thread-safe. A key is compiled once, and again only after eviction from
    the LRU cache of executables.

    latest  plan and kernels of the last call
    among   progress shared with the other fusions of the trace
    ahead   called before a compilation, to compile all fusions of the trace together
    """

    def __init__(
        self, fusion: Fusion, name: str = "fusion", sizes_of_program: Sizes | None = None
    ) -> None:
        """`sizes_of_program`: of a fusion that is part of a program for some of its sizes."""
        self.fusion = fusion
        self.name = name
        self._sizes_of_program = sizes_of_program
        self._sizes = size_inputs(fusion)
        self.latest: ExecutableInfo | None = None
        self.among: Pieces | None = None
        self.ahead: Callable[[], None] | None = None
        self._generated: dict[tuple[Options, Key], GeneratedPlan] = {}
        self._tables: dict[Options, dict[Key, Executable]] = {}
        self._latest = _Latest()
        self._made: list[Executable] = []
        self._dense: dict[tuple[torch.device | None, Options], SegmentedFusion] = {}
        self._lock = Lock()
        self._history = DynamicSizes()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fusion, its name and the plan of the last call, but no executables."""
        return _restored, (self.fusion, self.name, self.latest)

    def __call__(
        self, inputs: Sequence[Any], device: torch.device | None = None
    ) -> list[torch.Tensor]:
        """Run on `inputs` (tensors and scalars in definition order) and return the outputs in
        order. Invalid inputs raise before anything is compiled.
        """
        executable = self.executable_for(inputs, device)
        try:
            return executable(inputs)
        except InternalError as error:
            raise self._misfit(inputs, error) from None

    def _misfit(self, inputs: Sequence[Any], error: InternalError) -> FuserError:
        """Return the error of a number that is out of range, which the key does not tell; `error`
        if all numbers fit.
        """
        try:
            bind(with_seeds_in_memory(self.fusion, inputs), inputs)
        except FuserTypeError as mistake:
            if is_final(error):
                keep_from_torch(mistake)
            return mistake
        return error

    def executable_for(
        self, inputs: Sequence[Any], device: torch.device | None = None
    ) -> Executable:
        """Return the Executable that a call with `inputs` runs, compiling it on a cache miss."""
        latest = self._latest
        executable = latest.executable
        if (
            executable is None
            or latest.options is not current()
            or latest.device != device
            or not latest.guard(inputs)
        ):
            executable = self._find(inputs, device)
        executable.used = now()
        self.latest = executable.info
        return executable

    def in_torch(
        self, inputs: Sequence[Any], device: torch.device | None = None
    ) -> list[torch.Tensor]:
        """Evaluate with torch operations, one at a time, so that tracers and modes see them. Raises
        FuserTypeError under a torch.func transform.
        """
        if is_transformed():
            raise FuserTypeError(
                f"{self.name} cannot be called under vmap, grad, jvp or another transform of "
                "torch.func: it has neither batching rules nor gradients; call it outside of the "
                "transform, or transform the torch function that it stands for"
            )
        fusion = with_seeds_in_memory(self.fusion, inputs)
        binding = bind(fusion, inputs, device)
        # Some tracers track sizes symbolically; what they record is specialised to these values.
        sizes = {name: int(size) for name, size in binding.sizes.items()}
        fusion = specialise(fusion, sizes) if sizes else fusion
        with torch.no_grad():
            return evaluate(fusion, inputs, apply_updates=True, device=binding.device).outputs

    def is_compiled(self, inputs: Sequence[Any], device: torch.device | None = None) -> bool:
        """True if an Executable for these inputs is cached under the current options."""
        return (*key_of(inputs, self._sizes), device) in self._table()

    def plan(
        self,
        inputs: Sequence[Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        device: torch.device | None = None,
    ) -> SegmentedFusion:
        """Return the plan for `inputs` (fake tensors are accepted), or for the definition alone.

        Without inputs, byte counts are formulas of the symbolic sizes; `sizes` maps their names in
        the plan to representative values. Raises FuserValueError if `sizes` comes with `inputs`, or
        if no size is symbolic.
        """
        if sizes is not None and (inputs is not None or self.fusion.is_static):
            raise FuserValueError(
                f"{self.name}.plan: sizes are for a definition that leaves some open, and take the "
                f"place of inputs; {'it has none' if self.fusion.is_static else 'inputs are given'}"
            )
        if inputs is not None:
            binding = bind(self.fusion, inputs, device)
            with without_modes():
                return plan_bound(self.fusion, binding, self._watch())
        with without_modes():
            return plan_unbound(self.fusion, planned_for(device), sizes, self._watch())

    def dense_plan(self, device: torch.device | None) -> SegmentedFusion:
        """Return the plan for inputs with the declared layouts, cached by device and options
        because reports ask for it repeatedly.
        """
        key = device, current()
        if key not in self._dense:
            self._dense[key] = self.plan(device=device)
        return self._dense[key]

    def kernels(
        self, inputs: Sequence[Any], device: torch.device | None = None
    ) -> tuple[Kernel, ...]:
        """Generate the kernels for `inputs` as source text, without compiling or a GPU. Sizes are
        constants in them, also where calls of other sizes have made parameters of some.
        """
        binding = bind(self.fusion, inputs, device)
        info = target_for(binding.device).device_info(binding.device)
        with without_modes():
            watch = self._watch()
            plan = plan_bound(self.fusion, binding, watch)
            return tuple(k.kernel for k in generate_kernels(plan, info, watch).values())

    @property
    def executables(self) -> tuple[Executable, ...]:
        """Cached executables in the order of their compilation."""
        return tuple(self._made)

    def forget(self, executable: object) -> None:
        """Drop an executable from the cache: the next call with its key compiles again."""
        for table in list(self._tables.values()):
            for key in [key for key, found in list(table.items()) if found is executable]:
                table.pop(key, None)
        self._made = [found for found in self._made if found is not executable]
        if self._latest.executable is executable:
            self._latest = _Latest()

    def _table(self) -> dict[Key, Executable]:
        """Executables by key under the current options, most of which change generated code."""
        # Without the lock, which another thread may hold for as long as it compiles.
        return self._tables.setdefault(current(), {})

    def _find(self, inputs: Sequence[Any], device: torch.device | None) -> Executable:
        """Look the Executable up by the key of the inputs, compiling it on a miss."""
        table = self._table()
        key = (*key_of(inputs, self._sizes), device)
        found = table.get(key)
        guard = found.known_guard(inputs) if found else None
        if found is None:
            found = self._compile(table, key, inputs, device)
        elif guard is None:
            check_updates(self.fusion, inputs)
        guard = guard or found.new_guard(inputs, self._sizes)
        self._latest = _Latest(current(), device, guard, found)
        return found

    def foresee(self, device: torch.device) -> tuple[Kernel, ...]:
        """Generate the kernels of a first call with row-major tensors ahead of that call, which
        reuses them. Empty if sizes are symbolic or something was compiled already.
        """
        if not self.fusion.is_static or self._made:
            return ()
        binding = bind_dense(self.fusion, device)
        with self._lock, without_modes():
            generated = self._generate(self.fusion, binding)
            self._generated[current(), binding.key] = generated
        return tuple(made.kernel for made in generated.kernels.values())

    def _compile(
        self,
        table: dict[Key, Executable],
        key: Key,
        inputs: Sequence[Any],
        device: torch.device | None,
    ) -> Executable:
        fusion = with_seeds_in_memory(self.fusion, inputs)
        binding = bind(fusion, inputs, device)
        if any(isinstance(x, FakeTensor) for x in inputs):
            raise FuserTypeError(
                f"{self.name} got fake tensors, which have no elements to compute with: pass real "
                "tensors, or ask plan(inputs) or kernels(inputs)"
            )
        progress = self.among.piece(self.name) if self.among else nullcontext()
        with progress, without_modes():
            if self.ahead is not None:
                self.ahead()
            with self._lock:
                found = table.get(key)
                if found is None:
                    generated = self._generated.pop((current(), binding.key), None)
                    self._generated.clear()
                    if generated is None:
                        generated = self._generate(fusion, binding)
                    found = link_plan(generated)
                    table[key] = found
                    self._made.append(found)
                    EXECUTABLES.admit(found, self)
            return found

    def _generate(self, fusion: Fusion, binding: Binding) -> GeneratedPlan:
        """Plan a call and generate its kernels: if sizes vary, with parameters for them."""
        sizes = self._sizes_of_program
        if sizes is None and not fusion.is_static:
            sizes = self._history.of(tuple(binding.sizes.items()))
        adapt = sizes.adapted if sizes is not None and current().dynamic_sizes else None
        return generate_plan(fusion, binding, self.name, adapt)

    def _watch(self) -> Watch:
        return Watch(self.name, self.fusion)


def _restored(fusion: Fusion, name: str, latest: ExecutableInfo | None) -> CompiledFusion:
    found = CompiledFusion(fusion, name)
    found.latest = latest
    return found
