"""Thread block clusters of a device: how many of each size are resident at a time.

A cluster lies within one GPC (graphics processing cluster). No device attribute gives the number of
GPCs, which differ from chip to chip; the driver computes the number of clusters for a kernel.
"""

from __future__ import annotations

import functools
import logging

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.errors import FuserError, ResourceError
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

_log = logging.getLogger(__name__)

_SIZES = 2, 4, 8
"""Cluster sizes in blocks that every device with clusters supports."""
_NAME = "tf_nothing"
_NOTHING = Kernel(
    _NAME, f'extern "C" __global__ void {_NAME}() {{}}\n', (), (), (1, 1, 1), (1, 1, 1)
)


def clusters_of(device: int) -> tuple[tuple[int, int], ...]:
    """Return `DeviceInfo.clusters` of a device: pairs of cluster size and number of clusters that
    are resident with a multiprocessor for each block; () if the driver does not give it, or has no
    memory for the kernel to ask about: then the next plan asks again.
    """
    try:
        return _asked(device)
    except ResourceError as error:
        _log.info("a plan for cuda:%d has no clusters: %s", device, error)
        return ()


@functools.cache
def _asked(device: int) -> tuple[tuple[int, int], ...]:
    """Ask the driver. Raises ResourceError, so that only answers are cached."""
    if not cuda_driver.has_clusters(device):
        return ()
    info = cuda_driver.describe(device)
    # All shared memory, so that no second block fits on the multiprocessor.
    shared = info.shared_bytes_per_block
    try:
        with cuda_driver.context_of(device), cuda_driver.beside_captures():
            library = cuda_driver.load_library(compile_cubin([_NOTHING], info.arch).image)
            try:
                function = cuda_driver.load_function(library, _NAME, shared)
                ask = functools.partial(cuda_driver.resident_clusters, function)
                count = [ask(size, WARP_SIZE, shared) for size in _SIZES]
            finally:
                cuda_driver.unload_library(library)
    except ResourceError:
        raise
    except FuserError:
        # NVRTC is missing or the driver is older than it; planning needs neither.
        return ()
    return tuple((size, n) for size, n in zip(_SIZES, count, strict=True) if n)
