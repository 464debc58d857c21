"""A run of the benchmarks: its tables, and what they were measured on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

import torch

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


def _today() -> str:
    return datetime.date.today().isoformat()
