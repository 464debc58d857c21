"""Devices of no table."""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.device_table import H200

LITTLE = replace(
    H200,
    sm_count=8,
    clusters=((2, 4), (4, 2), (8, 1)),
    shared_bytes_per_block=24 << 10,
    shared_bytes_per_sm=25 << 10,
    registers_per_sm=32 << 10,
    l2_bytes=1 << 16,
)
"""Multiprocessors of which several are needed for a row that is not large."""
