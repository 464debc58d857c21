"""Dynamic sizes (dynamic shapes): kernels that are compiled once for all sizes of a program.

The kernels of a program's first sizes have these as constants. A kernel for later sizes that is
the same statements as an earlier one (`kernel_ir/generalize.py`) gets parameters for the constants
that have varied so far; its text, and so the compiled kernel, is that of all further sizes for
which no other constant varies. So compilers run for the first sizes, for the second, and then only
for sizes with other statements: another vector width, another row cache, a size of 1.

Results do not depend on it: statements, and with them roundings and their order, are those of a
kernel that is compiled for the sizes alone. What compilers may choose, they may choose otherwise:
which products of a gradient they contract with a sum.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.kernel_ir.generalize import (
    MOST_PARAMETERS,
    Generalization,
    Pattern,
    pattern_of,
    with_parameters,
)
from thunder_fuser.runtime.fork import Lock


@dataclass(slots=True)
class _Family:
    """Kernels of one pattern for several sizes.

    since  number of the sizes that the first of them was generated for
    """

    general: Generalization
    since: int


class DynamicSizes:
    """What the kernels of one program have had as constants so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._latest: Hashable = None
        self._number = 0
        self._families: dict[Pattern, list[_Family]] = {}
        self._first: list[KernelIR] = []

    def of(self, sizes: Hashable) -> Sizes:
        """Return what adapts the kernels that are generated for these sizes of the program."""
        with self._lock:
            if sizes != self._latest:
                self._latest = sizes
                self._number += 1
            return Sizes(self, self._number)

    def adapted(self, kernel: KernelIR, number: int) -> KernelIR:
        """Return a kernel for the sizes of that number, with parameters for what varies between
        them and earlier ones. Kernels for the same sizes, such as those of two layers, are not
        compared with each other.
        """
        with self._lock:
            if number == 1:
                # Most programs have no second sizes: what they share is found when they do.
                self._first.append(kernel)
                return kernel
            for known in self._first:
                self._add(*pattern_of(known), since=1)
            self._first.clear()
            pattern, constants = pattern_of(kernel)
            earlier = [f for f in self._families.get(pattern, ()) if f.since < number]
            if not earlier:
                self._add(pattern, constants, number)
                return kernel
            nearest = min(earlier, key=lambda family: family.general.changes(constants))
            general = nearest.general.joined(constants)
            if general.parameters > MOST_PARAMETERS:
                return kernel
            nearest.general = general
            return with_parameters(kernel, general)

    def _add(self, pattern: Pattern, constants: Generalization, since: int) -> None:
        families = self._families.setdefault(pattern, [])
        if all(family.general != constants for family in families):
            families.append(_Family(constants, since))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Some sizes of a program, numbered in the order of their first use."""

    history: DynamicSizes
    number: int

    def adapted(self, kernel: KernelIR) -> KernelIR:
        """Return a kernel that was generated for these sizes, with parameters for what varies."""
        return self.history.adapted(kernel, self.number)
