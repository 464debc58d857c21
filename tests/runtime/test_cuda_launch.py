"""Launching on CUDA: against a recording driver anywhere, on a device where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


@pytest.mark.nvrtc
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the recording driver with")
def test_launches_reach_the_driver_as_meant(tmp_path: Path) -> None:
    source = HERE.parent / "tools" / "fake_libcuda.cpp"
    library = tmp_path / "libcuda.so.1"
    command = [COMPILER, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run([part for part in command if part], check=True, timeout=120)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("LD_LIBRARY_PATH"))))
    # The options of this run are not those of the one within.
    others = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    pytest_command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        # Options of pyproject.toml are for xdist, too.
        "-o",
        "addopts=",
    ]
    run = subprocess.run(
        [*pytest_command, str(HERE / "fake_driver_cases.py")],
        cwd=HERE.parents[1],
        env=others | {"LD_LIBRARY_PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
