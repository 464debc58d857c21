"""Thread block clusters of a device: how many of each size are on it at a time.

A cluster lies within one group of multiprocessors (GPC). How many of these a device has no
attribute says, and they differ from one chip to the next; the driver knows, of a kernel.
"""

from __future__ import annotations

import functools

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.errors import FuserError
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

_SIZES = 2, 4, 8
"""Of clusters that every device with clusters has."""
_NAME = "tf_nothing"
_NOTHING = Kernel(
    _NAME, f'extern "C" __global__ void {_NAME}() {{}}\n', (), (), (1, 1, 1), (1, 1, 1)
)


@functools.cache
def clusters_of(device: int) -> tuple[tuple[int, int], ...]:
    """`DeviceInfo.clusters` of a device: sizes, and how many such clusters there are at a time
    whose blocks have a multiprocessor each; none where the driver does not say.
    """
    if not cuda_driver.has_clusters(device):
        return ()
    info = cuda_driver.describe(device)
    # A block with all of it leaves no room for a second one.
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
    except FuserError:
        # Neither without NVRTC nor with a driver that is older: plans need neither.
        return ()
    return tuple((size, n) for size, n in zip(_SIZES, count, strict=True) if n)
