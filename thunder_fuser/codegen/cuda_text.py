"""CUDA C++ text of kernel IR statements and expressions, and the headers that the text needs.

The text is in the common subset of csrc_templates/prelude.cuh, so that a C++ compiler for the host
accepts it as NVRTC does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.codegen.literals import literal
from thunder_fuser.errors import InternalError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import pointwise, random, reductions

_FLOAT8 = frozenset({DataType.Float8_e4m3fn, DataType.Float8_e5m2})
_UNSIGNED = {DataType.Int32: ("unsigned", "u"), DataType.Int: ("unsigned long long", "ull")}
_BINDS = {"*": 3, "/": 3, "%": 3, "+": 2, "-": 2}
"""Operator precedence; comparisons have the lowest."""
_HEADERS = (
    *("prelude", "types", "vector", "fp8", "complex", "math"),
    *("pairs", "philox", "gather", "reduce", "cluster", "scan", "tile"),
)
_PRAGMAS = {
    ir.LoopKind.VECTOR: "TF_VEC",
    ir.LoopKind.UNROLLED: "TF_UNROLL",
    ir.LoopKind.UNROLLED_SHORT: "TF_UNROLL_SHORT",
}
_LAUNCH = {
    ir.LaunchIndex.BLOCK: "blockIdx.x",
    ir.LaunchIndex.THREAD: "threadIdx.x",
    ir.LaunchIndex.BLOCKS: "gridDim.x",
}


def braced(head: str, lines: Sequence[str]) -> list[str]:
    """Return lines in braces after a head; a single statement goes on the head's line instead."""
    if head and len(lines) == 1 and lines[0][-1] == ";":
        return [f"{head} {lines[0]}"]
    return [f"{head} {{" if head else "{", *indented(lines), "}"]


def indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


