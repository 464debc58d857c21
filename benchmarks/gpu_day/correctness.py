"""Stage 2: every test that is marked `gpu`, in parallel; then what failed, launches in order; then
random programs with other seeds than those that every run of the suite has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.gpu_day.rows import Row, Settings, Values

PROCESSES = max(2, min(14, (os.cpu_count() or 2) - 2))
"""Enough to hide compilation behind each other; each holds a context of the device."""
# A kernel that hangs is not interrupted by a signal: the call that waits for it never returns.
_PYTEST = (
    *(sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"),
    *("--timeout", "60", "--timeout-method", "thread", "--continue-on-collection-errors"),
)
_RANDOM = (
    "tests/test_random_fusions.py tests/test_random_reductions.py tests/test_random_gathers.py"
)


def rows(settings: Settings) -> Sequence[Row]:
    if settings.dry:
        return [Row("tests", _collected, limit=240, needs="")]
    return [
        Row("tests", partial(_run, settings, "tests"), limit=400),
        Row("more seeds", partial(_run, settings, "campaign", "--campaign", _RANDOM), limit=300),
    ]


def _collected() -> Values:
    text = _pytest("--collect-only").stdout
    found = re.search(r"(\d+)/\d+ tests collected|(\d+) tests collected", text)
    assert found, text[-1000:]
    return {"tests": int(found.group(1) or found.group(2))}


def _run(settings: Settings, log: str, *arguments: str) -> Values:
    """Counts; what pytest says is in `log`.log beside the journal."""
    ended = _pytest("-n", str(PROCESSES), *" ".join(arguments).split())
    (settings.out / f"{log}.log").write_text(ended.stdout + ended.stderr, encoding="utf-8")
    values: Values = dict(_counts(ended.stdout))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    if failed:
        values["failed tests"] = failed
        alone = _pytest(*failed[:20], CUDA_LAUNCH_BLOCKING="1")
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
