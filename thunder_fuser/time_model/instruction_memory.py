"""Memory of a kernel as the time model sees it: names and what they hold, loads and stores with the
sectors of memory that they touch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_values import (
    Access,
    Form,
    Number,
    Sample,
    ValueNumbering,
    sampled_threads,
    sectors_touched,
)
from thunder_fuser.time_model.pipes import Mix

ACCESS_BYTES = 16
"""Bytes of the widest load or store of a thread."""
_SECTOR, _LINE = 32, 128

Value = Number | Form


@dataclass(frozen=True, slots=True)
class Place:
    """Place in memory: an offset from a parameter, in elements; "" if not in global memory.

    step  elements per index
    """

    tensor: str
    offset: Form
    step: int


class MemoryMix(ABC):
    """Counts the loads and stores of one kernel.

    environment  by name: a value, an index, a place, or a register array by indices
    types        types by name
    active       sampled threads that execute the current statement; None: all, or unknown
    """

    def __init__(self, kernel: ir.KernelIR, arch: str) -> None:
        self.values = ValueNumbering(kernel.index is DataType.Int)
        self.environment: dict[str, Any] = {}
        self.types: dict[str, ir.Type] = {}
        self._arch = arch
        self._memory: dict[str, ir.Parameter] = {}
        self._loaded: set[Number] = set()
        # Sectors touched so far, by warp, for each tensor and place in the kernel.
        self._touched: dict[Hashable, defaultdict[int, set[int]]] = {}
        self._is_ahead = self._is_async = False
        self._serial = 0
        self.active: Sample | None = None
        root = self.values.root
        places = list(sampled_threads(kernel.blocks, kernel.threads))
        self._launch = {
            ir.LaunchIndex.BLOCK: Number(root, Mix(), known=tuple(b for b, _ in places)),
            ir.LaunchIndex.THREAD: Number(root, Mix(), known=tuple(t for _, t in places)),
            ir.LaunchIndex.BLOCKS: Number(root, Mix(), known=(kernel.blocks,) * len(places)),
        }
        for p in kernel.parameters:
            found = self.values.number(("parameter", p.name), table.of_parameter(arch))
            if p.is_pointer:
                self._memory[p.name] = p
                found.known = (0,) * len(places)  # Any value will do: it is only known as uniform.
            else:
                self.environment[p.name] = found

    @abstractmethod
    def expr(self, e: ir.Expr) -> Any:
        """Count an expression; return its value."""

    def form(self, e: ir.Expr) -> Form:
        found = self.expr(e)
        return found if isinstance(found, Form) else Form(0, ((self.register(found), 1),))

    # ---- loads and stores

    def load(self, address: ir.Expr, width: int, dtype: DataType) -> Callable[[int], Number]:
        """Count a load; return a function from element index to its value."""
        pointer, form = self.place(address)
        size = width * dtype.itemsize
        parameter = self._memory.get(pointer)
        operand = self.values.address(pointer, form)
        operands = () if operand is None else (operand,)
        count = -(-size // ACCESS_BYTES)
        stable = parameter is not None and not parameter.written and not parameter.aliased
        key: tuple[Any, ...] = ("load", pointer, form, width)
        if not stable:
            key = (*key, self.fresh())
        whole = self.values.number(key, table.lsu(count), operands)
        if parameter is not None and whole not in self._loaded:
            self._loaded.add(whole)
            access = self._access(parameter, False, size, form, dtype)
            ahead = self._is_ahead and whole.region is self.values.here
            phase = whole.region.waiting.barriers
            found = replace(access, phase=phase, is_ahead=ahead, is_async=self._is_async)
            whole.region.accesses.append(found)
        self.values.use([whole])
        return lambda k: self.values.number((*key, "element", k, whole), Mix(), (whole,))

    def store(self, address: ir.Expr, size: int, operands: Sequence[Number]) -> None:
        pointer, form = self.place(address)
        count = -(-size // ACCESS_BYTES)
        self.values.effect(table.lsu(count), [self.values.address(pointer, form), *operands])
        parameter = self._memory.get(pointer)
        if parameter is not None:
            dtype = parameter.dtype or DataType.Float
            self.values.here.accesses.append(self._access(parameter, True, size, form, dtype))

    def _access(
        self, parameter: ir.Parameter, is_store: bool, size: int, form: Form, dtype: DataType
    ) -> Access:
        places = form.values()
        sample = None if places is None else tuple(p * dtype.itemsize for p in places)
        here = self.values.here
        if sample is None:
            return Access(parameter.name, is_store, size, max(size, _SECTOR), 0.0, here.barriers)
        found = sectors_touched(sample, size, _SECTOR, self.active)
        beside = here.waiting, parameter.name, is_store, here.waiting.barriers
        touched = self._touched.setdefault(beside, defaultdict(set))
        fresh = sum(len(sectors - touched[warp]) for warp, sectors in found.items())
        for warp, sectors in found.items():
            touched[warp] |= sectors
        lines = sum(len({s * _SECTOR // _LINE for s in sectors}) for sectors in found.values())
        passes = max(1.0, WARP_SIZE * size / _LINE)
        return Access(
            parameter.name,
            is_store,
            size,
            fresh * _SECTOR / (len(found) * WARP_SIZE),
            max(0.0, lines / len(found) - passes),
            here.barriers,
        )

    def place(self, address: ir.Expr) -> tuple[str, Form]:
        found = self.expr(address)
        if isinstance(found, Place):
            return found.tensor, found.offset
        return "", found if isinstance(found, Form) else Form(0)

    # ---- names

    def register(self, value: Any) -> Number:
        if isinstance(value, Form):
            return self.values.register(value) or self.values.constant()
        if isinstance(value, dict):
            parts = [self.register(v) for v in value.values()]
            return self.values.number(("struct", *parts), Mix(), parts)
        return value if isinstance(value, Number) else self.values.constant()

    def path(self, e: ir.Expr) -> tuple[str, tuple[Form, ...]]:
        """Return the name of an array and the indices of an element."""
        index: list[Form] = []
        while isinstance(e, ir.Element):
            index.append(self.form(e.index))
            e = e.base
        name = e.name if isinstance(e, ir.Var) else ""
        return name, tuple(reversed(index))

    def assign(self, target: ir.Expr, value: Any) -> None:
        base, index = self.path(target)
        if isinstance(target, ir.Var):
            self.environment[target.name] = value
            return
        found = self.environment.get(base)
        if isinstance(found, dict):
            found[tuple(f.const for f in index)] = value
            return
        assert isinstance(target, ir.Element)
        dtype = self.dtype(target)
        self.store(ir.Address(target.base, target.index), dtype.itemsize, [self.register(value)])

    def fresh(self) -> int:
        self._serial += 1
        return self._serial

    def dtype(self, e: ir.Expr) -> DataType:
        """Return the dtype of an element of a register array or of memory."""
        while isinstance(e, (ir.Element, ir.Address)):
            e = e.base if isinstance(e, ir.Element) else e.pointer
        name = e.name if isinstance(e, ir.Var) else ""
        if name in self._memory:
            return self._memory[name].dtype or DataType.Float
        found = self.types.get(name)
        return found if isinstance(found, DataType) else DataType.Float


def array_name(e: ir.Expr) -> str:
    """Return the name of the array of an element."""
    while isinstance(e, ir.Element):
        e = e.base
    return e.name if isinstance(e, ir.Var) else ""
