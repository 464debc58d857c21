"""The CUDA target: kernels through NVRTC onto the devices of the NVIDIA driver.

`compile` needs no device.  Machine code is made for the device that torch has selected, for the one
that the `cuda_arch` option names, or for an sm_90, in that order of what is there; a launch on a
device of another architecture compiles for that one first.

A launch goes to torch's current device and stream, with arguments packed into memory that belongs
to the calling thread.  The bindings release the interpreter lock inside `cuLaunchKernel`, so memory
shared between threads (autograd runs backwards in its own) could change before the driver reads it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.errors import FuserValueError, KernelError, LimitError, LoadError, TargetError
from thunder_fuser.runtime.arguments import UNFIT, ArgumentBlock
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda.clusters import clusters_of
from thunder_fuser.runtime.cuda.nvrtc import (
    Cubin,
    Resources,
    compile_cubin,
    nearest_arch,
    nvrtc_version,
)
from thunder_fuser.runtime.limits import check_limits

_DEFAULT_ARCH = "sm_90"


class CudaTarget:
    """Implements `Target` for CUDA devices, present or only planned for."""

    name = "cuda"

    def device_info(self, device: torch.device) -> DeviceInfo:
        """Describe `device`: from the driver, or from a data sheet where there is no driver.

        The `cuda_arch` option selects a data sheet whatever the machine has; FuserValueError when
        there is none for it.
        """
        options = current()
        arch = options.cuda_arch
        if arch is None and cuda_driver.driver_available():
            index = _current_device() if device.index is None else device.index
            return replace(
                cuda_driver.describe(index), clusters=clusters_of(index) if options.clusters else ()
            )
        arch = arch or _DEFAULT_ARCH
        if arch not in DATASHEETS:
            raise FuserValueError(
                f"cuda_arch: nothing is known about devices of {arch}; "
                f"without such a device the choice is {', '.join(DATASHEETS)}"
            )
        found = DATASHEETS[arch]
        return found if options.clusters else replace(found, clusters=())

    def compile(self, kernels: Sequence[Kernel]) -> tuple[CudaLaunch, ...]:
        """Compile `kernels` as one program, and load it where there is a device: what goes wrong
        before a launch goes wrong here.

        LimitError when a kernel exceeds the device's limits, LoadError when the driver does not
        take it, TargetError when it is older than NVRTC.
        """
        _unload_retired()
        if problem := version_problem():
            raise TargetError(problem)
        program = _Program(tuple(kernels), self.device_info(torch.device("cuda")))
        if cuda_driver.driver_available():
            device = _current_device()
            cuda_driver.bind_context(device)
            for kernel in kernels:
                program.function(kernel, device)
        return tuple(CudaLaunch(program, kernel) for kernel in kernels)


CUDA = CudaTarget()


def version_problem() -> str:
    """Why the driver does not take what NVRTC makes; "" if it does, or if there is no driver."""
    if not cuda_driver.driver_available():
        return ""
    driver, nvrtc = cuda_driver.driver_version(), nvrtc_version()
    newest, made = (int(version.split(".")[0]) for version in (driver, nvrtc))
    if made <= newest:
        return ""
    return (
        f"the NVIDIA driver is for CUDA {driver} and does not take code of NVRTC {nvrtc}: update "
        f"the driver, or install NVRTC {newest} (pip install 'nvidia-cuda-nvrtc-cu{newest}')"
    )


class CudaLaunch:
    """A compiled kernel; calling it enqueues a launch.  Implements `Launch`."""

    __slots__ = ("_program", "_threads", "kernel")

    def __init__(self, program: _Program, kernel: Kernel) -> None:
        self.kernel = kernel
        self._program = program
        self._threads = _PerThread()

    @property
    def resources(self) -> Resources:
        """Registers, spills and shared memory on the device that it was compiled for first."""
        return self._program.planned.resources[self.kernel.name]

    def __str__(self) -> str:
        return f"{self.kernel.name} for {self._program.planned.arch}: {self.resources}"

    def __call__(self, *args: int | float | bool) -> None:
        """Enqueue on torch's current device and stream.

        Raises TargetError without a driver, KernelError when the driver rejects the launch, which
        it also does when an earlier kernel has crashed.  Torch does not replace that: others of the
        same call may have written already.
        """
        device = _current_device()
        prepared = self._threads.prepared.get(device) or self._prepare(device)
        try:
            prepared.arguments.pack(*args)
        except UNFIT:
            prepared.arguments.fill(args)
        (status,) = prepared.launch(torch._C._cuda_getCurrentRawStream(device), *prepared.rest)
        if status:
            cuda_driver.check((status,), f"launching kernel {self.kernel.name} on cuda:{device}")
        if torch._C._cuda_isCurrentStreamCapturing():
            self._program.loaded.is_captured = True

    def _prepare(self, device: int) -> _Prepared:
        api = cuda_driver.driver()
        cuda_driver.bind_context(device)
        kernel = self.kernel
        try:
            function = self._program.function(kernel, device)
        except (LimitError, LoadError) as error:
            raise KernelError(str(error)) from error
        launch = api.cuLaunchCooperativeKernel if kernel.cooperative else api.cuLaunchKernel
        arguments = ArgumentBlock(kernel)
        # An ordinary launch has one more parameter, for another way to pass arguments.
        rest = (arguments.address,) if kernel.cooperative else (arguments.address, 0)
        geometry = (*kernel.grid, *kernel.block, kernel.shared_bytes)
        enqueue = functools.partial(launch, function, *geometry)
        prepared = _Prepared(enqueue if 0 not in kernel.grid else _nothing, rest, arguments)
        self._threads.prepared[device] = prepared
        return prepared


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A launch in one thread on one device, but for the stream: `launch(stream, *rest)`."""

    launch: Callable[..., Any]
    rest: tuple[int, ...]
    arguments: ArgumentBlock


