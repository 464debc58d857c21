"""Determinism: what a program prints must not depend on the order of Python's hashes."""

from __future__ import annotations

from tests.support.forked import forks

_SEEDS = ("1", "4294967295")


def printed_under_any(script: str) -> str:
    """What `script` prints in new processes, which is asserted to be the same in all of them."""
    # All are asked before one is waited for.
    for seed in _SEEDS:
        forks(seed).ask(script)
    found, other = (forks(seed).answer() for seed in _SEEDS)
    assert found.returncode == 0, found.stderr
    assert (found.returncode, found.stdout) == (other.returncode, other.stdout)
    return found.stdout
