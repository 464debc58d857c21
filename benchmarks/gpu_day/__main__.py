"""A day with a GPU as one command a stage:

python -m benchmarks.gpu_day smoke         driver, devices, microbenchmarks, graphs and streams
python -m benchmarks.gpu_day correctness   every test that wants a GPU, in parallel
python -m benchmarks.gpu_day speed         ours and eager: workloads and programs, % of a copy
python -m benchmarks.gpu_day peers         torch.compile on the same rows
python -m benchmarks.gpu_day why           hardware counters, compute-sanitizer, sweeps

Each ends within ten minutes (--limit), writes <out>/<stage>.jsonl row by row, and survives rows
that hang. `--dry` does what can be done without a GPU: compile, plan and list.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_day import correctness, peers, smoke, speed, why
from benchmarks.gpu_day.facts import heading
from benchmarks.gpu_day.journal import Journal
from benchmarks.gpu_day.rows import Settings, Stage
from benchmarks.gpu_day.workers import run_rows, work

STAGES: dict[str, Stage] = {
    "smoke": smoke.rows,
    "correctness": correctness.rows,
    "speed": speed.rows,
    "peers": peers.rows,
    "why": why.rows,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if a row failed, hung or died."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("stage", choices=STAGES)
    add("--dry", action="store_true", help="compile, plan and list; launch nothing")
    add("--out", type=Path, default=Path("gpu_day"), help="a folder for the journals")
    add("--limit", type=float, default=570.0, help="seconds for the whole stage")
    add("--seconds", type=float, default=1.0, help="of timing, for each row")
    add("--filter", nargs="+", default=("",), help="only rows whose names contain one of these")
    add("--worker", type=Path, help=argparse.SUPPRESS)
    add("--rows", nargs="*", default=(), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    out = asked.worker.parent if asked.worker else asked.out
    settings = Settings(asked.dry, asked.seconds, out)
    found = STAGES[asked.stage](settings)
    rows = [row for row in found if any(text in row.name for text in asked.filter)]
    if asked.worker:
        by_name = {row.name: row for row in rows}
        work([by_name[name] for name in asked.rows], Journal(asked.worker))
        return 0
    until = time.monotonic() + asked.limit
    journal = Journal(asked.out / f"{asked.stage}.jsonl")
    journal.start(heading(asked.stage, asked.dry))
    worker = [sys.executable, "-m", "benchmarks.gpu_day", asked.stage]
    worker += ["--seconds", str(asked.seconds), *(["--dry"] if asked.dry else [])]
    run_rows(worker, rows, journal, until)
    return _summary(journal)


def _summary(journal: Journal) -> int:
    failed = 0
    for row in journal.rows():
        failed += row["status"] in ("failed", "hung", "died")
        shown = {k: v for k, v in row.items() if k not in ("row", "status", "seconds", "tail")}
        print(f"{row['status']:8}{row['seconds']:8.1f} s  {row['row']:40} {_short(shown)}")
    print(f"{failed} rows failed; written: {journal.path}")
    return int(failed > 0)


def _short(values: dict[str, object], width: int = 160) -> str:
    """Figures of a row in one line."""
    parts = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
    text = ", ".join(parts)
    return text if len(text) <= width else text[: width - 3] + "..."


if __name__ == "__main__":
    sys.exit(main())
