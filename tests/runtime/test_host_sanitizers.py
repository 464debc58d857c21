"""Planted bugs under ASan, TSan and UBSan: reported, with the line, and correct kernels are not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from thunder_fuser.runtime.host.compiler import find_compiler

GENERATED = (
    *("turned", "stages", "totals", "total", "stacked", "drawn", "drawn_here"),
    *("cluster_rows", "cluster_tiles", "cluster_totals", "copied_rows"),
)

pytestmark = [pytest.mark.sanitizer, pytest.mark.slow]


def reports(sanitizer: str, library: str | None) -> dict[str, str]:
    """What the sanitizer says of each case, in a process that has it loaded from the start."""
    compiler = find_compiler()
    if compiler.family != "gcc":
        pytest.skip("the sanitizers' libraries are looked for where g++ has them")
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0,halt_on_error=0",
        # Shared memory is at the same address in every case.
        "TSAN_OPTIONS": "suppress_equal_addresses=0",
    }
    command = [sys.executable, "-m", "tests.runtime.sanitizer_cases", sanitizer]
    if library:
        path = compiler.run([f"-print-file-name={library}"])
        found = path.stdout.strip()
        if not Path(found).is_absolute():
            pytest.skip(f"{library} is not installed")
        environment["LD_PRELOAD"] = found
    if sanitizer == "thread":
        if shutil.which("setarch") is None:
            pytest.skip("setarch is not installed; TSan needs it to switch off ASLR")
        command = ["setarch", "-R", *command]
    result = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    parts = re.split(r"^== (\w+)$", result.stderr, flags=re.MULTILINE)
    cases = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert "end" in cases, result.stderr
    return cases


def test_thread_sanitizer() -> None:
    found = reports("thread", "libtsan.so")
    expected = {
        "missing_barrier": ("missing_barrier.cu:6", "missing_barrier.cu:7"),
        "reused_slots": ("reduce.cuh",),
        "missing_syncwarp": ("missing_syncwarp.cu:6", "missing_syncwarp.cu:7"),
        "same_element": ("same_element.cu:4",),
        "cluster_early_read": ("cluster_early_read.cu:8", "cluster_early_read.cu:10"),
        "missing_fence": ("missing_fence.cu:7", "missing_fence.cu:13"),
    }
    for name, lines in expected.items():
        assert "WARNING: ThreadSanitizer: data race" in found[name]
        assert all(line in found[name] for line in lines), found[name]
    for name in ("two_sums", "last_block_sum", "grid_sum", "cluster_sums", *GENERATED):
        assert found[name].strip() == "", found[name]


def test_address_sanitizer() -> None:
    found = reports("address", "libasan.so")
    assert "heap-buffer-overflow" in found["missing_predicate"]
    assert "missing_predicate.cu:4" in found["missing_predicate"]
    assert "use-after-poison" in found["shared_overflow"]
    assert "shared_overflow.cu:6" in found["shared_overflow"]
    for name in ("two_sums", *GENERATED):
        assert found[name].strip() == "", found[name]


def test_undefined_behaviour_sanitizer() -> None:
    found = reports("undefined", None)
    assert "index_overflow.cu:3" in found["index_overflow"]
    assert "signed integer overflow" in found["index_overflow"]
    for name in ("small_index", "asked_for_early", *GENERATED):
        assert found[name].strip() == "", found[name]
