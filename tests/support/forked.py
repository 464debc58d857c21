"""New processes without the seconds that importing torch and Thunder takes: one process imports
them, and forks one for each script.

For scripts that need a process of their own, not one that imports in an order of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# What a script raises is printed, and what is to be done at the end is done, as in any process.
_FORKS = """
import contextlib, json, os, signal, sys, tempfile
import thunder, torch, thunder_fuser.compile, thunder_fuser.frontends.thunder
from thunder_fuser import config

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left behind
    print(json.dumps(status), flush=True)
else:
    sys.exit()

os.setpgid(0, 0)
signal.alarm(asked["seconds"])
for number, path in enumerate((os.devnull, asked["stdout"], asked["stderr"])):
    os.dup2(os.open(path, os.O_RDWR), number)
os.environ.clear()
os.environ.update(asked["environment"])
os.chdir(asked["folder"])
tempfile.tempdir = None
config._process_options.cache_clear()
sys.argv = ["-c", *asked["arguments"]]
exec(compile(asked["script"], "<string>", "exec"), {"__name__": "__main__"})
"""


class Forks:
    """A process that hashes by `seed` and runs one script after the other."""

    def __init__(self, seed: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _FORKS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)  # which ends its input
        self._files: list[Path] = []

    def ask(self, script: str, *arguments: str, seconds: int = 300, **environment: str) -> None:
        """Have it run a script, whose answer is to be taken before the next one is asked for."""
        assert not self._files
        self._files = [Path(tempfile.mkstemp(suffix=".txt")[1]) for _ in range(2)]
        asked: dict[str, Any] = {
            "script": script,
            "arguments": arguments,
            "seconds": seconds,
            "stdout": str(self._files[0]),
            "stderr": str(self._files[1]),
            "folder": str(ROOT),
            "environment": {**os.environ, **environment},
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def answer(self) -> subprocess.CompletedProcess[str]:
        """A script's exit status, and what it has printed."""
        assert self._process.stdout is not None
        status = json.loads(self._process.stdout.readline())
        printed, told = (path.read_text() for path in self._files)
        for path in self._files:
            path.unlink()
        self._files = []
        return subprocess.CompletedProcess("script", status, printed, told)


@functools.cache
def forks(seed: str = "1") -> Forks:
    """The process of a seed; there is one in each process that runs tests."""
    return Forks(seed)


def run(
    script: str, *arguments: str, seconds: int = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What becomes of a script in a process of its own, in the repository's root."""
    forks().ask(script, *arguments, seconds=seconds, **environment)
    return forks().answer()


def run_module(
    module: str, *arguments: str, seconds: int = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What becomes of `python -m MODULE ARGUMENTS`."""
    script = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return run(script, *arguments, seconds=seconds, **environment)
