"""`python -m thunder_fuser`, as a user calls it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import thunder_fuser
from tests.support import forked
from thunder_fuser.__main__ import main
from thunder_fuser.config import options
from thunder_fuser.errors import FuserValueError
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.host import compiler

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which must end by itself."""
    return forked.run_module("thunder_fuser", *arguments, **environment)


def run_from_a_shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same, with everything imported by the command itself."""
    return subprocess.run(
        [sys.executable, "-m", "thunder_fuser", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def has_compiler() -> bool:
    try:
        compiler.find_compiler()
    except thunder_fuser.TargetError:
        return False
    return True


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder with files of both targets and one that is not ours."""
    for name in ("host/a.so", "cuda/entries/ab/cd", "cuda/tmp/half", "host/.tmp-half", "mine.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1 << 20))
    with options(cache_dir=str(tmp_path)):
        yield tmp_path


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler for the host target")
def test_doctor_reports_everything_and_runs_a_kernel(tmp_path: Path) -> None:
    environment = {"THUNDER_FUSER_CACHE_DIR": str(tmp_path), "THUNDER_FUSER_FUEL": "7"}
    result = run_from_a_shell("doctor", **environment)
    lines = result.stdout.splitlines()
    titles = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert titles >= {"thunder_fuser", "torch", "driver", "NVRTC", "C++", "options", "cache"}
    assert f"thunder_fuser      {thunder_fuser.__version__}, Python" in result.stdout
    assert "fuel=7" in result.stdout
    assert str(tmp_path) in result.stdout
    assert re.search(r"^  host  works: ", result.stdout, re.MULTILINE)
    works = "works" if not cuda_driver.driver_problem() else "absent"
    assert re.search(rf"^  cuda  {works}: ", result.stdout, re.MULTILINE)
    assert result.returncode == 0


@pytest.mark.skipif(cuda_driver.driver_available(), reason="this machine has a GPU")
def test_doctor_fails_where_nothing_can_run() -> None:
    result = run("doctor", THUNDER_FUSER_CXX="/nowhere/g++")
    assert "  host  absent: " in result.stdout
    assert "/nowhere/g++ was not found" in result.stdout
    assert result.returncode == 1


def test_doctor_reports_a_compiler_that_says_nothing(tmp_path: Path) -> None:
    silent = tmp_path / "g++"
    silent.write_text("#!/bin/sh\nexit 0\n")
    silent.chmod(0o755)
    result = run("doctor", THUNDER_FUSER_CXX=str(silent))
    assert f"a compiler that does not tell its version ({silent})" in result.stdout
    assert "  host  broken: TargetError" in result.stdout
    assert result.returncode == 1


@pytest.mark.skipif(cuda_driver.driver_available(), reason="this machine has a GPU")
def test_doctor_fails_when_a_present_target_is_broken(tmp_path: Path) -> None:
    # It says which version it is, and can do nothing else.
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 1.0" && exit 0\nexit 3\n')
    broken.chmod(0o755)
    cache = str(tmp_path / "cache")
    result = run(
        "doctor",
        THUNDER_FUSER_CXX=str(broken),
        THUNDER_FUSER_CACHE_DIR=cache,
        THUNDER_FUSER_DUMP_DIR=cache,
    )
    assert "  host  broken: TargetError" in result.stdout
    assert f"{broken} makes no library: it ends with status 3; correct the cxx" in result.stdout
    assert result.returncode == 1


def test_cache_info_counts_what_is_finished(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"cache in {cache}",
        "  host  1 files, 1.0 MiB",
        "  cuda  1 files, 1.0 MiB",
    ]


def test_cache_clear_removes_that_and_nothing_else(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 2 files, 2.0 MiB from {cache}\n"
    left = {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}
    assert left == {"cuda/tmp/half", "host/.tmp-half", "mine.txt"}
    assert main(["cache", "clear"]) == 0


def test_an_empty_cache_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with options(cache_dir=str(tmp_path / "absent")):
        assert main(["cache", "info"]) == 0
    assert "  host  0 files, 0.0 MiB" in capsys.readouterr().out


def test_a_compiled_kernel_shows_up_and_goes(tmp_path: Path) -> None:
    environment = {"THUNDER_FUSER_CACHE_DIR": str(tmp_path)}
    run("doctor", **environment)
    assert not re.search("  cuda  0 files", run("cache", "info", **environment).stdout)
    run("cache", "clear", **environment)
    assert re.search("  cuda  0 files", run("cache", "info", **environment).stdout)


def test_cache_needs_no_torch() -> None:
    script = "import sys; from thunder_fuser.__main__ import main; main(['cache', 'info'])"
    script += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0


def test_demo_is_called_and_its_status_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = ModuleType("thunder_fuser.demo")
    demo.main = lambda: 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "thunder_fuser.demo", demo)
    monkeypatch.setattr(thunder_fuser, "demo", demo, raising=False)
    assert main(["demo"]) == 5


def test_an_error_is_a_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise FuserValueError("it is so")

    monkeypatch.setattr("thunder_fuser.cache_command.info", fail)
    assert main(["cache", "info"]) == 1
    assert capsys.readouterr().err == "FuserValueError: it is so\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["demo", "extra"], ["cache"], ["cache", "empty"]),
        ["explain", "--shard", "x=tp:0", "script.py"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_bad_variable_is_reported_without_a_traceback() -> None:
    result = run_from_a_shell("cache", "info", THUNDER_FUSER_FUEL="plenty")
    assert result.returncode == 1
    assert result.stderr.startswith("FuserValueError: THUNDER_FUSER_FUEL: expected an integer")


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "thunder_fuser", "cache", "info"]
    result = subprocess.run(
        command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


# ---- explain

_SCRIPT = """
import thunder
import torch
import thunder_fuser
from thunder_fuser import DataType, FusionDefinition

def normalised(x, w):
    return torch.nn.functional.rms_norm(x.topk(64)[0], (64,), w)

compiled = thunder.jit(normalised, executors=[thunder_fuser.executor])
device = "{device}"
compiled(torch.randn(16, 64, device=device), torch.ones(64, device=device))
with FusionDefinition() as fd:
    t = fd.define_tensor([1024], True, DataType.Float)
    fd.add_output(fd.ops.neg(fd.ops.segment_set(fd.ops.sin(t))))
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_explain_prints_plans_boundaries_and_refusals(tmp_path: Path, device: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(device=device))
    result = run("explain", "--full", "--fake", str(script))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    # x and y once each, and the weight.
    assert lines[0].startswith("normalised: 1 fusion, 1 kernel, 8,448 B moved (ideal 8,448 B), ")
    assert lines[1].startswith("fuser0(")
    assert "left to torch:" in lines
    assert any("1 x [unclaimed] topk" in line and "script.py:8" in line for line in lines)
    assert "FusionDefinition: plan: 2 kernels, 16,384 B moved" in result.stdout
    assert "the definition cuts here (segment_set)" in result.stdout


def test_explain_says_what_there_was_before_a_script_failed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(device="cpu") + "\nraise ValueError('no more')\n")
    result = run_from_a_shell("explain", "--full", "--fake", str(script))
    assert result.returncode == 1
    assert "ValueError: no more" in result.stderr
    assert "normalised: 1 fusion," in result.stdout


def test_explain_needs_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "none.py")]) == 1
    assert "expected a Python file" in capsys.readouterr().err
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('it is not run')")
    for wrong in (["--mesh", "2y"], ["--mesh", "2", "--shard", "x"]):
        assert main(["explain", *wrong, str(script)]) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith("FuserValueError: ")
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert "nothing was compiled" in run("explain", str(empty)).stdout
