"""Kernels as plain C (sequential_c_text.py), compiled and called."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from tests.support.sequential_c_text import text_of
from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView

_NUMBERS: dict[DataType, Callable[..., object]] = {
    DataType.Float: ctypes.c_float,
    DataType.Double: ctypes.c_double,
    DataType.Bool: ctypes.c_bool,
    DataType.Int32: ctypes.c_int,
    DataType.Int: ctypes.c_longlong,
}


class Function:
    """A compiled kernel, called with addresses and numbers."""

    def __init__(self, library: ctypes.CDLL, name: str, kernel: ir.KernelIR) -> None:
        self._function = library[name]
        self._kernel = kernel

    def __call__(self, *values: int | float | bool) -> None:
        given = zip(self._kernel.parameters, values, strict=True)
        self._function(
            *(
                ctypes.c_void_p(int(v)) if p.is_pointer or p.dtype is None else _NUMBERS[p.dtype](v)
                for p, v in given
            )
        )


def compiled(kernels: Sequence[ir.KernelIR], folder: Path, name: str) -> list[Function]:
    """Kernels as one program, whose files have that name; Unprintable where there are no words for
    one of them, RuntimeError where the compiler refuses what was printed.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "no compiler: neither $CXX, g++ nor clang++"
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    names = [f"kernel{k}" for k in range(len(kernels))]
    source.write_text(text_of(kernels, names))
    flags = ["-x", "c", "-O1", "-ffp-contract=off", "-fwrapv", "-shared", "-fPIC", "-w"]
    command = [*compiler.split(), *flags, str(source), "-o", str(library), "-lm"]
    made = subprocess.run(command, check=False, capture_output=True, timeout=300, text=True)
    if made.returncode:
        raise RuntimeError(f"C does not take {source}: {made.stderr[:2000]}")
    loaded = ctypes.CDLL(str(library))
    return [Function(loaded, n, k) for n, k in zip(names, kernels, strict=True)]


def run(kernel: ir.KernelIR, tensors: Mapping[TensorView, torch.Tensor], folder: Path) -> None:
    """Run a kernel on tensors for those that it is bound to."""
    # A library of a path that is loaded already would be that one.
    name = f"kernel{sum(1 for _ in folder.glob('kernel*.c'))}"
    (function,) = compiled([kernel], folder, name)
    scratch: list[torch.Tensor] = []
    arguments: list[int] = []
    for p in kernel.parameters:
        if isinstance(p.bound, ir.Scratch):
            scratch.append(torch.zeros(p.bound.bytes, dtype=torch.uint8))
            arguments.append(scratch[-1].data_ptr())
        else:
            assert isinstance(p.bound, TensorView), "numbers are not passed here"
            arguments.append(tensors[p.bound].data_ptr())
    function(*arguments)
