"""What moving bytes, arithmetic and launches cost beside each other, in fp32 instructions.

Orders of magnitude of current GPUs, not measurements: plans must not depend on the machine that
makes them.
"""

from __future__ import annotations

PER_BYTE = 16
"""Instructions that take as long as moving a byte, most of them hidden behind other bytes."""

LAUNCH = (16 << 20) * PER_BYTE
"""A kernel's launch: 16 MiB could move meanwhile."""
