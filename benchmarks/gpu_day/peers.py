"""Stage 4: torch.compile on the rows of `speed`. What it compiles is compiled by several processes
first, into Inductor's cache on disk, because one process takes longer than the stage has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.contenders import COMPILED, EAGER, FAST, OURS, prepared
from benchmarks.gpu_day.rows import Row, Settings, Values
from benchmarks.gpu_day.speed import workload_row
from benchmarks.workloads import WORKLOADS

PROCESSES = 6
_CACHE = Path(tempfile.gettempdir()) / "thunder_fuser-gpu-day-inductor"


def rows(settings: Settings) -> Sequence[Row]:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CACHE))
    if settings.dry:
        return [Row("rows", lambda: {"rows": len(WORKLOADS)}, needs="")]
    found = [Row("compile in parallel", partial(_compile_all, settings), limit=240)]
    for workload in WORKLOADS:
        run = partial(workload_row, workload, settings, (OURS, FAST, EAGER, COMPILED))
        found.append(Row(f"workload {workload.name}", run, limit=90))
    return found


def _compile_all(settings: Settings) -> Values:
    """Each process compiles every n-th workload; a failure is a row of its own later."""
    command = [sys.executable, "-m", "benchmarks.gpu_day.peers", str(PROCESSES)]
    workers = [subprocess.Popen([*command, str(k)]) for k in range(PROCESSES)]
    return {"exit": [worker.wait() for worker in workers]}


def _compile_some(count: int, which: int) -> int:
    failed = 0
    for workload in WORKLOADS[which::count]:
        try:
            arguments = workload.arguments("full", torch.device("cuda"))
            prepared(workload, arguments, COMPILED)()
        except Exception as error:
            failed += 1
            print(f"{workload.name}: {type(error).__name__}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CACHE))
    sys.exit(_compile_some(int(sys.argv[1]), int(sys.argv[2])))
