"""The host target: kernels compiled by a C++ compiler and run on the CPU.

It runs kernels on CPU tensors, also to test and debug kernels without a GPU. A CUDA thread becomes
an iteration of a loop, or a fiber if the kernel synchronises threads; blocks are distributed over
OpenMP threads (csrc_templates/host). `runtime/host/debug.py` has launches with error checks.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Sequence
from functools import partial

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo, PipeLanes
from thunder_fuser.errors import FuserError, FuserIndexError, KernelError
from thunder_fuser.runtime.binding.arguments import UNFIT, ArgumentBlock
from thunder_fuser.runtime.host.abi import Call, Dim3, Failure, Flag
from thunder_fuser.runtime.host.build import Optimization, Program, Sanitizer, build
from thunder_fuser.runtime.host.pages import FRESH_BYTES
from thunder_fuser.runtime.limits import check_limits

_MESSAGE_BYTES = 1024
_KIB = 1024


class HostTarget:
    """Implementation of `Target` for the CPU.

    optimization  compiler optimisation level of kernels; "-O1" takes two thirds of the compile
                  time, for GPU schedules, whose run time on a CPU is irrelevant
    """

    name = "host"

    def __init__(self, optimization: Optimization = "-O2") -> None:
        self._optimization = optimization

    def device_info(self, device: torch.device) -> DeviceInfo:
        """Describe the CPU; `device` is ignored.

        Limits are those of a GPU, so that a kernel that runs on the host fits a GPU, too.
        """
        cores = current().host_threads or torch.get_num_threads()
        return DeviceInfo(
            name=f"host, {cores} threads",
            kind="host",
            arch=platform.machine().replace("_", "-"),
            sm_count=cores,
            threads_per_sm=2048,
            blocks_per_sm=32,
            registers_per_sm=65536,
            shared_bytes_per_block=227 * _KIB,
            shared_bytes_per_sm=228 * _KIB,
            shared_bytes_reserved=_KIB,
            max_threads_per_block=1024,
            max_grid=(2**31 - 1, 65535, 65535),
            vector_bytes=64,
            # Orders of magnitude, not measurements, so that plans are reproducible.
            bandwidth=2e10,
            l2_bytes=1024 * _KIB,
            sector_bytes=32,
            bytes_in_flight_per_sm=0,
            fp32_rate=1e11,
            launch_seconds=5e-6,
            grid_barrier_seconds=2e-5,
            lanes=PipeLanes(fma=16, alu=16, xu=2, lsu=16, fp64=8, issue=32),
            load_seconds=1e-7,
            copy_share=1.0,
            threads_are_serial=True,
            prefetches_by_software=True,
            outer_cache_bytes=24 * _KIB * _KIB,
            fresh_bytes=FRESH_BYTES,
        )

    def compile(
        self,
        kernels: Sequence[Kernel],
        sanitizer: Sanitizer | None = None,
        checks: bool | None = None,
    ) -> tuple[HostLaunch, ...]:
        """Compile `kernels` as one program; one launch for each.

        sanitizer  sanitizer to compile with, for tests
        checks     check the alignment of vector accesses; None: as the option `host_debug`

        Raises LimitError if a kernel exceeds a limit, TargetError without a compiler, CompileError
        if it rejects the source.
        """
        info = self.device_info(torch.device("cpu"))
        for kernel in kernels:
            check_limits(kernel, info)
        checks = current().host_debug if checks is None else checks
        program = build(kernels, sanitizer, checks, self._optimization)
        return tuple(HostLaunch(program, kernel) for kernel in kernels)


HOST = HostTarget()


class HostLaunch:
    """Compiled kernel; calling it runs the kernel to completion. Implementation of `Launch`."""

    __slots__ = ("_run", "_threads", "kernel", "program")

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.kernel = kernel
        self.program = program
        self._run = program.runtime.tf_launch
        # Options of the compiling thread: launching threads (autograd) have none of their own.
        debug = Flag.FAITHFUL | Flag.GUARD_SHARED if current().host_debug else Flag(0)
        threads = current().host_threads or 0
        self._threads = _PerThread(program.kernel_address(kernel), kernel, threads, debug)

    def __str__(self) -> str:
        return f"{self.kernel.name} for the CPU"

    def __call__(self, *args: int | float | bool) -> None:
        """Run to completion.

        Raises KernelError for divergent collectives and deadlock, which every launch detects, and
        FuserIndexError for an index in the data that is out of range.
        """
        threads = self._threads
        prepared = threads.idle or threads.another()
        # A signal handler that calls the same kernel meanwhile finds none, and makes its own.
        threads.idle = None
        try:
            try:
                prepared.arguments.pack(*args)
            except UNFIT:
                prepared.arguments.fill(args)
            failure = self._run(prepared.address)
            if failure:
                raise prepared.error(failure)
        finally:
            threads.idle = prepared


class PreparedCall:
    """Memory for the launches of one kernel by one thread.

    call     geometry and launch options; may be changed between launches
    address  address of `call`, for the runtime library
    """

    def __init__(self, kernel_address: int, kernel: Kernel, threads: int, flags: Flag) -> None:
        self.arguments = ArgumentBlock(kernel)
        self._name = kernel.name
        self._message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if not kernel.collectives:
            flags |= Flag.PLAIN
        if kernel.cooperative:
            flags |= Flag.RESIDENT
        self.call = Call(
            kernel=kernel_address,
            args=self.arguments.address,
            message=ctypes.addressof(self._message),
            message_bytes=_MESSAGE_BYTES,
            grid=Dim3(*kernel.grid),
            block=Dim3(*kernel.block),
            cluster=kernel.cluster,
            shared_bytes=kernel.shared_bytes,
            threads=threads,
            flags=flags,
            shared_fill=0xFF,
        )
        self.address = ctypes.addressof(self.call)

    @property
    def message(self) -> str:
        """Error message of the last launch, if it failed."""
        return self._message.value.decode(errors="replace")

    def error(self, failure: int) -> FuserError:
        """Return the exception for a launch that failed with `failure`."""
        if failure == Failure.BAD_INDEX:
            return FuserIndexError(self.message)
        return KernelError(f"kernel {self._name}: {self.message}")


class _PerThread(threading.local):
    """Thread-local `PreparedCall`, made with equal arguments in each thread.

    idle  the one that no launch of this thread is using, if any
    """

    def __init__(self, kernel_address: int, kernel: Kernel, threads: int, flags: Flag) -> None:
        # OpenMP's number of threads is per thread; torch sets it when it is asked for its own.
        torch.get_num_threads()
        self._make = partial(PreparedCall, kernel_address, kernel, threads, flags)
        self.idle: PreparedCall | None = self._make()

    def another(self) -> PreparedCall:
        return self._make()
