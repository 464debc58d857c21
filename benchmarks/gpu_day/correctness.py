"""Stage 2: every test that is marked `gpu`, in parallel; then what failed, launches in order; then
random programs with other seeds than those that every run of the suite has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu_day.failures import PATH
from benchmarks.gpu_day.rows import Row, Settings, Values

PROCESSES = max(2, min(14, (os.cpu_count() or 2) - 2))
"""Enough to hide compilation behind each other; each holds a context of the device."""
_PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider")
# A kernel that hangs is not interrupted by a signal: the call that waits for it never returns.
_LIMITED = (
    *("--timeout", "150", "--timeout-method", "thread", "--continue-on-collection-errors"),
    *("-p", "benchmarks.gpu_day.failures"),
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
    with tempfile.TemporaryDirectory() as folder:
        text = _pytest(Path(folder) / "log", "--collect-only")
    found = re.search(r"(\d+)/\d+ tests collected|(\d+) tests collected", text)
    assert found, text[-1000:]
    return {"tests": int(found.group(1) or found.group(2))}


def _run(settings: Settings, log: str, *arguments: str) -> Values:
    """Counts; what pytest says is in `log`.log, and what fails, as soon as it does, in
    `log`-failures.txt.
    """
    given = " ".join(arguments).split()
    failures = settings.out / f"{log}-failures.txt"
    failures.unlink(missing_ok=True)
    limited = [*_LIMITED, "-n", str(PROCESSES), *given]
    text = _pytest(settings.out / f"{log}.log", *limited, **{PATH: str(failures.absolute())})
    values: Values = dict(_counts(text))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if failed:
        values["failed tests"] = failed
        again = settings.out / f"{log}-alone.log"
        alone = _pytest(again, *_LIMITED, *failed[:20], CUDA_LAUNCH_BLOCKING="1")
        values["alone, launches in order"] = dict(_counts(alone))
    return values


def _pytest(log: Path, *arguments: str, **environment: str) -> str:
    with log.open("wb") as file:
        subprocess.run(
            [*_PYTEST, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, **environment},
        )
    return log.read_text(encoding="utf-8", errors="replace")


def _counts(text: str) -> list[tuple[str, int]]:
    """The closing line of pytest as counts."""
    closing = re.findall(r"^=*\s*(?:\d+ \w+, )*\d+ \w+ in [\d.]+s.*$", text, re.MULTILINE)
    last = closing[-1] if closing else ""
    kinds = "passed|failed|errors?|skipped|xfailed"
    return [(kind, int(n)) for n, kind in re.findall(rf"(\d+) ({kinds})", last)]
