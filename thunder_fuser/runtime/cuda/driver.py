"""The CUDA driver: availability, device properties, and loading of machine code.

`driver_problem` calls the dynamic loader and `cuInit`, once, before any binding uses the driver:
without one, some calls of the bindings fail on the first attempt and hang on the second. Every
function below goes through `driver`, which checks it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import (
    COPY_SHARE,
    DATASHEETS,
    GRID_BARRIER_SECONDS,
    LAUNCH_SECONDS,
    LOAD_SECONDS,
    PIPES,
)
from thunder_fuser.errors import KernelError, ResourceError, TargetError

# Load latency in seconds on a busy device.  Bandwidth times latency is the bytes in flight (law of
# Little): 1.3 us gives the 25 KB per multiprocessor of an A100, the 47 KB of an H200.
_LATENCY = 1.3e-6
# Architectures without a data sheet, and the closest one that has one.
_LIKE = {
    "sm_70": "sm_75",
    "sm_72": "sm_75",
    "sm_87": "sm_86",
    "sm_103": "sm_100",
    "sm_121": "sm_120",
}
_MOST_IN_FLIGHT = 96 * 1024
"""Limit of `bytes_in_flight_per_sm`: registers for more would spill. It matters because a MIG
instance may report the bandwidth of the whole device.
"""
_OUT_OF_MEMORY = 2
_CRASHES = (700, 702, 710, *range(714, 720))
"""Errors of the driver that stay: illegal addresses and instructions, time-outs, assertions."""
_UNREPORTED = DATASHEETS["sm_80"]
"""Source of rates that the driver reports as 0, as drivers of virtual devices do."""


@functools.cache
def driver_problem() -> str:
    """Return why CUDA kernels cannot run on this machine; "" if they can."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver is installed ({error})"
    status = library.cuInit(0)
    return f"the NVIDIA driver reports error {status} (100: it finds no device)" if status else ""


def driver_available() -> bool:
    """True if there is a driver with a device."""
    return not driver_problem()


@functools.cache
def driver() -> Any:
    """Return the bindings of the initialised driver; TargetError without a driver."""
    if problem := driver_problem():
        raise TargetError(
            f"CUDA kernels cannot run here: {problem}. Plans can be made and compiled, but not "
            "launched: install a driver that nvidia-smi runs with, or move the tensors to the CPU"
        )
    from cuda.bindings import driver as bindings

    return bindings


def check(result: tuple[Any, ...], what: str) -> Any:
    """Return the value of a driver call; ResourceError if the driver has no memory for it, and
    KernelError "`what` failed: ..." for any other error.
    """
    status, *values = result
    if int(status) == _OUT_OF_MEMORY:
        raise ResourceError(
            f"{what} failed: the GPU or the host has no memory left; free some "
            "(torch.cuda.empty_cache()) and call it again"
        )
    if int(status):
        _, text = driver().cuGetErrorString(status)
        remedy = "`python -m thunder_fuser doctor` tries the driver"
        if int(status) in _CRASHES:
            remedy = (
                "a kernel crashed before, and this process cannot use the GPU any more: restart it "
                "with CUDA_LAUNCH_BLOCKING=1 to see which"
            )
        raise KernelError(f"{what} failed: {status.name}, {text.decode()}; {remedy}")
    return values[0] if values else None


