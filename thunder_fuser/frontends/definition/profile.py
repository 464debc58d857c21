"""Profiles of calls, kernel by kernel: `execute(profile=True)` and `PythonProfiler`."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from thunder_fuser.codegen.kernel import Extent3
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserError
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.target import target_for


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One kernel launch. Times in milliseconds, bytes as the plan counts them, bandwidths in GB/s.

    device, stream  indices of the GPU and its stream; -1 and 0 on a CPU
    shared_bytes    dynamic shared memory per block
    registers       registers per thread; 0: not reported
    cluster         blocks per thread block cluster
    """

    name: str
    segment_id: int
    scheduler: str
    time_ms: float
    input_bytes: int
    output_bytes: int
    grid: Extent3
    block: Extent3
    shared_bytes: int
    peak_bandwidth_gbs: float
    device: int = -1
    stream: int = 0
    compile_time_ms: float = 0.0
    registers: int = 0
    correlation_id: int = 0
    cluster: int = 1

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes read and written per second of kernel time, in GB/s."""
        return (self.input_bytes + self.output_bytes) / max(self.time_ms, 1e-9) / 1e6

    @property
    def percentage_peak_bandwidth(self) -> float:
        """Effective bandwidth in percent of the device's memory bandwidth."""
        return 100 * self.effective_bandwidth_gbs / self.peak_bandwidth_gbs

    @property
    def grid_str(self) -> str:
        """Blocks per grid dimension, as "[x, y, z]"."""
        return _extents(self.grid)

    @property
    def block_str(self) -> str:
        """Threads per block dimension, as "[x, y, z]"."""
        return _extents(self.block)

    @property
    def cluster_str(self) -> str:
        """Blocks per cluster dimension, as "[x, y, z]"."""
        return _extents((self.cluster, 1, 1))

    @property
    def shared_mem_str(self) -> str:
        """Shared memory in bytes, as "[dynamic, static]"; static is reported as 0."""
        return f"[{self.shared_bytes}, 0]"


def _extents(extents: Extent3) -> str:
    return f"[{', '.join(map(str, extents))}]"


@dataclass(frozen=True, slots=True)
class FusionProfile:
    """One call, of `segments` segments. Times in milliseconds.

    host_time_ms     wall time until the device has finished, compiling included
    compile_time_ms  planning and compiling, part of host_time_ms; 0 for inputs of a known kind
    kernel_profiles  launches in order
    input_bytes, output_bytes   sizes of the call's tensors; `bytes` is what its kernels move
    """

    host_time_ms: float
    compile_time_ms: float
    segments: int
    kernel_profiles: tuple[KernelProfile, ...]
    bytes: int
    input_bytes: int
    output_bytes: int
    fusion_id: int = 0
    verbose: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the launched kernels, in order."""
        return tuple(k.name for k in self.kernel_profiles)

    @property
    def kernel_time_ms(self) -> float:
        """Sum of the kernel times, without the gaps between launches."""
        return sum(k.time_ms for k in self.kernel_profiles)

    cuda_evt_time_ms = kernel_time_ms

    @property
    def effective_bandwidth_gbs(self) -> float:
        """GB/s over the kernel time, or over the wall time of a call without kernels."""
        return self.bytes / max(self.kernel_time_ms or self.host_time_ms, 1e-9) / 1e6

    @property
    def percentage_peak_bandwidth(self) -> float:
        """Effective bandwidth in percent of the device's memory bandwidth; 0 without kernels."""
        peaks = [k.peak_bandwidth_gbs for k in self.kernel_profiles]
        return 100 * self.effective_bandwidth_gbs / peaks[0] if peaks else 0.0

    percentage_peak_bandwith = percentage_peak_bandwidth


def profiled(
    compiled: CompiledFusion, inputs: Sequence[Any], device: torch.device | None, fusion_id: int = 0
) -> tuple[list[torch.Tensor], FusionProfile]:
    """Run one call; return its outputs and its profile."""
    is_new = not compiled.is_compiled(inputs, device)
    start = time.perf_counter()
    executable = compiled.executable_for(inputs, device)
    ready = time.perf_counter()
    outputs, times = executable.timed(inputs)
    if executable.device.type == "cuda":
        torch.cuda.synchronize(executable.device)
    end = time.perf_counter()
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    profile = FusionProfile(
        host_time_ms=1e3 * (end - start),
        compile_time_ms=1e3 * (ready - start) if is_new else 0.0,
        segments=len(executable.plan.segments),
        kernel_profiles=_kernel_profiles(executable, times),
        bytes=executable.plan.bytes,
        input_bytes=sum(x.numel() * x.itemsize for x in tensors),
        output_bytes=sum(x.numel() * x.itemsize for x in outputs),
        fusion_id=fusion_id,
    )
    _latest.set(profile)
    return outputs, profile


def _kernel_profiles(
    executable: Executable, times: Sequence[tuple[int, float]]
) -> tuple[KernelProfile, ...]:
    device = executable.device
    is_cuda = device.type == "cuda"
    stream = torch.cuda.current_stream(device).stream_id if is_cuda else 0
    index = torch.cuda.current_device() if is_cuda and device.index is None else device.index
    peak = target_for(device).device_info(device).bandwidth / 1e9
    segments = executable.plan.segments
    return tuple(
        KernelProfile(
            name=kernel.name,
            segment_id=segment,
            scheduler=segments[segment].kind,
            time_ms=1e3 * seconds,
            input_bytes=int(segments[segment].bytes_read),
            output_bytes=int(segments[segment].bytes_written),
            grid=kernel.grid,
            block=kernel.block,
            shared_bytes=kernel.shared_bytes,
            peak_bandwidth_gbs=peak,
            device=index if is_cuda else -1,
            stream=stream,
            cluster=kernel.cluster,
        )
        for kernel, (segment, seconds) in zip(executable.kernels, times, strict=True)
    )


# ---- the profiler

_latest: contextvars.ContextVar[FusionProfile | None] = contextvars.ContextVar(
    "thunder_fuser_profile", default=None
)
_active: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "thunder_fuser_profiler", default=False
)


def is_profiling() -> bool:
    """True if a `PythonProfiler` is open around this call."""
    return _active.get()


def get_fusion_profile() -> FusionProfile:
    """The profile of the last measured call; FuserError if there is none."""
    found = _latest.get()
    if found is None:
        raise FuserError(
            "nothing is measured yet: run a definition inside `with PythonProfiler()`, or with "
            "execute(inputs, profile=True)"
        )
    return found


def reset_profiler() -> None:
    """Discard the last profile."""
    _latest.set(None)


class PythonProfiler:
    """Context manager that measures every `execute` in its `with` block; `profile` is the last
    one's.

    `auto_scheduled` is nvFuser's and ignored: here every definition is.
    """

    def __init__(self, auto_scheduled: bool = True) -> None:
        self._token: contextvars.Token[bool] | None = None

    def __enter__(self) -> PythonProfiler:
        reset_profiler()
        self._token = _active.set(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _active.reset(self._token)

    @property
    def profile(self) -> FusionProfile:
        return get_fusion_profile()

    get_fusion_profile = profile

    def reset(self) -> None:
        """Discard the last profile."""
        reset_profiler()
