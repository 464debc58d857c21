"""A fusion as a script of its own, to run, to shrink, or to attach to a report."""

from __future__ import annotations

from typing import Protocol

import torch
from thunder.core.trace import TraceCtx

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, Scalar, Val
from thunder_fuser.ir.printer import to_python
from thunder_fuser.runtime.failures import save_failure

_SAMPLES = {
    DataType.Bool: "True",
    DataType.Int: "2",
    DataType.Double: "0.5",
    DataType.ComplexDouble: "complex(0.5, 0.25)",
}


class Reproducible(Protocol):
    """What a script is made from."""

    name: str
    fusion: Fusion
    device: torch.device


def script(of: Reproducible) -> str:
    """Python that defines the fusion, runs it on random inputs and compares with torch."""
    inputs = "\n".join(f"    {_sample(value, of.device)}," for value in of.fusion.inputs)
    return (
        f'"""{of.name}, on inputs like those that Thunder compiled it for."""\n\n'
        "import torch\n\n"
        "from thunder_fuser import DataType, FusionDefinition\n\n\n"
        f"{to_python(of.fusion)}\n\n"
        "with FusionDefinition() as fd:\n"
        "    nvfuser_fusion(fd)\n\n"
        f"inputs = [\n{inputs}\n]\n"
        "fd.validate(inputs)\n"
    )


def save(of: Reproducible) -> str:
    """The path of a file that holds the script; "" if none could be written."""
    return str(save_failure(of.name, ".py", script(of)) or "")


def save_trace(trace: TraceCtx) -> str:
    """The path of a file with the text of a trace that fusions could not be put into; "" if none
    could be written.
    """
    return str(save_failure("trace", ".txt", f"{trace}\n") or "")


def _sample(value: Val, device: torch.device) -> str:
    if isinstance(value, Scalar):
        return _SAMPLES[value.dtype]
    where = "cpu" if value.is_cpu else str(device)
    arguments = f"{value.sizes}, dtype={value.dtype.torch}, device={where!r}"
    if value.dtype.is_floating or value.dtype.is_complex:
        arguments += ", low=-1, high=1"
    return f"torch.testing.make_tensor({arguments})"
