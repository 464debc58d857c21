"""What figures depend on: the machine's model and the versions of what runs on it."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

import torch

from thunder_fuser import __version__
from thunder_fuser.errors import TargetError
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda import nvrtc as cuda_program
from thunder_fuser.runtime.host.compiler import find_compiler


def model(device: torch.device) -> str:
    """The name of a processor or GPU model, which is all that results say of a machine."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def file_stem(device: torch.device) -> str:
    """The model as a file name: "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", model(device).lower()).strip("-")


def versions() -> dict[str, str]:
    """Names and versions of what the figures depend on; why, where something is missing."""
    found = {
        "thunder_fuser": __version__,
        "torch": torch.__version__,
        "lightning-thunder": metadata.version("lightning-thunder"),
        "Python": platform.python_version(),
    }
    try:
        found["C++ compiler"] = find_compiler().name
    except TargetError as error:
        found["C++ compiler"] = str(error)
    try:
        found["NVRTC"] = cuda_program.nvrtc_version()
    except TargetError as error:
        found["NVRTC"] = str(error)
    found["CUDA driver"] = cuda_driver.driver_problem() or str(cuda_driver.driver_version())
    return found
