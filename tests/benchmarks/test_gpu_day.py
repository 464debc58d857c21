"""The day with a GPU, dry: rows that hang, die or fail cost one line, and what can be tried is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_day import __main__ as gpu_day
from benchmarks.gpu_day import failures, kernels, micro, speed
from benchmarks.gpu_day.journal import Journal
from benchmarks.gpu_day.rows import Row, Settings
from benchmarks.gpu_day.workers import run_rows
from thunder_fuser.device_table import H200

ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import os, sys, time
from pathlib import Path
from benchmarks.gpu_day.journal import Journal
from benchmarks.gpu_day.rows import Row
from benchmarks.gpu_day.workers import work

def fail(): raise ValueError("no such thing")
def hang(): time.sleep(600)
def die(): print("last words", flush=True); os._exit(3)

RUNS = {"fine": lambda: {"figure": 7}, "fails": fail, "hangs": hang, "dies": die, "last": dict}
path, names = sys.argv[2], sys.argv[4:]
work([Row(name, RUNS[name]) for name in names], Journal(Path(path)))
"""

APART = """
import subprocess, sys, time
from pathlib import Path
from benchmarks.gpu_day.journal import Journal
from benchmarks.gpu_day.rows import Row
from benchmarks.gpu_day.workers import work

def meet(mine, other):
    (Path({folder!r}) / mine).touch()
    while not (Path({folder!r}) / other).exists(): time.sleep(0.01)
    return {{}}

CHILD = "import pathlib, time\\nwhile 1: pathlib.Path({mark!r}).touch(); time.sleep(.1)"
def leave():
    subprocess.Popen([sys.executable, "-c", CHILD])
    time.sleep(600)

RUNS = {{"meets a": lambda: meet("a", "b"), "meets b": lambda: meet("b", "a"),
        "leaves a child": leave}}
path, names = sys.argv[2], sys.argv[4:]
work([Row(name, RUNS[name]) for name in names], Journal(Path(path)))
"""


def test_a_row_that_hangs_or_dies_costs_one_row(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    journal.start({"stage": "test"})
    limits = {"fine": 60.0, "fails": 60.0, "hangs": 0.5, "dies": 60.0, "last": 60.0}
    rows = [Row(name, dict, limit) for name, limit in limits.items()]
    command = [sys.executable, "-c", WORKER]
    run_rows(command, rows, journal, time.monotonic() + 120, start=60)
    found = {row["row"]: row for row in journal.rows()}
    assert {name: row["status"] for name, row in found.items()} == {
        "fine": "ok",
        "fails": "failed",
        "hangs": "hung",
        "dies": "died",
        "last": "ok",
    }
    assert found["fine"]["figure"] == 7
    assert found["fails"]["error"] == "ValueError: no such thing"
    assert (found["dies"]["exit"], "last words" in found["dies"]["tail"]) == (3, True)


def test_isolated_rows_run_side_by_side_and_leave_no_process(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    journal.start({"stage": "test"})
    mark = tmp_path / "alive"
    names = ("meets a", "meets b", "leaves a child")
    worker = APART.format(folder=str(tmp_path), mark=str(mark))
    # Those that meet wait for each other to be imported, on a machine that may have much to do.
    limits = (60.0, 60.0, 1.0)
    rows = [Row(name, dict, n, isolated=True) for name, n in zip(names, limits, strict=True)]
    run_rows([sys.executable, "-c", worker], rows, journal, time.monotonic() + 120, start=6)
    found = {row["row"]: row["status"] for row in journal.rows()}
    assert found == {"meets a": "ok", "meets b": "ok", "leaves a child": "hung"}
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["day.jsonl"]
    mark.unlink(missing_ok=True)
    time.sleep(0.5)
    assert not mark.exists(), "a process of a row that was killed still runs"


def test_failures_are_written_down_at_once(tmp_path: Path) -> None:
    """Those of workers, too, of which pytest says nothing before the end."""
    (tmp_path / "test_some.py").write_text(
        "def test_fine(): pass\ndef test_wrong(): assert 1 == 2, 'one is not two'\n"
    )
    found = tmp_path / "failures.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "benchmarks.gpu_day.failures"]
    environment = {**os.environ, failures.PATH: str(found), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    subprocess.run([*command, str(tmp_path)], env=environment, check=False, capture_output=True)
    text = found.read_text()
    assert text.count("====") == 1
    assert "test_wrong" in text
    assert "one is not two" in text


def test_what_there_is_no_time_for_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    journal.start({})
    run_rows(["false"], [Row("late", dict)], journal, time.monotonic() - 1)
    assert [row["status"] for row in journal.rows()] == ["no time"]


def test_every_stage_has_rows_for_a_gpu_and_some_without() -> None:
    for name, rows in gpu_day.STAGES.items():
        names = [row.name for row in rows(Settings())]
        assert len(names) == len(set(names)) > 0, name
        dry = rows(Settings(dry=True))
        assert dry, name
        assert all(not row.needs for row in dry), name


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("stage", "chosen"),
    [("smoke", "pipe fma"), ("smoke", "one_call"), ("speed", "relu"), ("why", "Fuser 2473")],
)
def test_a_dry_row_works(stage: str, chosen: str) -> None:
    rows = [r for r in gpu_day.STAGES[stage](Settings(dry=True)) if chosen in r.name]
    values = rows[0].run()
    json.dumps(values)
    assert values or chosen == "one_call"


@pytest.mark.nvrtc
def test_a_program_is_planned_anew_for_each_precision() -> None:
    rows = speed.rows(Settings(dry=True))
    (row,) = (r for r in rows if r.name == "program SwiGLU [8192, 14336], backward")
    values = row.run()
    assert values["strict kernels"] != values["fast kernels"]


@pytest.mark.nvrtc
def test_a_stage_as_a_command(tmp_path: Path) -> None:
    arguments = ["smoke", "--dry", "--filter", "latency", "--out", str(tmp_path)]
    assert gpu_day.main(arguments) == 0
    head, *lines = (tmp_path / "smoke.jsonl").read_text().splitlines()
    assert json.loads(head)["stage"] == "smoke"
    assert [json.loads(line)["status"] for line in lines] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # by threads
        (256, 64, 0, 4),  # by registers
        (1024, 64, 0, 1),
        (128, 32, 100 << 10, 2),  # by shared memory
    ],
)
def test_blocks_that_are_resident_together(
    threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert kernels.resident_blocks(threads, registers, shared, H200) == blocks


def test_inputs_of_a_plan_have_its_layouts() -> None:
    import torch

    (plans,) = (
        p for name, p in speed.programs() if "LayerNorm, dropout" in name and "back" in name
    )
    (plan,) = plans()
    for value, made in zip(
        plan.fusion.inputs, kernels.inputs_for(plan, torch.device("cpu")), strict=True
    ):
        if isinstance(made, torch.Tensor):
            assert made.stride() == plan.placement.layouts[value].strides


def test_copies_move_as_many_bytes_as_the_kernels() -> None:
    (plans,) = (p for name, p in speed.programs() if "modulated" in name and "forward" in name)
    (plan,) = found = plans()
    moved = [2 * micro.COPIED_BY_BLOCK * k.grid[0] for k in kernels.copy_kernels(found)]
    for size, segment in zip(moved, plan.segments, strict=True):
        assert segment.bytes <= size < segment.bytes + 2 * micro.COPIED_BY_BLOCK