def driver_version() -> str:
    """Return the newest CUDA version that the driver supports, such as "13.0"."""
    number = check(driver().cuDriverGetVersion(), "asking for the driver's version")
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def describe(device: int) -> DeviceInfo:
    """Return the device's parameters as its driver reports them; clusters are left empty."""
    ask = functools.partial(_attribute, device)
    name = check(
        driver().cuDeviceGetName(256, _handle(device)), f"asking cuda:{device} for its name"
    )
    # Two transfers per clock; the clock is in kHz and the bus width in bits.
    bandwidth = 2e3 * ask("MEMORY_CLOCK_RATE") * ask("GLOBAL_MEMORY_BUS_WIDTH") / 8
    bandwidth = bandwidth or _UNREPORTED.bandwidth
    sm_count = ask("MULTIPROCESSOR_COUNT")
    capability = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
    arch = "sm_{}{}".format(*capability)
    lanes = PIPES.get(_LIKE.get(arch, arch), PIPES["sm_90"])
    fp32_rate = sm_count * lanes.fma * 1e3 * ask("CLOCK_RATE")
    return DeviceInfo(
        name=name.partition(b"\0")[0].decode(),
        kind="cuda",
        arch=arch,
        sm_count=sm_count,
        threads_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_per_sm=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers_per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_bytes_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        shared_bytes_reserved=ask("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        max_threads_per_block=ask("MAX_THREADS_PER_BLOCK"),
        max_grid=(ask("MAX_GRID_DIM_X"), ask("MAX_GRID_DIM_Y"), ask("MAX_GRID_DIM_Z")),
        vector_bytes=16,
        bandwidth=bandwidth,
        l2_bytes=ask("L2_CACHE_SIZE") or _UNREPORTED.l2_bytes,
        sector_bytes=32,
        bytes_in_flight_per_sm=min(round(bandwidth / sm_count * _LATENCY), _MOST_IN_FLIGHT),
        fp32_rate=fp32_rate or _UNREPORTED.fp32_rate,
        launch_seconds=LAUNCH_SECONDS,
        grid_barrier_seconds=GRID_BARRIER_SECONDS,
        lanes=lanes,
        load_seconds=LOAD_SECONDS,
        copy_share=COPY_SHARE,
    )


def _handle(device: int) -> Any:
    return check(driver().cuDeviceGet(device), f"opening cuda:{device}")


def _attribute(device: int, name: str) -> int:
    attribute = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    result = driver().cuDeviceGetAttribute(attribute, _handle(device))
    return int(check(result, f"asking cuda:{device} for {name}"))


def bind_context(device: int) -> None:
    """Make sure that this thread has a context.

    Torch binds one at its first runtime call in a thread; an autograd thread that has only used
    cached memory may launch a kernel before that.
    """
    api = driver()
    if not int(check(api.cuCtxGetCurrent(), "asking for the current context")):
        retained = api.cuDevicePrimaryCtxRetain(_handle(device))
        context = check(retained, f"retaining the context of cuda:{device}")
        check(api.cuCtxSetCurrent(context), f"binding the context of cuda:{device}")


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Set the relaxed capture mode: calls inside, such as loading kernels, are not recorded in a
    CUDA graph and do not invalidate an ongoing stream capture.
    """
    api = driver()
    change = api.cuThreadExchangeStreamCaptureMode
    relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(change(relaxed), "changing the mode of captures")
    try:
        yield
    finally:
        check(change(before), "changing the mode of captures back")


def load_library(image: bytes) -> Any:
    """Load a cubin into the driver, which may leave the device's memory for `load_function`."""
    result = driver().cuLibraryLoadData(image, [], [], 0, [], [], 0)
    return check(result, "loading a compiled program")


def unload_library(library: Any) -> None:
    """Unload a cubin from the driver; none of its kernels may be running."""
    check(driver().cuLibraryUnload(library), "unloading a compiled program")


@contextlib.contextmanager
def context_of(device: int) -> Iterator[None]:
    """Make a device's primary context current in this thread, inside the block."""
    api = driver()
    retained = api.cuDevicePrimaryCtxRetain(_handle(device))
    context = check(retained, f"retaining the context of cuda:{device}")
    before = check(api.cuCtxGetCurrent(), "asking for the current context")
    check(api.cuCtxSetCurrent(context), f"binding the context of cuda:{device}")
    try:
        yield
    finally:
        check(api.cuCtxSetCurrent(before), "binding the context from before")


def may_be_capturing(stream: int) -> bool:
    """True if a stream of the current context is captured, or, for the default stream, any other
    that synchronises with it.
    """
    api = driver()
    status, captured = api.cuStreamIsCapturing(stream)
    if status == api.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return True
    idle = api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(check((status, captured), "asking whether a stream is captured") != idle)


def recorded_event(stream: int) -> Any:
    """Record a new event on a stream of the current context, which must not be captured."""
    api = driver()
    flags = int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    event = check(api.cuEventCreate(flags), "making an event")
    check(api.cuEventRecord(event, stream), "recording an event")
    return event


def is_complete(event: Any) -> bool:
    """True if the work before a recorded event has finished; False also after a kernel crashed."""
    api = driver()
    return bool(api.cuEventQuery(event)[0] == api.CUresult.CUDA_SUCCESS)


def destroy_event(event: Any) -> None:
    """Destroy an event."""
    check(driver().cuEventDestroy(event), "destroying an event")


def load_function(library: Any, name: str, shared_bytes: int) -> Any:
    """Return the kernel `name` in the current context, with `shared_bytes` as the limit of its
    dynamic shared memory per block.
    """
    api = driver()
    kernel = check(api.cuLibraryGetKernel(library, name.encode()), f"finding kernel {name}")
    function = check(api.cuKernelGetFunction(kernel), f"loading kernel {name}")
    attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    # The default limit is 48 KiB.
    result = api.cuFuncSetAttribute(function, attribute, shared_bytes)
    check(result, f"giving kernel {name} {shared_bytes} bytes of shared memory")
    return function


def resident_blocks(function: Any, threads: int, shared_bytes: int) -> int:
    """Return the resident blocks of a kernel per multiprocessor."""
    ask = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
    return int(check(ask(function, threads, shared_bytes), "asking for the occupancy"))


def has_clusters(device: int) -> bool:
    """True if a device supports thread block clusters."""
    return bool(_attribute(device, "CLUSTER_LAUNCH"))


def resident_clusters(function: Any, cluster: int, threads: int, shared_bytes: int) -> int:
    """Return how many clusters of `cluster` blocks of a kernel are resident on the device."""
    api = driver()
    size = api.CUlaunchAttribute()
    size.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = cluster, 1, 1
    launch = api.CUlaunchConfig()
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = cluster, 1, 1
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = threads, 1, 1
    launch.sharedMemBytes = shared_bytes
    launch.attrs, launch.numAttrs = [size], 1
    result = api.cuOccupancyMaxActiveClusters(function, launch)
    return int(check(result, f"asking for the occupancy of clusters of {cluster}"))
