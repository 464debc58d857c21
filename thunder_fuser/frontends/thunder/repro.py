"""Repro scripts: a fusion as a standalone script to run, reduce or attach to a bug report."""

from __future__ import annotations

from typing import Protocol

import torch
from thunder.core.trace import TraceCtx

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.compilation.failures import save_failure
from thunder_fuser.segment.repro import script as script_of


class Reproducible(Protocol):
    """A named fusion on a device, as `script` reads it."""

    name: str
    device: torch.device

    @property
    def fusion(self) -> Fusion: ...


def script(of: Reproducible) -> str:
    """Return Python source that defines the fusion, runs it on random inputs and compares with
    torch.
    """
    title = f"{of.name}, on inputs like those that Thunder compiled it for."
    return script_of(of.fusion, title, str(of.device))


def save(of: Reproducible) -> str:
    """Write the script to a file and return its path; "" if it could not be written."""
    return str(save_failure(of.name, ".py", script(of)) or "")


def save_trace(trace: TraceCtx) -> str:
    """Write the text of a trace on which the fusion pass failed, and return the path of the file;
    "" if it could not be written.
    """
    return str(save_failure("trace", ".txt", f"{trace}\n") or "")
