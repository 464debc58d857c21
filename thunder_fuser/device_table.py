"""Data sheets of GPUs, for planning and generating code on machines without them.

Values are from NVIDIA's architecture white papers and the CUDA C++ Programming Guide's table of
technical specifications per compute capability. On a machine with a GPU the cuda target reads the
driver instead.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.device import DeviceInfo, Link, PipeLanes

_KIB = 1024
_MIB = 1024 * _KIB
LAUNCH_SECONDS = 2.9e-6
GRID_BARRIER_SECONDS = 1.6e-6
COPY_SHARE = 0.89
"""`launch_seconds`, `grid_barrier_seconds` and `copy_share` of `DeviceInfo`, none of which is in
data sheets. Measured on an H200 (benchmarks/results/nvidia-h200.md): kernels of [16, 64], barriers
of 132 blocks, and copies of 134 to 1,611 MB, with 4.7 us of overhead each.
"""
LOAD_SECONDS = 0.65e-6
"""Memory latency in seconds: order of magnitude of published measurements of HBM and GDDR."""
PIPES = {
    "sm_75": PipeLanes(fma=64, alu=64, xu=16, lsu=16, fp64=2, tensor=1024),
    "sm_80": PipeLanes(fma=64, alu=64, xu=16, lsu=32, fp64=32, tensor=2048),
    "sm_86": PipeLanes(fma=128, alu=64, xu=16, lsu=32, fp64=2, tensor=1024),
    "sm_89": PipeLanes(fma=128, alu=64, xu=16, lsu=32, fp64=2, tensor=512),
    "sm_90": PipeLanes(fma=128, alu=64, xu=16, lsu=32, fp64=64, tensor=4096),
    "sm_100": PipeLanes(fma=128, alu=64, xu=16, lsu=32, fp64=64, tensor=8192),
    "sm_120": PipeLanes(fma=128, alu=64, xu=16, lsu=32, fp64=2, tensor=512),
}
"""Throughput of a multiprocessor by architecture: CUDA C++ Programming Guide, "Arithmetic
Instructions". Tensor cores: dense, from architecture white papers."""

COLLECTIVE_SECONDS = 6.6e-6
NVLINK_STEP, PCI_STEP, NETWORK_STEP = 0.6e-6, 1.0e-6, 2.7e-6
"""Latency in seconds of a ring collective of small messages (protocol LL): base, and per step and
kind of link. From NCCL's tuning tables (`src/graph/tuning.cc`, `baseLat` and `hwLat`)."""


def _server(nvlink: float, network: float) -> tuple[Link, ...]:
    """Links of a server with eight GPUs and a network card for each. Arguments in bytes per second
    per direction.
    """
    return Link("NVLink", nvlink, NVLINK_STEP, 8), Link("network", network, NETWORK_STEP)


def _workstation(pci: float) -> tuple[Link, ...]:
    return (Link("PCIe", pci, PCI_STEP, 8),)


H200 = DeviceInfo(
    name="NVIDIA H200",
    kind="cuda",
    arch="sm_90",
    sm_count=132,
    threads_per_sm=2048,
    blocks_per_sm=32,
    registers_per_sm=65536,
    shared_bytes_per_block=227 * _KIB,
    shared_bytes_per_sm=228 * _KIB,
    shared_bytes_reserved=_KIB,
    max_threads_per_block=1024,
    max_grid=(2**31 - 1, 65535, 65535),
    vector_bytes=16,
    bandwidth=4.8e12,
    l2_bytes=50 * _MIB,
    sector_bytes=32,
    bytes_in_flight_per_sm=48 * _KIB,
    fp32_rate=33.5e12,
    launch_seconds=LAUNCH_SECONDS,
    grid_barrier_seconds=GRID_BARRIER_SECONDS,
    lanes=PIPES["sm_90"],
    load_seconds=LOAD_SECONDS,
    copy_share=COPY_SHARE,
    clusters=((2, 66), (4, 32), (8, 16)),
    links=_server(450e9, 50e9),
    collective_seconds=COLLECTIVE_SECONDS,
)
"""NVLink 4 and NDR InfiniBand at 400 Gb/s. Clusters: capacity of eight GPCs (graphics processing
clusters) of 16 or 18 multiprocessors; on a machine with a GPU the driver gives it.
"""

