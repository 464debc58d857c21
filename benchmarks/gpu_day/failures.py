"""A pytest plugin: what fails is in a file as soon as it fails, also where the run is cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PATH = "THUNDER_FUSER_GPU_DAY_FAILURES"
"""The variable of the environment that names the file."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Each worker's reports come to the process that started it, which writes them down."""
    path = os.environ.get(PATH)
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"==== {report.nodeid} ({report.when})\n{report.longreprtext}\n")
