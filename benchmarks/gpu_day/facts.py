"""What the figures of a day depend on: the device, the driver, the versions, the date."""

from __future__ import annotations

import datetime
import platform
import subprocess
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.machine import versions
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.runtime.cuda import driver as cuda_driver


def heading(stage: str, dry: bool) -> dict[str, Any]:
    """The first line of a journal."""
    return {
        "stage": stage,
        "dry": dry,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "not run on a GPU",
        "kernel": platform.release(),
        "versions": versions(),
    }


def described() -> dict[str, Any]:
    """The device as the driver says, and where it differs from its data sheet."""
    info = cuda_driver.describe(0)
    sheet = DATASHEETS.get(info.arch)
    found: dict[str, Any] = {"device": asdict(info)}
    if sheet is not None:
        stated = asdict(sheet)
        found["differs from the data sheet"] = {
            key: [stated[key], value]
            for key, value in asdict(info).items()
            if value != stated[key] and key != "name"
        }
    return found


def nvidia_smi() -> dict[str, Any]:
    """Clocks, power and memory as nvidia-smi shows them: how a benchmark found the card."""
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={query},memory.used", "--format=csv,noheader"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    return dict(zip([*query.split(","), "memory.used"], text.strip().split(", "), strict=True))
