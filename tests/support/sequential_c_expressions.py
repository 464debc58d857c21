"""Expressions of kernel IR as C: what one thread of the second printer computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tests.support import sequential_c_reducers as reducers
from tests.support.sequential_c_tables import OPERATIONS, Unprintable, ctype
from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType


class ExpressionsC:
    """Expressions of one kernel. Names that outlive the loop over the threads are arrays.

    together      blocks whose threads one loop is over
    shared_bytes  shared memory of a block
    own_shared    whether each block keeps its own to the end of the kernel
    """

    def __init__(self, kernel: ir.KernelIR, together: int, own_shared: bool) -> None:
        self._kernel = kernel
        self._together = together
        self._own_shared = own_shared
        self._shared_bytes = -(-max(kernel.shared_bytes, 1) // 16) * 16
        self._each_thread: set[str] = set()
        self._given: tuple[ir.Expr, str] | None = None
        self._reducers: dict[ir.Reducer, None] = {}

    def _of(self, e: ir.Expr) -> str:
        if type(e) not in self._TEXTS:
            raise Unprintable(f"no C for {type(e).__name__}")
        return self._TEXTS[type(e)](self, e)

    # ---- types

    def _type(self, found: ir.Type) -> str:
        match found:
            case ir.Reducer():
                self._reducers[found] = None
                return reducers.type_of(found)
            case ir.ReducerLanes():
                return f"struct {{ {self._type(found.reducer)} at[{found.lanes}]; }}"
            case ir.PairedLanes():
                return ctype(found.dtype)
            case ir.RawVector():
                return "raw_vector"
        return ctype(found)

    # ---- indices

    def _launch_index(self, e: ir.LaunchIndex) -> str:
        threads = self._kernel.threads
        if self._together == 1 or e is ir.LaunchIndex.BLOCKS:
            return f"{e.value}_"
        is_block = e is ir.LaunchIndex.BLOCK
        return f"(block_ + thread_ / {threads})" if is_block else f"(thread_ % {threads})"

    def _var(self, e: ir.Var) -> str:
        if e.name == "smem" and self._own_shared:
            return f"(smem + {self._of(ir.LaunchIndex.BLOCK)} * {self._shared_bytes})"
        return f"{e.name}[thread_]" if e.name in self._each_thread else e.name

    def _binary(self, e: ir.Binary | ir.UnsignedBinary) -> str:
        return f"({self._of(e.left)} {e.op} {self._of(e.right)})"

    def _min(self, e: ir.Min) -> str:
        left, right = self._of(e.left), self._of(e.right)
        return f"({left} < {right} ? {left} : {right})"

    def _clamped_add(self, e: ir.ClampedAdd) -> str:
        start, step, bound = map(self._of, (e.start, e.step, e.bound))
        return f"({bound} - {start} > {step} ? {start} + {step} : {bound})"

    def _mapped_rank(self, e: ir.MappedRank) -> str:
        place, rank = self._of(e.address), self._of(e.rank)
        blocks = f"{rank} - {self._of(ir.LaunchIndex.BLOCK)} % {self._kernel.cluster}"
        return f"((__typeof__({place}))((char *)({place}) + ({blocks}) * {self._shared_bytes}))"

    # ---- numbers

    def _raw_load(self, e: ir.RawLoad) -> str:
        place = self._of(e.address)
        return f"raw_load({place}, {e.width} * sizeof(*({place})))"

    def _literal(self, e: ir.Literal) -> str:
        if e.dtype is DataType.BFloat16:
            return f"narrow({reducers.number(e.value, DataType.Float)})"
        return reducers.number(e.value, e.dtype)

    def _convert(self, e: ir.Convert) -> str:
        text = self._of(e.value)
        wide = f"wide({text})" if e.source is DataType.BFloat16 else f"({text})"
        ctype(e.source)
        if e.dtype is DataType.Bool:
            return f"({wide} != 0)"
        return self._narrowed(wide, e.dtype) if _is_small(e.dtype) else f"({ctype(e.dtype)}){wide}"

    def _narrowed(self, text: str, dtype: DataType) -> str:
        """An fp32 number in the type that memory has for it."""
        return (
            f"narrow({text})" if dtype is DataType.BFloat16 else f"({ctype(dtype)})(float)({text})"
        )

    def _round(self, e: ir.Round) -> str:
        narrow = self._narrowed(self._of(e.value), e.dtype)
        return f"wide({narrow})" if e.dtype is DataType.BFloat16 else f"(float)({narrow})"

    def _apply(self, e: ir.Apply) -> str:
        operands = [f"({self._of(x)})" for x in e.operands]
        if e.op not in OPERATIONS:
            raise Unprintable(f"no C for {e.op}")
        return f"({OPERATIONS[e.op].format(*operands)})"

    # ---- reductions

    def _name(self, reducer: ir.Reducer) -> str:
        self._type(reducer)
        return reducers.name_of(reducer)

    def _init_accumulator(self, e: ir.InitAccumulator) -> str:
        self._type(e.reducer)
        return reducers.start(e.reducer)

    def _accumulate(self, e: ir.Accumulate) -> str:
        parts = [e.accumulator, e.element, *([] if e.position is None else [e.position])]
        return f"take_{self._name(e.reducer)}({', '.join(map(self._of, parts))})"

    def _accumulate_vector(self, e: ir.AccumulateVector) -> str:
        elements, present = self._of(e.elements), self._of(e.present)
        take = f"take_{self._name(e.reducer)}"
        loop = f"for (int i_ = 0; i_ < n_; ++i_) all_ = {take}(all_, {elements}[i_]);"
        head = f"__auto_type all_ = {self._of(e.accumulator)}; int n_ = {present};"
        return f"({{ {head} {loop} all_; }})"

    def _present(self, e: ir.Present) -> str:
        last = self._of(e.last)
        return f"({last} < {e.lanes - 1} ? {last} + 1 : {e.lanes})"

    def _combine(self, e: ir.Combine) -> str:
        return f"combine_{self._name(e.reducer)}({self._of(e.left)}, {self._of(e.right)})"

    def _finalize_accumulator(self, e: ir.FinalizeAccumulator) -> str:
        return reducers.finish(e.reducer, self._of(e.accumulator))

    def _reduce_partials(self, e: ir.ReducePartials) -> str:
        ctype_, name = self._type(e.reducer), self._name(e.reducer)
        part = f"p_[i_ * (long long){self._of(e.stride)} + {self._of(e.point)}]"
        head = f"{ctype_} *p_ = (void *)({self._of(e.parts)}), all_ = {reducers.start(e.reducer)};"
        loop = f"for (int i_ = 0; i_ < {e.count}; ++i_) all_ = combine_{name}(all_, {part});"
        return f"({{ {head} {loop} all_; }})"

    def _reduced(self, e: ir.WarpReduce | ir.BlockReduce) -> str:
        assert self._given is not None
        reduce, text = self._given
        assert reduce is e, "one reduction a statement"
        return text

    _TEXTS: ClassVar[dict[type, Callable[[Any, Any], str]]] = {
        ir.LaunchIndex: _launch_index,
        ir.Var: _var,
        ir.Int: lambda s, e: f"({e.value})" if e.value < 0 else str(e.value),
        ir.OpaqueZero: lambda s, e: "0",
        ir.Binary: _binary,
        ir.UnsignedBinary: _binary,
        ir.Negative: lambda s, e: f"(-{s._of(e.value)})",
        ir.Min: _min,
        ir.ClampedAdd: _clamped_add,
        ir.IntCast: lambda s, e: f"({ctype(e.dtype)})({s._of(e.value)})",
        ir.IndexNumber: lambda s, e: f"({e.dtype.ctype})({s._of(e.index)})",
        ir.And: lambda s, e: "(" + " && ".join(map(s._of, e.tests)) + ")",
        ir.Or: lambda s, e: "(" + " || ".join(map(s._of, e.tests)) + ")",
        ir.BoolConst: lambda s, e: str(int(e.value)),
        ir.Select: lambda s, e: f"({s._of(e.test)} ? {s._of(e.inside)} : {s._of(e.outside)})",
        ir.Element: lambda s, e: f"{s._of(e.base)}[{s._of(e.index)}]",
        ir.Address: lambda s, e: f"({s._of(e.pointer)} + {s._of(e.index)})",
        ir.Reinterpret: lambda s, e: f"(({s._type(e.type)} *)({s._of(e.address)}))",
        ir.RawLoad: _raw_load,
        ir.Literal: _literal,
        ir.Convert: _convert,
        ir.Round: _round,
        ir.Narrow: lambda s, e: s._narrowed(s._of(e.value), e.dtype),
        ir.Apply: _apply,
        ir.DivideByConstant: lambda s, e: (
            f"({{ float x_ = {s._of(e.value)}; fmaf(x_, {s._of(e.high)}, x_ * {s._of(e.low)}); }})"
        ),
        ir.CheckedPosition: lambda s, e: f"checked_position({s._of(e.value)}, {s._of(e.extent)})",
        ir.AsElement: lambda s, e: f"({reducers.element(e.reducer)})({s._of(e.value)})",
        ir.InitAccumulator: _init_accumulator,
        ir.Accumulate: _accumulate,
        ir.AccumulateVector: _accumulate_vector,
        ir.Present: _present,
        ir.Combine: _combine,
        ir.ReducePartials: _reduce_partials,
        ir.FinalizeAccumulator: _finalize_accumulator,
        ir.Lane: lambda s, e: f"{s._of(e.lanes)}.at[{s._of(e.lane)}]",
        ir.WarpReduce: _reduced,
        ir.BlockReduce: _reduced,
        ir.MappedRank: _mapped_rank,
    }


def _is_small(dtype: DataType) -> bool:
    return dtype in (DataType.BFloat16, DataType.Half)
