"""Determinism: what a program prints must not depend on the order of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SEEDS = ("1", "4294967295")


def printed_under_any(script: str) -> str:
    """What `script` prints in new processes, which is asserted to be the same in all of them."""
    first, second = (
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in _SEEDS
    )
    assert first == second
    return first