def _nothing(*_: object) -> tuple[int]:
    """The launch of a grid without blocks, which the driver rejects."""
    return (0,)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.prepared: dict[int, _Prepared] = {}


@dataclass(slots=True)
class _Loaded:
    """What the driver holds of a program.

    is_captured  a CUDA graph may launch it as long as the process runs, and nobody knows of it
    """

    libraries: dict[str, Any] = field(default_factory=dict)
    devices: set[int] = field(default_factory=set)
    is_captured: bool = False


_retired: list[_Loaded] = []
"""Of programs that nobody refers to any more. Their last launches may still run."""


def _unload_retired() -> None:
    """Unload them, when something is compiled anyway: it means to wait for their devices, which a
    stream that is being captured must not.
    """
    gone = []
    with contextlib.suppress(IndexError):  # other threads compile, too
        while _retired:
            gone.append(_retired.pop())
    waiting = [loaded for loaded in gone if loaded.libraries and not loaded.is_captured]
    if not waiting:
        return
    if torch._C._cuda_isCurrentStreamCapturing():
        _retired.extend(waiting)
        return
    for device in sorted(set().union(*(loaded.devices for loaded in waiting))):
        cuda_driver.synchronize(device)
    for loaded in waiting:
        for library in loaded.libraries.values():
            cuda_driver.unload_library(library)


class _Program:
    """Kernels that were compiled together, and where they are loaded."""

    def __init__(self, kernels: tuple[Kernel, ...], info: DeviceInfo) -> None:
        self._kernels = kernels
        self._lock = threading.Lock()
        self.loaded = _Loaded()
        weakref.finalize(self, _retired.append, self.loaded).atexit = False
        self.planned = compile_cubin(kernels, info.arch)
        for kernel in kernels:
            self._check(kernel, self.planned, info)

    def function(self, kernel: Kernel, device: int) -> Any:
        """The driver's handle for `kernel` in the context of `device`."""
        info = cuda_driver.describe(device)
        arch = nearest_arch(info.arch)
        with self._lock:
            same = arch == self.planned.arch
            cubin = self.planned if same else compile_cubin(self._kernels, arch)
            self._check(kernel, cubin, info)
            libraries = self.loaded.libraries
            self.loaded.devices.add(device)
            try:
                with cuda_driver.beside_captures():
                    if arch not in libraries:
                        libraries[arch] = cuda_driver.load_library(cubin.image)
                    library, shared = libraries[arch], kernel.shared_bytes
                    function = cuda_driver.load_function(library, kernel.name, shared)
            except KernelError as error:
                raise LoadError(str(error)) from error
        if kernel.cooperative or kernel.cluster > 1:
            _check_residency(kernel, function, info)
        return function

    @staticmethod
    def _check(kernel: Kernel, cubin: Cubin, info: DeviceInfo) -> None:
        found = cubin.resources[kernel.name]
        check_limits(
            kernel, info, registers=found.registers, static_shared_bytes=found.shared_bytes
        )


def _check_residency(kernel: Kernel, function: Any, info: DeviceInfo) -> None:
    """A grid barrier waits for every block, so all of them have to be on the device at once, and a
    cluster's for all of the cluster.
    """
    threads, shared, cluster = math.prod(kernel.block), kernel.shared_bytes, kernel.cluster
    if cluster == 1:
        fit = info.sm_count * cuda_driver.resident_blocks(function, threads, shared)
    else:
        fit = cluster * cuda_driver.resident_clusters(function, cluster, threads, shared)
    blocks = math.prod(kernel.grid) if kernel.cooperative else min(cluster, math.prod(kernel.grid))
    if blocks > fit:
        of = f" in clusters of {cluster}" if cluster > 1 else ""
        raise LimitError(
            f"kernel {kernel.name} cannot run on {info.name}: its {blocks} blocks{of} wait for "
            f"each other and only {fit} fit on the device at once"
            + ("; THUNDER_FUSER_CLUSTERS=0 plans without clusters" if cluster > 1 else "")
        )


def _current_device() -> int:
    """Torch's current device; TargetError where torch or the machine knows none."""
    try:
        return int(torch._C._cuda_getDevice())
    except (AttributeError, RuntimeError):
        cuda_driver.driver()
        raise