class CudaText:
    """Prints the statements of one kernel, and records what they need.

    headers      stems of the csrc_templates files to include
    lines        source lines of each comment, in order; they are not part of the text
    synchronises threads wait for each other
    cooperates   blocks wait for each other (grid barrier)
    """

    def __init__(self, index: DataType) -> None:
        self.headers = {"prelude", "types", "vector"}
        self.lines: list[str] = []
        self.synchronises = False
        self.cooperates = False
        self._unsigned, self._suffix = _UNSIGNED[index]

    def body(self, statements: ir.Body) -> list[str]:
        return [line for s in statements for line in self.STATEMENTS[type(s)](self, s)]

    def text(self, value: ir.Expr) -> str:
        return self.EXPRESSIONS[type(value)](self, value)

    def _factor(self, value: ir.Expr, binds: int) -> str:
        """Return the text of an operand of an operator with precedence `binds`."""
        text = self.text(value)
        match value:
            case ir.Binary():
                return f"({text})" if _BINDS.get(value.op, 1) < binds else text
            case ir.UnsignedBinary():
                return f"({text})" if binds > 3 else text
            case ir.Negative():
                return f"({text})" if binds > 2 else text
            case ir.Select() | ir.Min() | ir.ClampedAdd() | ir.Address():
                return f"({text})"
        return text

    # ---- types

    def ctype(self, found: ir.Type) -> str:
        match found:
            case DataType():
                if found in _FLOAT8:
                    self.headers.add("fp8")
                elif found.is_complex:
                    self.headers.add("complex")
                return found.ctype
            case ir.Reducer():
                return self._spelled(found, reductions.lookup(found.op).accumulator.ctype)
            case ir.ReducerLanes():
                return f"tf::Lanes<{self.ctype(found.reducer)}, {found.lanes}>"
            case ir.PairedLanes():
                self.headers.add("pairs")
                return f"tf::Pairs<{self.ctype(found.dtype)}, {found.lanes}>"
            case ir.RawVector():
                return f"tf::RawVector<{self.ctype(found.dtype)}, {found.width}>"
        raise InternalError(f"no type: {found}")

    def _literal(self, value: ir.Literal) -> str:
        self.ctype(value.dtype)
        return literal(value.value, value.dtype)

    # ---- indices and tests

    def _launch_index(self, e: ir.LaunchIndex) -> str:
        return _LAUNCH[e]

    def _var(self, e: ir.Var) -> str:
        return e.name

    def _int(self, e: ir.Int) -> str:
        return str(e.value)

    def _opaque_zero(self, _: ir.OpaqueZero) -> str:
        return "tf::opaque_zero()"

    def _binary(self, e: ir.Binary) -> str:
        binds = _BINDS.get(e.op, 1)
        right = self._factor(e.right, binds + 1)
        if isinstance(e.left, ir.LaunchIndex) and isinstance(e.right, ir.Int) and binds == 1:
            right += "u"
        return f"{self._factor(e.left, binds)} {e.op} {right}"

    def _negative(self, e: ir.Negative) -> str:
        return f"-{self._factor(e.value, 3)}"

    def _unsigned_binary(self, e: ir.UnsignedBinary) -> str:
        if isinstance(e.left, ir.LaunchIndex):
            return f"{_LAUNCH[e.left]} {e.op} {self.text(e.right)}u"
        left = self.text(e.left)
        if not isinstance(e.left, ir.UnsignedBinary):
            left = f"({self._unsigned}){self._factor(e.left, 4)}"
        if isinstance(e.right, ir.Int):
            return f"{left} {e.op} {e.right.value}{self._suffix}"
        return f"{left} {e.op} ({self._unsigned}){self._factor(e.right, 4)}"

    def _min(self, e: ir.Min) -> str:
        left, right = self._factor(e.left, 2), self._factor(e.right, 2)
        return f"{left} < {right} ? {left} : {right}"

    def _clamped_add(self, e: ir.ClampedAdd) -> str:
        start, bound = self.text(e.start), self._factor(e.bound, 2)
        return f"{bound} - {start} > {e.step} ? {start} + {e.step} : {bound}"

    def _int_cast(self, e: ir.IntCast) -> str:
        return f"({e.dtype.ctype}){self._factor(e.value, 4)}"

    def _index_number(self, e: ir.IndexNumber) -> str:
        return f"(long long)({self.text(e.index)})"

    def _all(self, e: ir.And) -> str:
        text = " && ".join(map(self.text, e.tests))
        return f"({text})" if len(e.tests) > 1 else text

    def _either(self, e: ir.Or) -> str:
        return " || ".join(map(self.text, e.tests))

    def _truth(self, e: ir.BoolConst) -> str:
        return "true" if e.value else "false"

    def _select(self, e: ir.Select) -> str:
        return f"({self.text(e.test)}) ? {self._number(e.inside)} : {self._number(e.outside)}"

    # ---- memory

    def _index_text(self, index: ir.Expr) -> str:
        text = self.text(index)
        return f"({text})" if isinstance(index, ir.Select) else text

    def _element(self, e: ir.Element) -> str:
        return f"{self._factor(e.base, 4)}[{self._index_text(e.index)}]"

    def _address(self, e: ir.Address) -> str:
        return f"{self.text(e.pointer)} + {self._index_text(e.index)}"

    def _reinterpret(self, e: ir.Reinterpret) -> str:
        return f"({self.ctype(e.type)}*)({self.text(e.address)})"

    def _raw_load(self, e: ir.RawLoad) -> str:
        return f"tf::raw_load<{e.width}>({self.text(e.address)})"

    # ---- numbers

    def _number(self, e: ir.Expr) -> str:
        """Return the text of an operand, with negative literals in parentheses."""
        text = self.text(e)
        return f"({text})" if isinstance(e, ir.Literal) and text.startswith("-") else text

    def _convert(self, e: ir.Convert) -> str:
        self.ctype(e.source)
        return f"tf::cast<{self.ctype(e.dtype)}>({self.text(e.value)})"

    def _round(self, e: ir.Round) -> str:
        return f"tf::rounded<{self.ctype(e.dtype)}>({self._number(e.value)})"

    def _narrow(self, e: ir.Narrow) -> str:
        return f"tf::narrow<{self.ctype(e.dtype)}>({self._number(e.value)})"

    def _apply(self, e: ir.Apply) -> str:
        row = pointwise.lookup(e.op)
        if e.brief:
            self.headers.add("math")
            return f"tf::brief::{e.op}({', '.join(map(self._number, e.operands))})"
        if row.header:
            self.headers.add(row.header.removesuffix(".cuh"))
        return row.spelling.format(*map(self._number, e.operands))

    def _divide_by_constant(self, e: ir.DivideByConstant) -> str:
        self.headers.add("math")
        parts = (literal(part, DataType.Float) for part in (e.high, e.low))
        return f"tf::divide_by_constant({self._number(e.value)}, {', '.join(parts)})"

    def _make_complex(self, e: ir.MakeComplex) -> str:
        return f"{self.ctype(e.dtype)}{{{self.text(e.real)}, {self.text(e.imag)}}}"

    def _checked_position(self, e: ir.CheckedPosition) -> str:
        self.headers.add("gather")
        value, needed = self._number(e.value), self.text(e.needed)
        return f'tf::checked_position({value}, {e.extent}, {needed}, "{e.error}")'

    def _dynamic_register(self, e: ir.DynamicRegister) -> str:
        begin = "" if e.begin is None else f" + {self.text(e.begin)}"
        return f"tf::dynamic_register({self.text(e.array)}{begin}, {self.text(e.index)})"

    def _random_number(self, e: ir.RandomNumber) -> str:
        return random.lookup(e.op).spelling.format(
            *map(self._number, e.parameters),
            ctype=self.ctype(e.dtype),
            number=self.text(e.number),
        )

    # ---- reductions

    def _spelled(self, reducer: ir.Reducer, template: str, **texts: str) -> str:
        """Fill the types of a reduction's accumulator into a text template of its table row."""
        self.headers.add("reduce")
        element = self.ctype(reducer.element)
        position = "" if reducer.position is None else reducer.position.ctype
        return template.format(T=element, P=position, op=_functor(reducer), **texts)

    def _init_accumulator(self, e: ir.InitAccumulator) -> str:
        row, dtype = reductions.lookup(e.reducer.op), e.reducer.accumulate
        identity = row.identity(dtype)
        # `or` replaces the identity -0.0 by 0, if asked.
        start = literal(identity or 0 if e.is_zero else identity, dtype)
        return self._spelled(e.reducer, row.accumulator.start, identity=start)

    def _as_element(self, e: ir.AsElement) -> str:
        return f"({self.ctype(e.reducer.element)}){self._number(e.value)}"

    def _accumulate(self, e: ir.Accumulate) -> str:
        return self._spelled(
            e.reducer,
            reductions.lookup(e.reducer.op).accumulator.take,
            value=self.text(e.accumulator),
            element=self._number(e.element),
            position="" if e.position is None else self.text(e.position),
        )

    def _accumulate_vector(self, e: ir.AccumulateVector) -> str:
        return self._spelled(
            e.reducer,
            reductions.lookup(e.reducer.op).accumulator.vector,
            value=self.text(e.accumulator),
            elements=self.text(e.elements),
            present=self.text(e.present),
        )

    def _present(self, e: ir.Present) -> str:
        last = self.text(e.last)
        return f"({last} < {e.lanes - 1} ? ({last}) + 1 : {e.lanes})"

    def _combine(self, e: ir.Combine) -> str:
        return f"{_functor(e.reducer)}::combine({self.text(e.left)}, {self.text(e.right)})"

    def _finalize_accumulator(self, e: ir.FinalizeAccumulator) -> str:
        row = reductions.lookup(e.reducer.op)
        found = self.ctype(row.folded_dtype(e.reducer.accumulate))
        value = self.text(e.accumulator)
        return f"({found}){self._spelled(e.reducer, row.accumulator.finish, value=value)}"

    def _lane(self, e: ir.Lane) -> str:
        return f"{self.text(e.lanes)}.get({self.text(e.lane)})"

    def _warp_reduce(self, e: ir.WarpReduce) -> str:
        self.synchronises = True
        shape = f"{_functor(e.reducer)}, {e.threads}"
        return f"tf::warp_reduce<{shape}>({self.text(e.value)}, threadIdx.x % 32u)"

    def _block_reduce(self, e: ir.BlockReduce) -> str:
        self.synchronises = True
        slots = ir.Reinterpret(e.reducer, ir.add(e.slots, ir.Int(e.at)))
        arguments = ", ".join(map(self.text, (e.value, slots, *self._who(e))))
        return f"tf::{self._reduces(e)}<{_functor(e.reducer)}, {_group(e)}>({arguments})"

    def _reduces(self, e: ir.BlockReduce) -> str:
        """Return the function that reduces over the threads of a block, or of a cluster."""
        if e.blocks == 1:
            return "block_reduce"
        self.headers.add("cluster")
        return "cluster_reduce"

    def _who(self, e: ir.BlockReduce) -> tuple[ir.Expr, ...]:
        """Return a thread's index in its group and, in a cluster, the rank of its block."""
        return (e.thread,) if e.rank is None else (e.thread, e.rank)

    def _mapped_rank(self, e: ir.MappedRank) -> str:
        return f"tf::map_shared_rank({self.text(e.address)}, {self.text(e.rank)})"

    def _reduce_partials(self, e: ir.ReducePartials) -> str:
        self.synchronises = True
        shape = f"{_functor(e.reducer)}, {_shape_of_parts(e)}"
        parts, point, slots = map(self.text, (e.parts, e.point, e.slots))
        return f"tf::reduce_partials<{shape}>({parts}, {e.stride}, {point}, {slots})"

    # ---- statements

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
        function = "stream" if s.streams else "store"
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
        return str(step) if isinstance(step, int) else _LAUNCH[step]

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
        return [f"tf::grid_barrier({s.blocks}u);"]

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
            functor, slots = _functor(each.reducer), self.text(each.slots)
            if isinstance(each, ir.BlockReduce):
                name = f"{let.name}_exchange"
                place = f"{self.text(each.value)}, {slots}"
                exchange = f"tf::Exchange<{functor}, {ctype}, {each.at}>"
                found.append(f"{exchange} {name}{{{place}}};")
                function = f"tf::{self._reduces(each)}<{_group(each)}>"
                who = list(map(self.text, self._who(each)))
            else:
                name = f"{let.name}_partials"
                place = f"{self.text(each.parts)}, {slots}"
                found.append(f"auto {name} = tf::partials<{functor}>({place});")
                function = f"tf::reduce_partials<{_shape_of_parts(each)}>"
                who = [str(each.stride), self.text(each.point)]
            values.append(f"const {ctype} {let.name} = {name}.value;")
            names.append(name)
        return [*found, f"{function}({', '.join([*who, *names])});", *values]

    def _outer_block_reduce(self, s: ir.OuterBlockReduce) -> list[str]:
        self.synchronises = True
        shape = f"{_functor(s.reducer)}, {s.threads}, {s.groups}, {s.vector}"
        place = "0" if s.slots is None else self.text(s.slots)
        slots = f"({self.ctype(s.reducer)}*)({place})"
        return [f"tf::outer_block_reduce<{shape}>({s.accumulators}, {slots});"]

    def _block_scan(self, s: ir.BlockScan) -> list[str]:
        self.headers.add("scan")
        self.synchronises = self.synchronises or s.threads > 1
        ctype, place = self.ctype(s.reducer), "0" if s.slots is None else self.text(s.slots)
        arguments = f"{self.text(s.value)}, {s.running}, ({ctype}*)({place}), {self.text(s.thread)}"
        shape = f"{_functor(s.reducer)}, {s.threads}"
        return [f"const {ctype} {s.name} = tf::block_scan<{shape}>({arguments});"]

    EXPRESSIONS: ClassVar[dict[type, Callable[[CudaText, Any], str]]] = {
        ir.LaunchIndex: _launch_index,
        ir.Var: _var,
        ir.Int: _int,
        ir.OpaqueZero: _opaque_zero,
        ir.Binary: _binary,
        ir.Negative: _negative,
        ir.UnsignedBinary: _unsigned_binary,
        ir.Min: _min,
        ir.ClampedAdd: _clamped_add,
        ir.IntCast: _int_cast,
        ir.IndexNumber: _index_number,
        ir.And: _all,
        ir.Or: _either,
        ir.BoolConst: _truth,
        ir.Select: _select,
        ir.Element: _element,
        ir.Address: _address,
        ir.Reinterpret: _reinterpret,
        ir.RawLoad: _raw_load,
        ir.Literal: _literal,
        ir.Convert: _convert,
        ir.Round: _round,
        ir.Narrow: _narrow,
        ir.Apply: _apply,
        ir.DivideByConstant: _divide_by_constant,
        ir.MakeComplex: _make_complex,
        ir.CheckedPosition: _checked_position,
        ir.DynamicRegister: _dynamic_register,
        ir.RandomNumber: _random_number,
        ir.InitAccumulator: _init_accumulator,
        ir.AsElement: _as_element,
        ir.Accumulate: _accumulate,
        ir.AccumulateVector: _accumulate_vector,
        ir.Present: _present,
        ir.Combine: _combine,
        ir.FinalizeAccumulator: _finalize_accumulator,
        ir.Lane: _lane,
        ir.WarpReduce: _warp_reduce,
        ir.BlockReduce: _block_reduce,
        ir.ReducePartials: _reduce_partials,
        ir.MappedRank: _mapped_rank,
    }
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


def _shape_of_parts(e: ir.ReducePartials) -> str:
    return f"{e.threads}, {e.points}, {e.count}"


def _group(e: ir.BlockReduce) -> str:
    """Return the template arguments `threads[, groups or blocks]`: the threads of a group and, if
    there are several, the groups of a block or the blocks of a cluster.
    """
    several = max(e.groups, e.blocks)
    return f"{e.threads}, {several}" if several > 1 else f"{e.threads}"


def _functor(reducer: ir.Reducer) -> str:
    found = reductions.lookup(reducer.op).functor
    return found.replace("tf::", "tf::brief::") if reducer.brief else found
