"""CUDA C++ text of kernel IR expressions and types."""

from __future__ import annotations

from collections.abc import Callable
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
_LAUNCH = {
    ir.LaunchIndex.BLOCK: "blockIdx.x",
    ir.LaunchIndex.THREAD: "threadIdx.x",
    ir.LaunchIndex.BLOCKS: "gridDim.x",
}


class CudaExpressions:
    """Prints the expressions of one kernel, and records what they need.

    headers      stems of the csrc_templates files to include
    synchronises threads wait for each other
    """

    def __init__(self, index: DataType) -> None:
        self.headers = {"prelude", "types", "vector"}
        self.synchronises = False
        self._unsigned, self._suffix = _UNSIGNED[index]

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
            right = self._factor(e.right, 4)
            right = f"{right}u" if isinstance(e.right, ir.Int) else f"({self._unsigned}){right}"
            return f"{_LAUNCH[e.left]} {e.op} {right}"
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
        step = self._factor(e.step, 3)
        return f"{bound} - {start} > {step} ? {start} + {step} : {bound}"

    def _int_cast(self, e: ir.IntCast) -> str:
        return f"({e.dtype.ctype}){self._factor(e.value, 4)}"

    def _index_number(self, e: ir.IndexNumber) -> str:
        return f"({e.dtype.ctype})({self.text(e.index)})"

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
        first = _of_first_lane(e.index)
        if first is not None:
            # One address for all lanes: a C++ compiler that has sums of ints wrap takes their
            # elements for scattered ones, and ptxas computes fewer addresses.
            return f"({self.text(e.base)} + ({self._index_text(first)}))[{ir.LANE.name}]"
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
        high, low = self.text(e.high), self.text(e.low)
        return f"tf::divide_by_constant({self._number(e.value)}, {high}, {low})"

    def _make_complex(self, e: ir.MakeComplex) -> str:
        return f"{self.ctype(e.dtype)}{{{self.text(e.real)}, {self.text(e.imag)}}}"

    def _checked_position(self, e: ir.CheckedPosition) -> str:
        self.headers.add("gather")
        numbers = f"{self._number(e.value)}, {self.text(e.extent)}, {self.text(e.needed)}"
        return f'tf::checked_position({numbers}, "{e.error}")'

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
        return template.format(T=element, P=position, op=functor_of(reducer), **texts)

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
        return f"{functor_of(e.reducer)}::combine({self.text(e.left)}, {self.text(e.right)})"

    def _finalize_accumulator(self, e: ir.FinalizeAccumulator) -> str:
        row = reductions.lookup(e.reducer.op)
        found = self.ctype(row.folded_dtype(e.reducer.accumulate))
        value = self.text(e.accumulator)
        return f"({found}){self._spelled(e.reducer, row.accumulator.finish, value=value)}"

    def _lane(self, e: ir.Lane) -> str:
        return f"{self.text(e.lanes)}.get({self.text(e.lane)})"

    def _warp_reduce(self, e: ir.WarpReduce) -> str:
        self.synchronises = True
        shape = f"{functor_of(e.reducer)}, {e.threads}"
        return f"tf::warp_reduce<{shape}>({self.text(e.value)}, threadIdx.x % 32u)"

    def _block_reduce(self, e: ir.BlockReduce) -> str:
        self.synchronises = True
        slots = ir.Reinterpret(e.reducer, ir.add(e.slots, ir.Int(e.at)))
        arguments = ", ".join(map(self.text, (e.value, slots, *self._who(e))))
        return f"tf::{self._reduces(e)}<{functor_of(e.reducer)}, {group_of(e)}>({arguments})"

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
        shape = f"{functor_of(e.reducer)}, {shape_of_parts(e)}"
        arguments = ", ".join(map(self.text, (e.parts, e.stride, e.point, e.slots)))
        return f"tf::reduce_partials<{shape}>({arguments})"

    EXPRESSIONS: ClassVar[dict[type, Callable[[CudaExpressions, Any], str]]] = {
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


def _of_first_lane(index: ir.Expr) -> ir.Expr | None:
    """Return the index of lane 0 for one that counts lanes, as `8 * u + v + 3`; else None."""
    match index:
        case ir.Binary("+", rest, lane) | ir.Binary("+", lane, rest) if lane == ir.LANE:
            return rest
        case ir.Binary("+" | "-" as op, left, right):
            first = _of_first_lane(left)
            return None if first is None else ir.Binary(op, first, right)
    return None


def shape_of_parts(e: ir.ReducePartials) -> str:
    """Return the template arguments `threads, points, partial results of each`."""
    return f"{e.threads}, {e.points}, {e.count}"


def group_of(e: ir.BlockReduce) -> str:
    """Return the template arguments `threads[, groups or blocks]`: the threads of a group and, if
    there are several, the groups of a block or the blocks of a cluster.
    """
    several = max(e.groups, e.blocks)
    return f"{e.threads}, {several}" if several > 1 else f"{e.threads}"


def functor_of(reducer: ir.Reducer) -> str:
    """Return the device functor of a reduction; a brief one where few digits are enough."""
    found = reductions.lookup(reducer.op).functor
    return found.replace("tf::", "tf::brief::") if reducer.brief else found
