"""The CUDA target: kernels compiled by NVRTC and launched through the CUDA driver API.

`compile` needs no device.  Machine code is made for the `cuda_arch` option if set, else for torch's
current device, else for sm_90; a launch on a device of another architecture compiles for that one
first.

A launch goes to torch's current device and stream, with arguments packed into memory of the calling
thread.  The bindings release the interpreter lock inside `cuLaunchKernel`, so memory shared between
threads (autograd runs backwards in its own) could change before the driver reads it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.errors import (
    REPORT,
    FuserValueError,
    KernelError,
    LimitError,
    LoadError,
    ResourceError,
    TargetError,
)
from thunder_fuser.runtime.binding.arguments import UNFIT, ArgumentBlock
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda.clusters import clusters_of
from thunder_fuser.runtime.cuda.nvrtc import (
    Cubin,
    Resources,
    compile_cubin,
    nearest_arch,
    nvrtc_version,
)
from thunder_fuser.runtime.cuda.unloading import Loaded, retired, unload_retired
from thunder_fuser.runtime.fork import Lock
from thunder_fuser.runtime.limits import check_limits

_DEFAULT_ARCH = "sm_90"


class CudaTarget:
    """Implementation of `Target` for CUDA devices, present or only planned for."""

    name = "cuda"

    def device_info(self, device: torch.device) -> DeviceInfo:
        """Describe `device`: from the driver, or from a data sheet if there is no driver.

        The `cuda_arch` option always selects a data sheet; FuserValueError if there is none for it.
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
        """Compile `kernels` as one program, and load it if there is a device, so that errors are
        raised here and not at the first launch.

        Raises LimitError if a kernel exceeds the device's limits, LoadError if the driver rejects
        it, TargetError if the driver is older than NVRTC, ResourceError if there is no memory.
        """
        unload_retired()
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
    """Return why the driver cannot load NVRTC's code; "" if it can, or if there is no driver."""
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
    """Compiled kernel; calling it enqueues a launch.  Implementation of `Launch`."""

    __slots__ = ("_program", "_threads", "kernel")

    def __init__(self, program: _Program, kernel: Kernel) -> None:
        self.kernel = kernel
        self._program = program
        self._threads = _PerThread()

    @property
    def resources(self) -> Resources:
        """Registers, spills and shared memory on the architecture first compiled for."""
        return self._program.planned.resources[self.kernel.name]

    def __str__(self) -> str:
        return f"{self.kernel.name} for {self._program.planned.arch}: {self.resources}"

    def __call__(self, *args: int | float | bool) -> None:
        """Enqueue on torch's current device and stream.

        Raises TargetError without a driver, KernelError if the driver rejects the launch, which it
        also does after an earlier kernel crashed.  There is no fallback to torch then, because
        other kernels of the call may have written already.
        """
        device = _current_device()
        idle = self._threads.idle
        # A signal handler that calls the same kernel meanwhile finds none, and makes its own.
        prepared = idle.pop(device, None) or self._prepare(device)
        try:
            try:
                prepared.arguments.pack(*args)
            except UNFIT:
                prepared.arguments.fill(args)
            stream = torch._C._cuda_getCurrentRawStream(device)
            if stream != prepared.stream:
                self._program.loaded.launched_on(device, stream)
                prepared.stream = stream
            (status,) = prepared.launch(stream, *prepared.rest)
        finally:
            idle[device] = prepared
        if status:
            with _final():
                cuda_driver.check(
                    (status,), f"launching kernel {self.kernel.name} on cuda:{device}"
                )
        loaded = self._program.loaded
        if not loaded.is_kept and torch._C._cuda_isCurrentStreamCapturing():
            loaded.is_kept = True

    def _prepare(self, device: int) -> _Prepared:
        api, kernel = cuda_driver.driver(), self.kernel
        with _final():
            cuda_driver.bind_context(device)
            function = self._program.function(kernel, device)
        launch = api.cuLaunchCooperativeKernel if kernel.cooperative else api.cuLaunchKernel
        arguments = ArgumentBlock(kernel)
        # `cuLaunchKernel` has an additional parameter, `extra`.
        rest = (arguments.address,) if kernel.cooperative else (arguments.address, 0)
        geometry = (*kernel.grid, *kernel.block, kernel.shared_bytes)
        enqueue = functools.partial(launch, function, *geometry)
        return _Prepared(enqueue if 0 not in kernel.grid else _nothing, rest, arguments)


@contextlib.contextmanager
def _final() -> Iterator[None]:
    """Turn errors of a compilation, after which torch may run a kernel's operations, into those of
    a launch.
    """
    try:
        yield
    except (LimitError, LoadError, ResourceError) as error:
        raise KernelError(str(error)) from error


@dataclass(slots=True)
class _Prepared:
    """Launch prepared for one thread and device, except for the stream: `launch(stream, *rest)`.

    stream  the stream of the last launch
    """

    launch: Callable[..., Any]
    rest: tuple[int, ...]
    arguments: ArgumentBlock
    stream: int | None = None


def _nothing(*_: object) -> tuple[int]:
    """Do nothing, in place of launching an empty grid, which the driver rejects."""
    return (0,)


class _PerThread(threading.local):
    """Thread-local launches, by device, that no launch of this thread is using."""

    def __init__(self) -> None:
        self.idle: dict[int, _Prepared] = {}


class _Program:
    """Kernels that were compiled together, and the libraries loaded from them."""

    def __init__(self, kernels: tuple[Kernel, ...], info: DeviceInfo) -> None:
        self._kernels = kernels
        self._lock = Lock()
        self.loaded = Loaded()
        weakref.finalize(self, retired.append, self.loaded).atexit = False
        self.planned = compile_cubin(kernels, info.arch)
        for kernel in kernels:
            self._check(kernel, self.planned, info)

    def function(self, kernel: Kernel, device: int) -> Any:
        """Return the driver's handle of `kernel` on `device`, compiling and loading if needed."""
        info = cuda_driver.describe(device)
        arch = nearest_arch(info.arch)
        with self._lock:
            same = arch == self.planned.arch
            cubin = self.planned if same else compile_cubin(self._kernels, arch)
            self._check(kernel, cubin, info)
            libraries = self.loaded.libraries
            try:
                with cuda_driver.beside_captures():
                    if arch not in libraries:
                        libraries[arch] = cuda_driver.load_library(cubin.image)
                    # Kernels of one text share a function, whose limit is that of the largest.
                    same_text = (k for k in self._kernels if k.name == kernel.name)
                    library, shared = libraries[arch], max(k.shared_bytes for k in same_text)
                    function = cuda_driver.load_function(library, kernel.name, shared)
            except KernelError as error:
                raise LoadError(
                    f"{error}. Kernel {kernel.name} is code of NVRTC {nvrtc_version()} for {arch}: "
                    "update the driver, or install an older nvidia-cuda-nvrtc"
                ) from error
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
    """Raise LimitError unless all blocks of a grid barrier, or one cluster, can be resident."""
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
            f"; {'THUNDER_FUSER_CLUSTERS=0 plans without clusters' if cluster > 1 else REPORT}"
        )


def _current_device() -> int:
    """Return torch's current device; TargetError without a driver."""
    try:
        return int(torch._C._cuda_getDevice())
    except (AttributeError, RuntimeError):
        cuda_driver.driver()
        raise
