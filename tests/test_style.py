"""Formatting, lint and types are tests: one command says whether a change may go in."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("ruff", ("format", "--check", ".")), ("ruff", ("check", ".")), ("mypy", ())],
    ids=["ruff format", "ruff check", "mypy --strict"],
)
def test_source_is_clean(tool: str, arguments: tuple[str, ...]) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed; it is in the test extra")
    result = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
