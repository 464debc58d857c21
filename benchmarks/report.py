"""A run of the benchmarks: its tables, and what they were measured on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import NAMES
from benchmarks.machine import file_stem, model, versions
from benchmarks.table import Table


def heading(devices: Sequence[torch.device]) -> str:
    """Markdown that says what the figures depend on."""
    machine = " and ".join(model(device) for device in devices)
    facts = "\n".join(f"- {name}: {version}" for name, version in versions().items())
    return f"# thunder_fuser on {machine}\n\nMeasured on {_today()}.\n\n{facts}\n"


def save(folder: Path, devices: Sequence[torch.device], tables: Sequence[Table]) -> list[Path]:
    """Write <last device's model>.md and .json, over an earlier run's; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / file_stem(devices[-1])
    text = "\n".join([heading(devices), *(table.markdown() for table in tables)])
    data = {
        "date": _today(),
        "machines": [model(device) for device in devices],
        "versions": versions(),
        "tables": [table.data() for table in tables],
    }
    written = {stem.with_suffix(".md"): text, stem.with_suffix(".json"): json.dumps(data, indent=1)}
    for path, content in written.items():
        path.write_text(content.rstrip() + "\n", encoding="utf-8")
    return list(written)


def summary(data: Mapping[str, Any]) -> str:
    """The times of a saved report's workloads as one small Markdown table."""
    (speed,) = (t for t in data["tables"] if t["title"] == "Workloads on cpu")
    lines = [["workload", "MB", *(f"{name}, ms" for name in NAMES)], ["---", *["---:"] * 5]]
    for row in speed["rows"]:
        times = (f"{1e3 * row[name]:.2f}" for name in NAMES)
        lines.append([row["workload"], f"{row['bytes'] * 1e-6:.1f}", *times])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _today() -> str:
    return datetime.date.today().isoformat()
