"""Data sheets of GPUs, so that plans and code for them can be made where none is present.

Figures are from NVIDIA's architecture white papers and the CUDA C++ Programming Guide's table of
technical specifications per compute capability. On a machine with a GPU the cuda target reads the
driver instead.
"""

from __future__ import annotations

from thunder_fuser.device import DeviceInfo

_GRID = (2**31 - 1, 65535, 65535)
_KIB = 1024
_MIB = 1024 * _KIB
LAUNCH_SECONDS = 3.5e-6
GRID_BARRIER_SECONDS = 4e-6
"""Orders of magnitude, of all GPUs: no data sheet says them."""

A100 = DeviceInfo(
    name="NVIDIA A100-SXM4-80GB",
    kind="cuda",
    arch="sm_80",
    sm_count=108,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_bytes_per_block=163 * _KIB,
    shared_bytes_per_sm=164 * _KIB,
    max_threads_per_block=1024,
    max_grid=_GRID,
    vector_bytes=16,
    bandwidth=2.039e12,
    l2_bytes=40 * _MIB,
    sector_bytes=32,
    bytes_in_flight_per_sm=24 * _KIB,
    fp32_rate=9.7e12,
    launch_seconds=LAUNCH_SECONDS,
    grid_barrier_seconds=GRID_BARRIER_SECONDS,
)

H200 = DeviceInfo(
    name="NVIDIA H200",
    kind="cuda",
    arch="sm_90",
    sm_count=132,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_bytes_per_block=227 * _KIB,
    shared_bytes_per_sm=228 * _KIB,
    max_threads_per_block=1024,
    max_grid=_GRID,
    vector_bytes=16,
    bandwidth=4.8e12,
    l2_bytes=50 * _MIB,
    sector_bytes=32,
    bytes_in_flight_per_sm=48 * _KIB,
    fp32_rate=33.5e12,
    launch_seconds=LAUNCH_SECONDS,
    grid_barrier_seconds=GRID_BARRIER_SECONDS,
)

B200 = DeviceInfo(
    name="NVIDIA B200",
    kind="cuda",
    arch="sm_100",
    sm_count=148,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_bytes_per_block=227 * _KIB,
    shared_bytes_per_sm=228 * _KIB,
    max_threads_per_block=1024,
    max_grid=_GRID,
    vector_bytes=16,
    bandwidth=8.0e12,
    l2_bytes=126 * _MIB,
    sector_bytes=32,
    bytes_in_flight_per_sm=64 * _KIB,
    fp32_rate=37e12,
    launch_seconds=LAUNCH_SECONDS,
    grid_barrier_seconds=GRID_BARRIER_SECONDS,
)

DATASHEETS = {info.arch: info for info in (A100, H200, B200)}