H200_SLICE = replace(
    H200,
    name="NVIDIA H200 MIG 1g.18gb",
    sm_count=16,
    bandwidth=0.6e12,
    l2_bytes=50 * _MIB // 8,
    fp32_rate=4.1e12,
    clusters=((2, 8), (4, 4), (8, 2)),
    links=(),
)

H100 = replace(
    H200,
    name="NVIDIA H100-SXM5-80GB",
    bandwidth=3.35e12,
    bytes_in_flight_per_sm=32 * _KIB,
)

A100 = replace(
    H200,
    name="NVIDIA A100-SXM4-80GB",
    arch="sm_80",
    lanes=PIPES["sm_80"],
    sm_count=108,
    clusters=(),
    shared_bytes_per_block=163 * _KIB,
    shared_bytes_per_sm=164 * _KIB,
    bandwidth=2.039e12,
    l2_bytes=40 * _MIB,
    bytes_in_flight_per_sm=24 * _KIB,
    fp32_rate=9.7e12,
    links=_server(300e9, 25e9),
)

B200 = replace(
    H200,
    name="NVIDIA B200",
    arch="sm_100",
    lanes=PIPES["sm_100"],
    sm_count=148,
    bandwidth=8.0e12,
    l2_bytes=126 * _MIB,
    bytes_in_flight_per_sm=64 * _KIB,
    fp32_rate=37e12,
    clusters=((2, 74), (4, 32), (8, 16)),
    links=_server(900e9, 50e9),
)
"""Clusters: lower bound, of eight GPCs of at least 16 multiprocessors."""

_SMALL = replace(
    H200,
    threads_per_sm=1536,
    shared_bytes_per_block=99 * _KIB,
    shared_bytes_per_sm=100 * _KIB,
    clusters=(),
    links=_workstation(32e9),
)
"""Common base of GPUs with the multiprocessor limits of sm_86, sm_89 and sm_120, on PCIe."""

A10 = replace(
    _SMALL,
    name="NVIDIA A10",
    arch="sm_86",
    lanes=PIPES["sm_86"],
    sm_count=72,
    blocks_per_sm=16,
    bandwidth=0.6e12,
    l2_bytes=6 * _MIB,
    bytes_in_flight_per_sm=11 * _KIB,
    fp32_rate=15.6e12,
)

RTX_4090 = replace(
    _SMALL,
    name="NVIDIA GeForce RTX 4090",
    arch="sm_89",
    lanes=PIPES["sm_89"],
    sm_count=128,
    blocks_per_sm=24,
    bandwidth=1.008e12,
    l2_bytes=72 * _MIB,
    bytes_in_flight_per_sm=10 * _KIB,
    fp32_rate=41.3e12,
)

RTX_5090 = replace(
    _SMALL,
    name="NVIDIA GeForce RTX 5090",
    arch="sm_120",
    lanes=PIPES["sm_120"],
    sm_count=170,
    blocks_per_sm=24,
    bandwidth=1.79e12,
    l2_bytes=96 * _MIB,
    bytes_in_flight_per_sm=13 * _KIB,
    fp32_rate=52.4e12,
    links=_workstation(64e9),
)

T4 = replace(
    H200,
    name="Tesla T4",
    arch="sm_75",
    lanes=PIPES["sm_75"],
    sm_count=40,
    clusters=(),
    threads_per_sm=1024,
    blocks_per_sm=16,
    shared_bytes_per_block=64 * _KIB,
    shared_bytes_per_sm=64 * _KIB,
    shared_bytes_reserved=0,
    bandwidth=0.32e12,
    l2_bytes=4 * _MIB,
    bytes_in_flight_per_sm=10 * _KIB,
    fp32_rate=4.05e12,
    links=_workstation(16e9),
)

DEVICES = (T4, A100, A10, RTX_4090, H100, H200, H200_SLICE, B200, RTX_5090)
DATACENTER = (A100, H200, B200)
"""Data-centre GPUs, one per generation."""
DATASHEETS = {info.arch: info for info in (T4, A100, A10, RTX_4090, H200, B200, RTX_5090)}
"""Device to plan for if only the architecture is given."""
