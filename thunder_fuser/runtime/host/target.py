"""The host target: kernels compiled by a C++ compiler, run on the CPU.

What CPU tensors run on, and how kernels are tested and debugged where there is no GPU. A CUDA
thread becomes an iteration of a loop, or a fiber if the kernel synchronises threads; blocks are
spread over OpenMP's threads (csrc_templates/host). `runtime/host/debug.py` has the launches that
look for errors.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Sequence

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo, PipeLanes
from thunder_fuser.errors import FuserError, FuserIndexError, KernelError
from thunder_fuser.runtime.arguments import UNFIT, ArgumentBlock
from thunder_fuser.runtime.host.abi import Call, Dim3, Failure, Flag
from thunder_fuser.runtime.host.build import Optimization, Program, Sanitizer, build
from thunder_fuser.runtime.host.pages import FRESH_BYTES
from thunder_fuser.runtime.limits import check_limits

_MESSAGE_BYTES = 1024
_KIB = 1024


class HostTarget:
    """Implements `Target` for the CPU.

    optimization  of kernels; -O1 compiles those of a GPU's schedules, whose time on a CPU says
                  nothing, in two thirds of the time
    """

    name = "host"

    def __init__(self, optimization: Optimization = "-O2") -> None:
        self._optimization = optimization

    def device_info(self, device: torch.device) -> DeviceInfo:
        """Describe the CPU; `device` only says that it is one.

        Where a GPU has limits, the host has the same ones: a kernel that runs here fits there.
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
            # Orders of magnitude, not measurements: plans must not depend on the day.
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
        """Compile `kernels` as one program, for tests with a sanitizer in it.

        checks  whether the program looks for misaligned vectors; unset: under host_debug

        Raises LimitError when a kernel exceeds a limit, TargetError when there is no compiler,
        CompileError when it rejects the source.
        """
        info = self.device_info(torch.device("cpu"))
        for kernel in kernels:
            check_limits(kernel, info)
        checks = current().host_debug if checks is None else checks
        program = build(kernels, sanitizer, checks, self._optimization)
        return tuple(HostLaunch(program, kernel) for kernel in kernels)


HOST = HostTarget()


class HostLaunch:
    """A compiled kernel; calling it runs the kernel to its end. Implements `Launch`."""

    __slots__ = ("_run", "_threads", "kernel", "program")

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.kernel = kernel
        self.program = program
        self._run = program.runtime.tf_launch
        # The options of the thread that compiles: others launch (autograd), with none of their own.
        debug = Flag.FAITHFUL | Flag.GUARD_SHARED if current().host_debug else Flag(0)
        threads = current().host_threads or 0
        self._threads = _PerThread(program.kernel_address(kernel), kernel, threads, debug)

    def __str__(self) -> str:
        return f"{self.kernel.name} for the CPU"

    def __call__(self, *args: int | float | bool) -> None:
        """Run to the end.

        Raises KernelError for what is noticed in every launch: divergent collectives and deadlock;
        FuserIndexError for an index among the data that does not exist.
        """
        prepared = self._threads.prepared
        try:
            prepared.arguments.pack(*args)
        except UNFIT:
            prepared.arguments.fill(args)
        failure = self._run(prepared.address)
        if failure:
            raise prepared.error(failure)


class PreparedCall:
    """Memory for the launches of one kernel by one thread.

    call     the geometry and how to run; may be changed between launches
    address  of `call`, for the runtime
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
        """Of the last launch, if it failed."""
        return self._message.value.decode(errors="replace")

    def error(self, failure: int) -> FuserError:
        """What to raise after a launch that failed so."""
        if failure == Failure.BAD_INDEX:
            return FuserIndexError(self.message)
        return KernelError(f"kernel {self._name}: {self.message}")


class _PerThread(threading.local):
    """One `PreparedCall` for each thread; made with the same arguments in all of them."""

    def __init__(self, kernel_address: int, kernel: Kernel, threads: int, flags: Flag) -> None:
        self.prepared = PreparedCall(kernel_address, kernel, threads, flags)
