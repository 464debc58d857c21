"""CUDA C++ text of kernel IR statements, and the headers that a kernel's text needs.

The text is in the common subset of csrc_templates/prelude.cuh, so that a C++ compiler for the host
accepts it as NVRTC does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.codegen.cuda_expressions import (
    CudaExpressions,
    functor_of,
    group_of,
    shape_of_parts,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import random

_HEADERS = (
    *("prelude", "types", "vector", "fp8", "complex", "math"),
    *("pairs", "philox", "gather", "reduce", "cluster", "scan", "tile"),
)
_PRAGMAS = {
    ir.LoopKind.VECTOR: "TF_VEC",
    ir.LoopKind.UNROLLED: "TF_UNROLL",
    ir.LoopKind.UNROLLED_SHORT: "TF_UNROLL_SHORT",
}


def braced(head: str, lines: Sequence[str]) -> list[str]:
    """Return lines in braces after a head; a single statement goes on the head's line instead."""
    if head and len(lines) == 1 and lines[0][-1] == ";":
        return [f"{head} {lines[0]}"]
    return [f"{head} {{" if head else "{", *indented(lines), "}"]


def indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


class CudaText(CudaExpressions):
    """Prints the statements of one kernel, and records what they need.

    lines       source lines of each comment, in order; they are not part of the text
    cooperates  blocks wait for each other (grid barrier)
    """

    def __init__(self, index: DataType) -> None:
        super().__init__(index)
        self.lines: list[str] = []
        self.cooperates = False

    def body(self, statements: ir.Body) -> list[str]:
        return [line for s in statements for line in self.STATEMENTS[type(s)](self, s)]

    def _comment(self, s: ir.Comment) -> list[str]:
        self.lines.append(s.line)
        return [f"// {s.text}"]

    def _let(self, s: ir.Let) -> list[str]:
        constant = "" if s.variable else "const "
        return [f"{constant}{self.ctype(s.type)} {s.name} = {self.text(s.value)};"]

    def _let_pointer(self, s: ir.LetPointer) -> list[str]:
        ctype, place = self.ctype(s.type), self.text(s.place)
        if s.row is None:
            return [f"{ctype}* const {s.name} = {place};"]
        rows = f"({ctype} (*)[{s.row}])({place})"
        return [f"{ctype} (*const {s.name})[{s.row}] = {rows};"]

    def _registers(self, s: ir.Registers) -> list[str]:
        sizes = "".join(f"[{n}]" for n in s.sizes)
        if not s.sizes:
            return [f"{self.ctype(s.type)} {s.name}{' = {}' if s.zeroed else ''};"]
        cleared = [f"tf::clear({s.name});"] if s.zeroed else []
        return [f"{self.ctype(s.type)} {s.name}{sizes};", *cleared]

    def _pack(self, s: ir.Pack) -> list[str]:
        values = ", ".join(map(self.text, s.values))
        return [f"const {self.ctype(s.type)} {s.name}[{len(s.values)}] = {{{values}}};"]

    def _assign(self, s: ir.Assign) -> list[str]:
        return [f"{self.text(s.target)} = {self.text(s.value)};"]

    def _flip(self, s: ir.Flip) -> list[str]:
        return [f"{s.name} ^= 1;"]

    def _load_fence(self, _: ir.LoadFence) -> list[str]:
        return ["if (tf::opaque_false()) continue;"]

    def _async_copies(self, s: ir.AsyncCopies) -> list[str]:
        return [f"tf::AsyncCopies<{s.most}> {s.name}({self.text(s.shared)});"]

    def _copy_async(self, s: ir.CopyAsync) -> list[str]:
        places = f"{self.text(s.place)}, {self.text(s.source)}"
        return [f"{s.copies}.copy<{s.width}>({places});"]

    def _await_copies(self, s: ir.AwaitCopies) -> list[str]:
        return [f"{s.copies}.wait();"]

    def _set_lane(self, s: ir.SetLane) -> list[str]:
        lane, value = self.text(s.lane), self.text(s.value)
        return [f"{self.text(s.lanes)}.set({lane}, {value});"]

    def _vector_load(self, s: ir.VectorLoad) -> list[str]:
        function = "load" if s.is_aligned else "load_unaligned"
        return [f"tf::{function}<{s.width}>({self.text(s.address)}, {self.text(s.target)});"]

    def _pick_lanes(self, s: ir.PickLanes) -> list[str]:
        picks = ", ".join(str(-1 if pick is None else pick) for pick in s.picks)
        return [f"tf::pick<{picks}>({self.text(s.source)}, {self.text(s.target)});"]

    def _vector_store(self, s: ir.VectorStore) -> list[str]:
        function = "stream" if s.streams else "store" if s.is_aligned else "store_unaligned"
        return [f"tf::{function}<{s.width}>({self.text(s.address)}, {self.text(s.source)});"]

    def _unpack(self, s: ir.Unpack) -> list[str]:
        return [f"tf::unpack({self.text(s.words)}, {self.text(s.target)});"]

    def _prefetch(self, s: ir.Prefetch) -> list[str]:
        return [f"TF_PREFETCH({self.text(s.address)});"]

    def _draw_numbers(self, s: ir.DrawNumbers) -> list[str]:
        self.headers.add("philox")
        size = random.numbers_per_call(s.dtype) * s.calls
        seed, offset = (f"(unsigned long long){self._number(v)}" for v in (s.seed, s.offset))
        arguments = f"{seed}, {self.text(s.first)}, {offset}, {s.array}"
        return [
            f"{self.ctype(s.dtype)} {s.array}[{size}];",
            f"{random.lookup(s.op).standard}<{s.calls}>({arguments});",
        ]

    def _if(self, s: ir.If) -> list[str]:
        head = f"if ({' && '.join(map(self.text, s.tests))})"
        if not s.otherwise:
            return braced(head, self.body(s.body))
        # Always in braces, since an else binds to the nearest if.
        lines = [f"{head} {{", *indented(self.body(s.body))]
        if len(s.otherwise) == 1 and isinstance(s.otherwise[0], ir.If):
            first, *rest = self._if(s.otherwise[0])
            return [*lines, f"}} else {first}", *rest]
        return [*lines, "} else {", *indented(self.body(s.otherwise)), "}"]

    def _loop(self, s: ir.Loop) -> list[str]:
        axis, end = s.axis, self._factor(s.end, 2)
        next_one = f"++{axis}" if s.step == 1 else f"{axis} += {self._step(s.step)}"
        first = f"{s.type.ctype} {axis} = {self.text(s.begin)}"
        lines = braced(f"for ({first}; {axis} < {end}; {next_one})", self.body(s.body))
        if s.unroll is not None:
            return [f"TF_UNROLL_BY({s.unroll})", *lines]
        return [_PRAGMAS[s.kind], *lines] if s.kind in _PRAGMAS else lines

    def _step(self, step: int | ir.LaunchIndex) -> str:
        return str(step) if isinstance(step, int) else self.text(step)

    def _scope(self, s: ir.Scope) -> list[str]:
        return braced("", self.body(s.body))

    def _shared(self, s: ir.Shared) -> list[str]:
        return [f"TF_SHARED({s.name});"]

    def _barrier(self, s: ir.Barrier) -> list[str]:
        self.synchronises = True
        return ["__syncthreads();"]

    def _cluster_arrive(self, _: ir.ClusterArrive) -> list[str]:
        return ["tf::cluster_arrive();"]

    def _cluster_wait(self, s: ir.ClusterWait) -> list[str]:
        self.synchronises = True
        return [f"tf::cluster_wait({s.blocks});"]

    def _grid_barrier(self, s: ir.GridBarrier) -> list[str]:
        self.synchronises = self.cooperates = True
        blocks = self.text(s.blocks)
        return [f"tf::grid_barrier({blocks}{'u' if isinstance(s.blocks, ir.Int) else ''});"]

    def _transpose_tile(self, s: ir.TransposeTile) -> list[str]:
        self.headers.add("tile")
        ctype = self.ctype(s.dtype)
        shape = f"{ctype}, {s.columns}, {s.width}, {s.spread}, {s.ways}"
        return [f"tf::TransposeTile<{shape}> {s.name}{{({ctype}*)({self.text(s.place)})}};"]

    def _tile_store(self, s: ir.TileStore) -> list[str]:
        arguments = ", ".join(map(self.text, (s.row, s.column, s.source)))
        return [f"{s.tile}.store({arguments});"]

    def _tile_load(self, s: ir.TileLoad) -> list[str]:
        arguments = ", ".join(map(self.text, (s.row, s.column, s.target)))
        return [f"{s.tile}.load({arguments});"]

    def _grouped_reduce(self, s: ir.GroupedReduce) -> list[str]:
        self.synchronises = True
        found, names, values = [], [], []
        for let in s.lets:
            each, ctype = let.value, self.ctype(let.type)
            assert isinstance(each, (ir.BlockReduce, ir.ReducePartials))
            functor, slots = functor_of(each.reducer), self.text(each.slots)
            if isinstance(each, ir.BlockReduce):
                name = f"{let.name}_exchange"
                place = f"{self.text(each.value)}, {slots}"
                exchange = f"tf::Exchange<{functor}, {ctype}, {each.at}>"
                found.append(f"{exchange} {name}{{{place}}};")
                function = f"tf::{self._reduces(each)}<{group_of(each)}>"
                who = list(map(self.text, self._who(each)))
            else:
                name = f"{let.name}_partials"
                place = f"{self.text(each.parts)}, {slots}"
                found.append(f"auto {name} = tf::partials<{functor}>({place});")
                function = f"tf::reduce_partials<{shape_of_parts(each)}>"
                who = [self.text(each.stride), self.text(each.point)]
            values.append(f"const {ctype} {let.name} = {name}.value;")
            names.append(name)
        return [*found, f"{function}({', '.join([*who, *names])});", *values]

    def _outer_block_reduce(self, s: ir.OuterBlockReduce) -> list[str]:
        self.synchronises = True
        shape = f"{functor_of(s.reducer)}, {s.threads}, {s.groups}, {s.vector}"
        place = "0" if s.slots is None else self.text(s.slots)
        slots = f"({self.ctype(s.reducer)}*)({place})"
        return [f"tf::outer_block_reduce<{shape}>({s.accumulators}, {slots});"]

    def _block_scan(self, s: ir.BlockScan) -> list[str]:
        self.headers.add("scan")
        self.synchronises = self.synchronises or s.threads > 1
        ctype, place = self.ctype(s.reducer), "0" if s.slots is None else self.text(s.slots)
        arguments = f"{self.text(s.value)}, {s.running}, ({ctype}*)({place}), {self.text(s.thread)}"
        shape = f"{functor_of(s.reducer)}, {s.threads}"
        return [f"const {ctype} {s.name} = tf::block_scan<{shape}>({arguments});"]

    STATEMENTS: ClassVar[dict[type, Callable[[CudaText, Any], list[str]]]] = {
        ir.Comment: _comment,
        ir.Let: _let,
        ir.LetPointer: _let_pointer,
        ir.Registers: _registers,
        ir.Pack: _pack,
        ir.Assign: _assign,
        ir.Flip: _flip,
        ir.LoadFence: _load_fence,
        ir.AsyncCopies: _async_copies,
        ir.CopyAsync: _copy_async,
        ir.AwaitCopies: _await_copies,
        ir.SetLane: _set_lane,
        ir.VectorLoad: _vector_load,
        ir.PickLanes: _pick_lanes,
        ir.VectorStore: _vector_store,
        ir.Unpack: _unpack,
        ir.Prefetch: _prefetch,
        ir.DrawNumbers: _draw_numbers,
        ir.If: _if,
        ir.Loop: _loop,
        ir.Scope: _scope,
        ir.Shared: _shared,
        ir.Barrier: _barrier,
        ir.ClusterArrive: _cluster_arrive,
        ir.ClusterWait: _cluster_wait,
        ir.GridBarrier: _grid_barrier,
        ir.TransposeTile: _transpose_tile,
        ir.TileStore: _tile_store,
        ir.TileLoad: _tile_load,
        ir.GroupedReduce: _grouped_reduce,
        ir.OuterBlockReduce: _outer_block_reduce,
        ir.BlockScan: _block_scan,
    }


def header_files(stems: set[str]) -> tuple[str, ...]:
    return tuple(f"{stem}.cuh" for stem in _HEADERS if stem in stems)
