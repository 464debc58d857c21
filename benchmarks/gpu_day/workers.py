"""Rows in worker processes under time limits: a hang, a crash or a dead device costs one row."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.gpu_day.journal import Journal
from benchmarks.gpu_day.rows import Row

START = 60.0
"""Seconds that a process may take to import torch and Thunder, and to find the device."""
SIDE_BY_SIDE = 4
"""Processes of isolated rows at a time."""
_TAIL = 1500


def run_rows(
    worker: Sequence[str], rows: Sequence[Row], journal: Journal, until: float, start: float = START
) -> None:
    """Run rows in order, as long as there is time: `until` is a time of time.monotonic().

    `worker` is a command that takes `--worker JOURNAL --rows NAME...` and calls `work`.
    """
    for isolated, group in itertools.groupby(rows, lambda row: row.isolated):
        waiting = list(group)
        if isolated:
            _run_apart(worker, waiting, journal, until, start)
            continue
        while waiting and time.monotonic() < until:
            waiting = waiting[_run_together(worker, waiting, journal, until, start) :]
        _no_time(waiting, journal)


def _run_apart(
    worker: Sequence[str], rows: Sequence[Row], journal: Journal, until: float, start: float
) -> None:
    """A process for each row, several at a time, in a journal of its own that is taken over."""

    def run(row: Row) -> None:
        name = re.sub(r"\W+", "_", row.name)
        own = Journal(journal.path.with_name(f"{journal.path.stem}-{name}.jsonl"))
        own.start({})
        if time.monotonic() < until:
            _run_together(worker, [row], own, until, start)
        else:
            _no_time([row], own)
        with lock:
            journal.take(own)

    lock = threading.Lock()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(run, rows))


def _no_time(rows: Sequence[Row], journal: Journal) -> None:
    for row in rows:
        journal.add(row.name, "no time", 0.0, {})


def _run_together(
    worker: Sequence[str], rows: Sequence[Row], journal: Journal, until: float, start: float
) -> int:
    """One process for rows in order: how many of them have a line when it has ended or was killed.

    The row that it was at has one.
    """
    before = journal.count()
    errors = journal.path.with_suffix(".stderr")
    command = [*worker, "--worker", str(journal.path), "--rows", *(row.name for row in rows)]
    with errors.open("wb") as file:
        # With a session of its own, so that whatever it has started ends with it.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        at, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.1)
            if (done := journal.count() - before) != at:
                at, since = done, time.monotonic()
            limit = rows[at].limit if at < len(rows) else start
            allowed = limit if at else limit + start
            if time.monotonic() > min(until, since + allowed):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    done = journal.count() - before
    if done < len(rows):
        tail = errors.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
        status = "hung" if process.returncode == -9 else "died"
        values = {"exit": process.returncode, "tail": tail}
        journal.add(rows[done].name, status, time.monotonic() - since, values)
        done += 1
    return done


def work(rows: Sequence[Row], journal: Journal) -> None:
    """The worker's side: rows in order, a line for each."""
    for row in rows:
        start = time.monotonic()
        try:
            values = row.run()
        except Exception as error:
            text = traceback.format_exc()[-_TAIL:]
            problem = {"error": f"{type(error).__name__}: {error}"[:500], "tail": text}
            journal.add(row.name, "failed", time.monotonic() - start, problem)
        else:
            journal.add(row.name, "ok", time.monotonic() - start, values)
