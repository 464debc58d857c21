"""A fusion as a script of its own, to run, to shrink, or to attach to a report."""

from __future__ import annotations

from typing import Protocol

import torch
from thunder.core.trace import TraceCtx

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.failures import save_failure
from thunder_fuser.segment.repro import script as script_of


class Reproducible(Protocol):
    """What a script is made from."""

    name: str
    device: torch.device

    @property
    def fusion(self) -> Fusion: ...


def script(of: Reproducible) -> str:
    """Python that defines the fusion, runs it on random inputs and compares with torch."""
    title = f"{of.name}, on inputs like those that Thunder compiled it for."
    return script_of(of.fusion, title, str(of.device))


def save(of: Reproducible) -> str:
    """The path of a file that holds the script; "" if none could be written."""
    return str(save_failure(of.name, ".py", script(of)) or "")


def save_trace(trace: TraceCtx) -> str:
    """The path of a file with the text of a trace that fusions could not be put into; "" if none
    could be written.
    """
    return str(save_failure("trace", ".txt", f"{trace}\n") or "")
