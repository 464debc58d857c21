"""Stage 2: every test that is marked `gpu`, in parallel; then what failed, launches in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.gpu_day.rows import Row, Settings, Values

PROCESSES = 8
"""Enough to hide compilation behind each other; each holds a context of the device."""
_PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider")


def rows(settings: Settings) -> Sequence[Row]:
    if settings.dry:
        return [Row("tests", _collected, limit=240, needs="")]
    return [Row("tests", partial(_run, settings), limit=500)]


def _collected() -> Values:
    text = _pytest("--collect-only").stdout
    found = re.search(r"(\d+)/\d+ tests collected|(\d+) tests collected", text)
    assert found, text[-1000:]
    return {"tests": int(found.group(1) or found.group(2))}


def _run(settings: Settings) -> Values:
    ended = _pytest("-n", str(PROCESSES), "--timeout", "120")
    values: Values = dict(_counts(ended.stdout))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    if failed:
        values["failed tests"] = failed
        alone = _pytest("--timeout", "120", *failed[:20], CUDA_LAUNCH_BLOCKING="1")
        values["alone, launches in order"] = dict(_counts(alone.stdout))
        values["tail"] = alone.stdout[-3000:]
    return values


def _pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_PYTEST, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def _counts(text: str) -> list[tuple[str, int]]:
    """The closing line of pytest as counts."""
    last = text.strip().splitlines()[-1] if text.strip() else ""
    kinds = "passed|failed|errors?|skipped|xfailed"
    return [(kind, int(n)) for n, kind in re.findall(rf"(\d+) ({kinds})", last)]
