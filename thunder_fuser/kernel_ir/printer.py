"""Listing of kernel IR for readers: one line per statement, bodies indented, no C++ syntax."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.errors import InternalError
from thunder_fuser.ir.dtypes import DataType

_BINDS = {"*": 3, "/": 3, "%": 3, "+": 2, "-": 2}


def listing(kernel: ir.KernelIR) -> str:
    """Return the listing of a kernel: name, parameters, launch configuration and body."""
    name = " ".join([kernel.template, *kernel.operations])
    parameters = ", ".join(f"{p.name}: {_parameter(p)}" for p in kernel.parameters)
    launch = f"{kernel.blocks:,} blocks of {kernel.threads:,} threads, indices {kernel.index.name}"
    if kernel.cluster > 1:
        launch += f", clusters of {kernel.cluster}"
    if kernel.blocks_per_sm:
        launch += f", {kernel.blocks_per_sm} blocks per multiprocessor"
    if kernel.min_blocks_hint:
        launch += f", {kernel.min_blocks_hint} blocks per multiprocessor without spills"
    if kernel.shared_bytes:
        launch += f", {kernel.shared_bytes:,} B of shared memory"
    text = ListingText(kernel.index)
    body = "".join(f"\n  {line}" for line in text.body(kernel.body))
    return f"kernel {name} ({parameters})\n{launch}:{body}"


def _parameter(p: ir.Parameter) -> str:
    if isinstance(p.bound, ir.Scratch):
        return f"{p.bound.bytes:,} B"
    assert p.dtype is not None, f"{p.name} is a number or holds numbers"
    if not p.is_pointer:
        return p.dtype.name
    return f"{'' if p.written else 'const '}{p.dtype.name}*"


def _picks(s: ir.PickLanes) -> str:
    return ", ".join("-" if pick is None else str(pick) for pick in s.picks)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


class ListingText:
    """Lists the statements and expressions of one kernel."""

    def __init__(self, index: DataType) -> None:
        self._index = index

    def body(self, statements: ir.Body) -> list[str]:
        return [line for s in statements for line in self.STATEMENTS[type(s)](self, s)]

    def _of(self, value: ir.Expr) -> str:
        return self.EXPRESSIONS[type(value)](self, value)

    def _factor(self, value: ir.Expr, binds: int) -> str:
        text = self._of(value)
        loose = isinstance(value, (ir.Select, ir.Address)) or (
            isinstance(value, (ir.Binary, ir.UnsignedBinary)) and _BINDS.get(value.op, 1) < binds
        )
        return f"({text})" if loose else text

    def _all(self, *values: ir.Expr) -> str:
        return ", ".join(map(self._of, values))

    def _type(self, found: ir.Type) -> str:
        match found:
            case DataType():
                return found.name
            case ir.Reducer():
                position = "" if found.position is None else f" at {found.position.name}"
                return f"{found.op}<{found.accumulate.name}{position}>"
            case ir.ReducerLanes():
                return f"{self._type(found.reducer)} x {found.lanes}"
            case ir.PairedLanes():
                return f"{found.dtype.name} x {found.lanes}, in pairs"
            case ir.RawVector():
                return f"{found.width} raw {found.dtype.name}"
        raise InternalError(f"no type: {found}")

    # ---- expressions

    def _binary(self, e: ir.Binary | ir.UnsignedBinary) -> str:
        binds = _BINDS.get(e.op, 1)
        return f"{self._factor(e.left, binds)} {e.op} {self._factor(e.right, binds + 1)}"

    def _clamped_add(self, e: ir.ClampedAdd) -> str:
        return f"min({self._of(e.start)} + {self._factor(e.step, 3)}, {self._of(e.bound)})"

    def _select(self, e: ir.Select) -> str:
        outside = self._of(e.outside)
        return f"{self._factor(e.inside, 2)} if {self._of(e.test)} else {outside}"

    def _accumulate(self, e: ir.Accumulate) -> str:
        place = "" if e.position is None else f" at {self._of(e.position)}"
        return f"{e.reducer.op}.take({self._all(e.accumulator, e.element)}{place})"

    def _divide_by_constant(self, e: ir.DivideByConstant) -> str:
        match e:
            case ir.DivideByConstant(value, ir.Literal(float(high)), ir.Literal(float(low))):
                return f"{self._of(value)} / ~{1 / (high + low):.9g}"
        return f"{self._of(e.value)} * ({self._of(e.high)} + {self._of(e.low)})"

    def _checked_position(self, e: ir.CheckedPosition) -> str:
        extent, needed = self._of(e.extent), self._of(e.needed)
        return f"checked_position({self._of(e.value)}, below {extent}, where {needed})"

    def _dynamic_register(self, e: ir.DynamicRegister) -> str:
        begin = "" if e.begin is None else f"{self._of(e.begin)} + "
        return f"{self._of(e.array)}[select {begin}{self._of(e.index)}]"

    def _block_reduce(self, e: ir.BlockReduce) -> str:
        of = f"{e.threads} threads"
        if e.blocks > 1:
            of += f" of {e.blocks} blocks"
        name = "cluster_reduce" if e.blocks > 1 else "block_reduce"
        return (
            f"{name} {e.reducer.op}({self._of(e.value)}, {of}, slots {self._of(e.slots)} + {e.at})"
        )

    def _reduce_partials(self, e: ir.ReducePartials) -> str:
        parts = f"{e.count} parts {self._of(e.stride)} apart"
        place = f"{self._of(e.parts)}[{self._of(e.point)}], {parts}"
        return f"reduce_partials {e.reducer.op}({place})"

    EXPRESSIONS: ClassVar[dict[type, Callable[[ListingText, Any], str]]] = {
        ir.LaunchIndex: lambda s, e: str(e.value),
        ir.Var: lambda s, e: str(e.name),
        ir.Int: lambda s, e: str(e.value),
        ir.OpaqueZero: lambda s, e: "opaque 0",
        ir.Binary: _binary,
        ir.Negative: lambda s, e: f"-{s._factor(e.value, 3)}",
        ir.UnsignedBinary: _binary,
        ir.Min: lambda s, e: f"min({s._all(e.left, e.right)})",
        ir.ClampedAdd: _clamped_add,
        ir.IntCast: lambda s, e: f"{e.dtype.name}({s._of(e.value)})",
        ir.IndexNumber: lambda s, e: f"number({s._of(e.index)})",
        ir.And: lambda s, e: f"({' and '.join(map(s._of, e.tests))})",
        ir.Or: lambda s, e: f"({' or '.join(map(s._of, e.tests))})",
        ir.BoolConst: lambda s, e: str(e.value).lower(),
        ir.Select: _select,
        ir.Element: lambda s, e: f"{s._factor(e.base, 4)}[{s._of(e.index)}]",
        ir.Address: lambda s, e: f"{s._of(e.pointer)} + {s._factor(e.index, 2)}",
        ir.Reinterpret: lambda s, e: f"{s._type(e.type)}*({s._of(e.address)})",
        ir.RawLoad: lambda s, e: f"raw_load {e.width} at {s._of(e.address)}",
        ir.Literal: lambda s, e: f"{e.dtype.name}({e.value})",
        ir.Convert: lambda s, e: f"{e.dtype.name}({s._of(e.value)})",
        ir.Round: lambda s, e: f"round({s._of(e.value)} to {e.dtype.name})",
        ir.Narrow: lambda s, e: f"{e.dtype.name}({s._of(e.value)})",
        ir.Apply: lambda s, e: f"{'brief ' if e.brief else ''}{e.op}({s._all(*e.operands)})",
        ir.DivideByConstant: _divide_by_constant,
        ir.MakeComplex: lambda s, e: f"{e.dtype.name}({s._all(e.real, e.imag)})",
        ir.CheckedPosition: _checked_position,
        ir.DynamicRegister: _dynamic_register,
        ir.RandomNumber: lambda s, e: f"{e.op}({s._all(*e.parameters, e.number)})",
        ir.InitAccumulator: lambda s, e: f"{e.reducer.op}.start",
        ir.AsElement: lambda s, e: f"{e.reducer.element.name}({s._of(e.value)})",
        ir.Accumulate: _accumulate,
        ir.AccumulateVector: lambda s, e: (
            f"{e.reducer.op}.take({s._all(e.accumulator, e.elements)}[:{s._of(e.present)}])"
        ),
        ir.Present: lambda s, e: f"min({s._of(e.last)} + 1, {e.lanes})",
        ir.Combine: lambda s, e: f"{e.reducer.op}.combine({s._all(e.left, e.right)})",
        ir.FinalizeAccumulator: lambda s, e: f"{e.reducer.op}.finish({s._of(e.accumulator)})",
        ir.Lane: lambda s, e: f"{s._of(e.lanes)}.lane({s._of(e.lane)})",
        ir.WarpReduce: lambda s, e: (
            f"warp_reduce {e.reducer.op}({s._of(e.value)}, {e.threads} threads)"
        ),
        ir.BlockReduce: _block_reduce,
        ir.MappedRank: lambda s, e: f"{s._of(e.address)} of block {s._of(e.rank)}",
        ir.ReducePartials: _reduce_partials,
    }

    # ---- statements

    def _comment(self, s: ir.Comment) -> list[str]:
        return [f"# {s.text}{f' ({s.line})' if s.line else ''}"]

    def _let(self, s: ir.Let) -> list[str]:
        plain = s.type is self._index or s.type is DataType.Int32
        kind = "" if plain else f": {self._type(s.type)}"
        return [f"{'var ' if s.variable else ''}{s.name}{kind} = {self._of(s.value)}"]

    def _let_pointer(self, s: ir.LetPointer) -> list[str]:
        row = "" if s.row is None else f" rows of {s.row}"
        return [f"{s.name}: {self._type(s.type)}*{row} = {self._of(s.place)}"]

    def _registers(self, s: ir.Registers) -> list[str]:
        sizes = "".join(f"[{n}]" for n in s.sizes)
        return [f"{s.name}: {self._type(s.type)}{sizes}{' = 0' if s.zeroed else ''}"]

    def _if(self, s: ir.If) -> list[str]:
        lines = [f"if {' and '.join(map(self._of, s.tests))}:", *_indented(self.body(s.body))]
        return [*lines, "else:", *_indented(self.body(s.otherwise))] if s.otherwise else lines

    def _loop(self, s: ir.Loop) -> list[str]:
        how = s.kind.value if s.unroll is None else f"unrolled by {s.unroll}"
        step = s.step if isinstance(s.step, int) else s.step.value
        stride = "" if step == 1 else f" step {step}"
        head = f"for {s.axis} in {self._of(s.begin)}..{self._of(s.end)}{stride}, {how}:"
        return [head, *_indented(self.body(s.body))]

    def _vector_store(self, s: ir.VectorStore) -> list[str]:
        verb = "stream" if s.streams else "store"
        how = "" if s.is_aligned else " unaligned"
        return [f"{verb} {s.width}{how} at {self._of(s.address)}: {self._of(s.source)}"]

    def _draw_numbers(self, s: ir.DrawNumbers) -> list[str]:
        calls = f"{s.calls} calls from {self._of(s.first)}"
        return [f"{s.array}: {s.dtype.name} = draw {s.op}({self._all(s.seed, s.offset)}, {calls})"]

    def _transpose_tile(self, s: ir.TransposeTile) -> list[str]:
        shape = f"{s.columns} columns, {s.width} rows at once, {s.ways} ways {s.spread} apart"
        return [f"{s.name}: tile of {s.dtype.name}, {shape}, at {self._of(s.place)}"]

    def _grouped_reduce(self, s: ir.GroupedReduce) -> list[str]:
        return ["grouped:", *_indented(self.body(s.lets))]

    def _outer_block_reduce(self, s: ir.OuterBlockReduce) -> list[str]:
        slots = "" if s.slots is None else f", slots {self._of(s.slots)}"
        rows = f"{s.groups} x {s.vector} rows, {s.threads} threads{slots}"
        return [f"outer_block_reduce {s.reducer.op}({s.accumulators}, {rows})"]

    def _block_scan(self, s: ir.BlockScan) -> list[str]:
        slots = "" if s.slots is None else f", slots {self._of(s.slots)}"
        over = f"{self._of(s.value)}, {s.threads} threads, running {s.running}{slots}"
        return [f"{s.name}: {self._type(s.reducer)} = block_scan {s.reducer.op}({over})"]

    STATEMENTS: ClassVar[dict[type, Callable[[ListingText, Any], list[str]]]] = {
        ir.Comment: _comment,
        ir.Let: _let,
        ir.LetPointer: _let_pointer,
        ir.Registers: _registers,
        ir.Pack: lambda x, s: [f"{s.name}: {s.type.name} = {{{x._all(*s.values)}}}"],
        ir.Assign: lambda x, s: [f"{x._of(s.target)} = {x._of(s.value)}"],
        ir.Flip: lambda x, s: [f"flip {s.name}"],
        ir.LoadFence: lambda x, s: ["load_fence"],
        ir.AsyncCopies: lambda x, s: [f"{s.name}: {s.most} asynchronous copies"],
        ir.CopyAsync: lambda x, s: [
            f"{s.copies}: copy {s.width} from {x._of(s.source)} to {x._of(s.place)}"
        ],
        ir.AwaitCopies: lambda x, s: [f"await {s.copies}"],
        ir.SetLane: lambda x, s: [f"{x._of(s.lanes)}.lane({x._of(s.lane)}) = {x._of(s.value)}"],
        ir.VectorLoad: lambda x, s: [
            f"{x._of(s.target)} = load {s.width}{'' if s.is_aligned else ' unaligned'} "
            f"at {x._of(s.address)}"
        ],
        ir.PickLanes: lambda x, s: [f"{x._of(s.target)} = pick {_picks(s)} of {x._of(s.source)}"],
        ir.VectorStore: _vector_store,
        ir.Unpack: lambda x, s: [f"{x._of(s.target)} = unpack {x._of(s.words)}"],
        ir.Prefetch: lambda x, s: [f"prefetch {x._of(s.address)}"],
        ir.DrawNumbers: _draw_numbers,
        ir.If: _if,
        ir.Loop: _loop,
        ir.Scope: lambda x, s: ["scope:", *_indented(x.body(s.body))],
        ir.Shared: lambda x, s: [f"{s.name}: shared memory"],
        ir.Barrier: lambda x, s: ["barrier"],
        ir.ClusterArrive: lambda x, s: ["cluster arrive"],
        ir.ClusterWait: lambda x, s: [f"cluster wait, {s.blocks} blocks"],
        ir.GridBarrier: lambda x, s: [f"grid barrier of {x._of(s.blocks)} blocks"],
        ir.TransposeTile: _transpose_tile,
        ir.TileStore: lambda x, s: [
            f"{s.tile}.store({x._all(s.row, s.column)}): {x._of(s.source)}"
        ],
        ir.TileLoad: lambda x, s: [f"{x._of(s.target)} = {s.tile}.load({x._all(s.row, s.column)})"],
        ir.GroupedReduce: _grouped_reduce,
        ir.OuterBlockReduce: _outer_block_reduce,
        ir.BlockScan: _block_scan,
    }
