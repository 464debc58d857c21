"""Many fusions compiled as one program, and launches that are checked on the way.

A compiler takes about as long to start as to compile ten small kernels. A `Batch` is a target that
collects the kernels of all executables made with it, and compiles them at the first launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch

from tests.support.generator import Case
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import Adapt, compile_plan, generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.domain import IterDomain, Layout, static
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.runtime import steps
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.host.debug import OrderName, debug_launch
from thunder_fuser.runtime.host.target import HostLaunch, HostTarget
from thunder_fuser.runtime.target import Launch, Target, target_for
from thunder_fuser.segment.plan import SegmentedFusion

Number = int | float | bool

_FOR_GPUS = HostTarget("-O1")
"""Where the CPU runs what a GPU would: what matters are numbers."""

_Key = tuple[object, ...]


def _key(kernel: Kernel) -> _Key:
    return (kernel.name, kernel.grid, kernel.block, kernel.shared_bytes)


class Batch:
    """A target for one device. `info` is what schedules are made for: a GPU's on the host gives the
    text that the GPU would get.
    """

    def __init__(self, device: torch.device, info: DeviceInfo | None = None) -> None:
        self._target: Target = target_for(device)
        if device.type == "cpu" and info is not None and not info.threads_are_serial:
            self._target = _FOR_GPUS
        self._info = info or self._target.device_info(device)
        self._sources: dict[str, str] = {}
        self._kernels: dict[_Key, Kernel] = {}
        self._launches: dict[_Key, Launch] = {}

    @property
    def name(self) -> str:
        return self._target.name

    def device_info(self, device: torch.device) -> DeviceInfo:
        return self._info

    def compile(self, kernels: Sequence[Kernel]) -> tuple[_Later, ...]:
        for kernel in kernels:
            found = self._sources.setdefault(kernel.name, kernel.source)
            assert found == kernel.source, f"two programs are called {kernel.name}"
            self._kernels.setdefault(_key(kernel), kernel)
        return tuple(_Later(self, kernel) for kernel in kernels)

    def launch(self, kernel: Kernel) -> Launch:
        key = _key(kernel)
        if key not in self._launches:
            # A program has one kernel of a name, and a kernel may have several grids.
            pending = {k.name: k for key, k in self._kernels.items() if key not in self._launches}
            pending[kernel.name] = kernel
            self._launches.update(
                (_key(e.kernel), e) for e in self._target.compile(list(pending.values()))
            )
        return self._launches[key]


class _Later:
    """A kernel that is compiled when it is first launched, with all others of its batch."""

    def __init__(self, batch: Batch, kernel: Kernel) -> None:
        self.kernel = kernel
        self.batch = batch

    def __call__(self, *args: Number) -> None:
        self.batch.launch(self.kernel)(*args)


def executable(
    compiled: CompiledFusion,
    inputs: Sequence[object],
    batch: Batch,
    device: torch.device,
    adapt: Adapt | None = None,
) -> Executable:
    """What a call of `compiled` on `inputs` would run, its kernels left to the batch."""
    return compile_plan(compiled.plan(inputs), device, batch, adapt=adapt)


def fusions_of(cases: Iterable[Case]) -> Iterator[tuple[Case, CompiledFusion]]:
    """Cases with their fusions, to be planned as they are."""
    return ((case, CompiledFusion(case.fusion)) for case in cases)


class Checked(NamedTuple):
    """A case that ran: its plan, and what it returned, which is right."""

    case: Case
    plan: SegmentedFusion
    outputs: Sequence[torch.Tensor]


def checked(
    cases: Iterable[tuple[Case, CompiledFusion]], batch: Batch, device: torch.device
) -> Iterator[Checked]:
    """Plan all cases, compile them as one program, run them, and check what they return."""
    planned = []
    for case, fusion in cases:
        inputs = case.fresh_inputs(device)
        planned.append((case, inputs, executable(fusion, inputs, batch, device)))
    for case, inputs, run in planned:
        outputs = run(inputs)
        case.check(outputs, case.updated(inputs))
        yield Checked(case, run.plan, outputs)


# ---- checked launches


class _Memory(NamedTuple):
    """What a parameter of a kernel points to: dimensions in memory, the tensor, its layout."""

    dims: Sequence[IterDomain]
    tensor: TensorView
    layout: Layout


class Guarded:
    """A host target whose launches run between guard pages, threads and blocks in an order of
    choice.
    """

    name = "host"

    def __init__(self, batch: Batch, plan: SegmentedFusion, order: OrderName, seed: int) -> None:
        self.batch = batch
        self.order: OrderName = order
        self.seed = seed
        self.memory: list[torch.Tensor] = []
        self.launches = 0
        self._memory: dict[str, dict[str, _Memory]] = {}
        kernels = generate_kernels(plan, self.device_info(torch.device("cpu")))
        for index, found in kernels.items():
            body = plan.segments[index].body
            loads = {t.name: _Memory(t.domain.root, t, at) for t, at in body.loads.items()}
            stores = {t.name: _Memory(t.domain.logical, t, at) for t, at in body.stores.items()}
            self._memory[found.kernel.name] = stores | loads

    def device_info(self, device: torch.device) -> DeviceInfo:
        return self.batch.device_info(device)

    def compile(self, kernels: Sequence[Kernel]) -> tuple[_Checked, ...]:
        return tuple(_Checked(self, later) for later in self.batch.compile(kernels))

    def tensor(self, kernel: str, name: str, address: int) -> torch.Tensor:
        """The tensor that a parameter points to, found by its address and the segment's layout;
        what the segment does not know is scratch memory.
        """
        found = self._memory[kernel].get(name)
        if found is None:
            return next(held for held in self.memory if held.data_ptr() == address)
        dtype, strides = found.tensor.dtype.torch, found.layout.strides
        sizes = [static(d.size) for d in found.dims]
        if 0 in sizes:
            return torch.empty(sizes, dtype=dtype)
        for held in self.memory:
            storage = held.untyped_storage()
            offset = address - storage.data_ptr()
            if 0 <= offset < storage.nbytes():
                return torch.empty(0, dtype=dtype).set_(
                    storage, offset // dtype.itemsize, sizes, strides
                )
        raise AssertionError(f"{name} points to {address:#x}, where there is no tensor")


class _Checked:
    def __init__(self, target: Guarded, later: _Later) -> None:
        self.kernel = later.kernel
        self._target = target
        self._later = later

    def __call__(self, *args: Number) -> None:
        launch = self._later.batch.launch(self.kernel)
        assert isinstance(launch, HostLaunch)
        actual = [
            self._target.tensor(self.kernel.name, param.name, int(arg)) if param.is_pointer else arg
            for param, arg in zip(self.kernel.params, args, strict=True)
        ]
        debug_launch(launch, actual, order=self._target.order, seed=self._target.seed)
        self._target.launches += 1


@contextmanager
def allocations(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[[torch.Tensor], None]
) -> Iterator[None]:
    """Executables made inside show every tensor that they allocate to `seen`."""
    original = steps.allocator

    def allocator(device: torch.device) -> steps.Empty:
        empty = original(device)

        def recorded(
            sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
        ) -> torch.Tensor:
            made = empty(sizes, strides, dtype)
            seen(made)
            return made

        return recorded

    with monkeypatch.context() as patch:
        patch.setattr(steps, "allocator", allocator)
        yield


def tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor)]


ORDERS: tuple[OrderName, ...] = ("reverse", "random", "forward")


def check_between_guards(
    cases: Iterable[tuple[Case, CompiledFusion]], batch: Batch, patch: pytest.MonkeyPatch
) -> int:
    """Run cases between guard pages, threads and blocks in an order that the seed chooses, and
    check what they return. The number of launches.
    """
    cpu = torch.device("cpu")
    planned = []
    for case, fusion in cases:
        inputs = case.fresh_inputs()
        plan = fusion.plan(inputs)
        target = Guarded(batch, plan, ORDERS[case.seed % len(ORDERS)], case.seed)
        target.memory += tensors_in(inputs)
        with allocations(patch, target.memory.append):
            planned.append((case, inputs, target, compile_plan(plan, cpu, target)))
    for case, inputs, _, compiled in planned:
        case.check(compiled(inputs), case.updated(inputs))
    return sum(target.launches for _, _, target, _ in planned)


def every_other(device: torch.device, number: int, info: DeviceInfo = H200) -> Batch:
    """A batch with the device's own schedules, or if its number is odd and the host runs it, with
    those of a GPU: the text that the GPU would get.
    """
    return Batch(device, info if device.type == "cpu" and number % 2 else None)


def batch_for(device: torch.device, schedule: DeviceInfo | str | None) -> Batch:
    """A batch whose schedules are the device's "own", those of an "H200", or of a given device.

    A GPU runs its own schedules only: with others the test is skipped there.
    """
    info = {"own": None, "H200": H200}[schedule] if isinstance(schedule, str) else schedule
    if info is not None and device.type == "cuda":
        pytest.skip("a GPU's schedule is its own")
    return Batch(device, info)
