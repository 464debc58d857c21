"""Kernels of many programs as plain C: a batch of the second printer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.fuzz.kernels import TolerantBatch
from tests.support import sequential_c
from tests.support.sequential_c_tables import Unprintable
from tests.support.sequential_c_text import SequentialC
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.observers import Stage, observing
from thunder_fuser.runtime.target import Launch

_Key = tuple[object, ...]


def _key(kernel: Kernel) -> _Key:
    return (kernel.name, kernel.grid, kernel.block, kernel.shared_bytes)


@dataclass(frozen=True, slots=True)
class PlainCLaunch:
    """The function of a kernel. Implements `Launch`."""

    kernel: Kernel
    function: sequential_c.Function

    def __call__(self, *args: int | float | bool) -> None:
        self.function(*args)


class PlainCBatch(TolerantBatch):
    """Compiles at the first launch the statements of all kernels that were lowered so far."""

    def __init__(self, device: torch.device, info: DeviceInfo | None = None) -> None:
        super().__init__(device, info)
        self._lowered: KernelIR | None = None
        self._pending: dict[_Key, KernelIR] = {}
        self._functions: dict[_Key, sequential_c.Function | Exception] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._programs = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        with observing(self._see):
            yield

    def _see(self, stage: Stage, value: object) -> None:
        """The statements of a kernel, and then its name."""
        if isinstance(value, KernelIR):
            self._lowered = value
        elif isinstance(value, Kernel) and _key(value) not in self._functions:
            assert self._lowered is not None
            self._pending[_key(value)] = self._lowered

    def launch(self, kernel: Kernel) -> Launch:
        if _key(kernel) not in self._functions:
            self._compile()
        found = self._functions[_key(kernel)]
        if isinstance(found, Exception):
            raise found
        return PlainCLaunch(kernel, found)

    def _compile(self) -> None:
        printable: dict[_Key, KernelIR] = {}
        for key, kernel in self._pending.items():
            try:
                SequentialC(kernel).text("kernel")
                printable[key] = kernel
            except Unprintable as error:
                self._functions[key] = error
        self._pending.clear()
        try:
            self._functions.update(self._made(printable))
        except RuntimeError:
            # A program that C does not take fails alone.
            for key, kernel in printable.items():
                try:
                    self._functions.update(self._made({key: kernel}))
                except RuntimeError as error:
                    self._functions[key] = error

    def _made(self, kernels: dict[_Key, KernelIR]) -> dict[_Key, sequential_c.Function]:
        self._programs += 1
        folder, name = Path(self._folder.name), f"program{self._programs}"
        made = sequential_c.compiled(list(kernels.values()), folder, name)
        return dict(zip(kernels, made, strict=True))
