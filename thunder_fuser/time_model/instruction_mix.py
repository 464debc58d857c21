"""Instruction mix of a kernel: instructions of a thread by pipe, for each region of the kernel.

Statements are processed as a compiler does: loops are unrolled, common subexpressions eliminated,
dead code dropped. The result is one region per remaining loop or predicated part, and one for the
rest. Tests compare them with machine code (tests/time_model/test_instruction_mix.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import random
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_control import ControlMix
from thunder_fuser.time_model.instruction_memory import ACCESS_BYTES, Place, array_name
from thunder_fuser.time_model.instruction_values import Form, Region
from thunder_fuser.time_model.pipes import Mix, Pipe

_START = Mix({Pipe.OTHER: 5.0})
"""Fixed instructions of a kernel: reading the thread and block index, and the exit."""


def instruction_regions(kernel: ir.KernelIR, arch: str) -> list[Region]:
    """Return the regions of a kernel; the first is the code outside of loops."""
    return InstructionMix(kernel, arch).regions


class InstructionMix(ControlMix):
    """Counts the instructions of the statements of one kernel."""

    def __init__(self, kernel: ir.KernelIR, arch: str) -> None:
        super().__init__(kernel, arch)
        self._zeroed: set[str] = set()
        self._declared: dict[str, Region] = {}
        self._awaited: Region | None = None
        self.values.root.mix.update(_START)
        self.body(kernel.body)
        self.regions = self.values.finish()

    def _nothing(self, s: ir.Stmt) -> None:
        pass

    def _let(self, s: ir.Let) -> None:
        self.types[s.name] = s.type
        self.environment[s.name] = self.expr(s.value)

    def _let_pointer(self, s: ir.LetPointer) -> None:
        self.environment[s.name] = Place("", Form(0), s.row or 1)
        self.types[s.name] = s.type

    def _registers(self, s: ir.Registers) -> None:
        self.types[s.name] = s.type
        self._declared[s.name] = self.values.here
        self.environment[s.name] = {} if s.sizes else self.values.constant()
        if s.zeroed and isinstance(s.type, DataType):
            # Clearing registers that some threads do not load takes one instruction for two.
            count = math.prod(s.sizes) * s.type.itemsize / ir.WORD
            self.values.effect(table.mix(0, count / 2))
            self._zeroed.add(s.name)

    def _pack(self, s: ir.Pack) -> None:
        self.types[s.name] = s.type
        self.environment[s.name] = {(k,): self.expr(v) for k, v in enumerate(s.values)}

    def _assign(self, s: ir.Assign) -> None:
        is_load = isinstance(s.value, (ir.Element, ir.RawLoad))
        self._is_ahead = is_load and self._outlives(array_name(s.target))
        value = self.expr(s.value)
        self._is_ahead = False
        self.assign(s.target, value)

    def _outlives(self, name: str) -> bool:
        """True if a register is declared outside the current loop: the next iteration reads it."""
        loop = next((r for r in self.values.here.line if r.is_loop), None)
        declared = self._declared.get(name)
        return loop is not None and declared is not None and loop not in declared.line

    def _flip(self, s: ir.Flip) -> None:
        self.environment[s.name] = self.values.number(("flip", self.fresh()), table.mix(0, 1))

    def _load_fence(self, _: ir.LoadFence) -> None:
        self.values.effect(table.mix(0, 0, 0, 1), [])

    def _copy_async(self, s: ir.CopyAsync) -> None:
        """Count one instruction without a result; it is a prefetch in a loop that has awaited this
        iteration's copies before.
        """
        self._is_async = True
        self._is_ahead = self._awaited in self.values.here.line
        self.load(s.source, s.width, self.dtype(s.source))
        self._is_ahead = self._is_async = False
        place = self.values.register(self.form(s.place))
        # A global address is a register pair, to which the instruction adds no immediate.
        self.values.effect(table.mix(0, 2), [place])

    def _await_copies(self, s: ir.AwaitCopies) -> None:
        self._awaited = next((r for r in self.values.here.line if r.is_loop), None)
        self.values.effect(table.mix(0, 0, 0, 1))
        # Before a group of copies ptxas emits three loads without a purpose.
        self.values.effect(table.lsu(3))

    def _set_lane(self, s: ir.SetLane) -> None:
        self.assign(ir.Element(s.lanes, s.lane), self.expr(s.value))

    def _vector_load(self, s: ir.VectorLoad) -> None:
        dtype = self.dtype(s.target)
        loaded = self.load(s.address, s.width, dtype)
        if self.tested and dtype.itemsize < ir.WORD and array_name(s.target) not in self._zeroed:
            # Elements that are used in another basic block are unpacked right after the load.
            self.values.effect(table.mix(0, s.width * (1 - dtype.itemsize / ir.WORD)))
        for k in range(s.width):
            self.assign(ir.Element(s.target, ir.Int(k)), loaded(k))

    def _pick_lanes(self, s: ir.PickLanes) -> None:
        source, target = self.expr(s.source), self.environment[array_name(s.target)]
        for lane, pick in enumerate(s.picks):
            if pick is not None and isinstance(source, dict) and isinstance(target, dict):
                target[(lane,)] = source.get((pick,), self.values.constant())

    def _vector_store(self, s: ir.VectorStore) -> None:
        dtype = self.dtype(s.source)
        operands = [
            self.register(self.expr(ir.Element(s.source, ir.Int(k)))) for k in range(s.width)
        ]
        self.store(s.address, s.width * dtype.itemsize, operands)

    def _unpack(self, s: ir.Unpack) -> None:
        fetched = self.register(self.expr(s.words))
        for k in range(ACCESS_BYTES):
            part = self.values.number(("unpack", fetched, k), Mix(), (fetched,))
            self.assign(ir.Element(s.target, ir.Int(k)), part)

    def _prefetch(self, s: ir.Prefetch) -> None:
        pointer, form = self.place(s.address)
        self.values.effect(table.lsu(), [self.values.address(pointer, form)])

    def _draw_numbers(self, s: ir.DrawNumbers) -> None:
        counters = tuple(self.expr(e) for e in (s.seed, s.first, s.offset))
        operands = list(map(self.register, counters))
        size = random.numbers_per_call(s.dtype) * s.calls
        # Ten rounds of two 64-bit products for four numbers, then a conversion of each from its
        # bits unless it is an integer. Round keys are uniform over all threads.
        each = Mix({Pipe.FMA: 20.0 / 4, Pipe.ALU: 20.0 / 4, Pipe.OTHER: 4.0 / 4})
        if s.dtype.is_floating:
            each.update(table.mix(1, 0, 1))
        self.types[s.array] = s.dtype
        # A later pass that draws the same numbers finds them in registers.
        self.environment[s.array] = {
            (k,): self.values.number(("draw", s.op, s.dtype, counters, k), each, operands)
            for k in range(size)
        }

    def _shared(self, s: ir.Shared) -> None:
        self.environment[s.name] = Place("", Form(0), 1)

    def _transpose_tile(self, s: ir.TransposeTile) -> None:
        self.types[s.name] = s.dtype
        self.environment[s.name] = s

    def _tile_store(self, s: ir.TileStore) -> None:
        tile = self.environment[s.tile]
        operands = [self.register(self.expr(e)) for e in (s.row, s.column)]
        found = [
            self.register(self.expr(ir.at(s.source, ir.Int(n), ir.Int(w))))
            for w in range(tile.width)
            for n in range(s.depth)
        ]
        size = tile.dtype.itemsize
        stores = tile.width * max(1, s.depth * size // ACCESS_BYTES)
        # Elements of one column lie in different registers: they are packed into words.
        packing = tile.width * s.depth * (2 // size if size < 4 else 0)
        mixed = table.mix(0, packing)
        mixed.update(table.times(table.of_tile_place(tile.dtype, self._arch), stores))
        mixed.update(table.lsu(stores))
        self.values.effect(mixed, [*operands, *found])

    def _tile_load(self, s: ir.TileLoad) -> None:
        tile = self.environment[s.tile]
        operands = [self.register(self.expr(e)) for e in (s.row, s.column)]
        loads = max(1, s.vector * tile.dtype.itemsize // ACCESS_BYTES)
        self.values.effect(table.lsu(loads), operands)
        self.values.effect(table.times(table.of_tile_place(tile.dtype, self._arch), loads))
        for k in range(s.vector):
            self.assign(ir.Element(s.target, ir.Int(k)), self.values.opaque())

    STATEMENTS: ClassVar[Mapping[type, Callable[..., None]]] = {
        **ControlMix.STATEMENTS,
        ir.Comment: _nothing,
        ir.Let: _let,
        ir.LetPointer: _let_pointer,
        ir.Registers: _registers,
        ir.Pack: _pack,
        ir.Assign: _assign,
        ir.Flip: _flip,
        ir.LoadFence: _load_fence,
        ir.AsyncCopies: _nothing,
        ir.CopyAsync: _copy_async,
        ir.AwaitCopies: _await_copies,
        ir.SetLane: _set_lane,
        ir.VectorLoad: _vector_load,
        ir.PickLanes: _pick_lanes,
        ir.VectorStore: _vector_store,
        ir.Unpack: _unpack,
        ir.Prefetch: _prefetch,
        ir.DrawNumbers: _draw_numbers,
        ir.Shared: _shared,
        ir.ClusterArrive: _nothing,
        ir.TransposeTile: _transpose_tile,
        ir.TileStore: _tile_store,
        ir.TileLoad: _tile_load,
    }
