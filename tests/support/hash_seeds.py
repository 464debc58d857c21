"""Determinism: what a program prints must not depend on the order of Python's hashes."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SEEDS = ("1", "4294967295")

# Importing torch and Thunder takes seconds: one process of a seed does it, and forks one for each
# script.
_FORKS = """
import json, os, signal, sys
import thunder, torch, thunder_fuser.compile, thunder_fuser.frontends.thunder
for line in sys.stdin:
    script = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        os.dup2(writer, sys.stdout.fileno())
        exec(script, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        printed = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, printed]), flush=True)
"""


def printed_under_any(script: str) -> str:
    """What `script` prints in new processes, which is asserted to be the same in all of them."""
    # All are asked before one is waited for.
    asked = [_asked(seed, script) for seed in _SEEDS]
    (status, printed), other = (_answer(process) for process in asked)
    assert status == 0, "the script raises"
    assert (status, printed) == other
    return printed


def _asked(seed: str, script: str) -> subprocess.Popen[str]:
    process = _forks(seed)
    assert process.stdin is not None
    process.stdin.write(json.dumps(script) + "\n")
    process.stdin.flush()
    return process


def _answer(process: subprocess.Popen[str]) -> tuple[int, str]:
    """A script's exit status and what it has printed."""
    assert process.stdout is not None
    status, printed = json.loads(process.stdout.readline())
    return status, printed


@functools.cache
def _forks(seed: str) -> subprocess.Popen[str]:
    """A process that hashes by `seed` and runs one script a line."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _FORKS],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)  # which ends its input
    return process
