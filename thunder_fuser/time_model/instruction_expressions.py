"""Expressions of kernel IR as values in registers and the instructions that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_memory import MemoryMix, Place, Value
from thunder_fuser.time_model.instruction_values import (
    SAMPLED_WARPS,
    Form,
    Number,
    Sample,
    scattered_warps,
)
from thunder_fuser.time_model.pipes import Mix

CLUSTER_BARRIERS = 10
"""Cost of a cluster barrier, in block barriers, stores to other blocks' shared memory before it
included: some 400 clocks, according to published measurements of sm_90.
"""


class ExpressionMix(MemoryMix):
    """Counts the instructions of the expressions of one kernel."""

    # ---- expressions: indices and tests

    def expr(self, e: ir.Expr) -> Any:
        return self.EXPRESSIONS[type(e)](self, e)

    def _launch_index(self, e: ir.LaunchIndex) -> Value:
        return Form(0, ((self._launch[e], 1),))

    def _var(self, e: ir.Var) -> Any:
        if e.name in self._memory:
            return Place(e.name, Form(0), 1)
        return self.environment.get(e.name) or self.values.opaque()

    def _int(self, e: ir.Int) -> Value:
        return Form(e.value)

    def _opaque_zero(self, _: ir.OpaqueZero) -> Value:
        return Form(0)

    def _binary(self, e: ir.Binary | ir.UnsignedBinary) -> Value:
        left, right = self.form(e.left), self.form(e.right)
        if e.op in ("+", "-"):
            return left.plus(right if e.op == "+" else right.times(-1))
        if e.op == "*" and not (left.terms and right.terms):
            return right.times(left.const) if right.terms else left.times(right.const)
        function = _OPERATORS[e.op]
        if not (left.terms or right.terms):
            return Form(int(function(left.const, right.const)))

        def sample() -> Sample | None:
            a, b = left.values(), right.values()
            return None if a is None or b is None else tuple(map(int, map(function, a, b)))

        registers = [r for r in map(self.values.register, (left, right)) if r is not None]
        found = self.values.number(
            (e.op, left, right), _index_mix(e, right), registers, sample=sample
        )
        is_test = e.op in ("<", "<=", ">", ">=", "==", "!=")
        return found if is_test else Form(0, ((found, 1),))

    def _negative(self, e: ir.Negative) -> Value:
        return self.form(e.value).times(-1)

    def _min(self, e: ir.Min) -> Value:
        return self._chosen(("min",), self.form(e.left), self.form(e.right))

    def _clamped_add(self, e: ir.ClampedAdd) -> Value:
        start = self.form(e.start)
        return self._chosen(("advanced",), start.plus(Form(e.step)), self.form(e.bound))

    def _chosen(self, key: tuple[str, ...], left: Form, right: Form) -> Form:
        if not (left.terms or right.terms):
            return Form(min(left.const, right.const))

        def sample() -> Sample | None:
            a, b = left.values(), right.values()
            return None if a is None or b is None else tuple(map(min, a, b))

        registers = [r for r in map(self.values.register, (left, right)) if r is not None]
        found = self.values.number((*key, left, right), table.mix(0, 2), registers, sample=sample)
        return Form(0, ((found, 1),))

    def _same(self, e: Any) -> Any:
        return self.expr(e.value)

    def _index_number(self, e: ir.IndexNumber) -> Value:
        return self._apply_to(("number",), table.mix(0, 1), [self.expr(e.index)])

    def _tests(self, e: ir.And | ir.Or) -> Value:
        found = [self.register(self.expr(t)) for t in e.tests]
        word = "all" if isinstance(e, ir.And) else "either"
        join = all_of if isinstance(e, ir.And) else any_of

        def sample() -> Sample | None:
            return join([t.values() for t in found], len(found))

        return self.values.number((word, *found), Mix(), found, sample=sample)

    def _truth(self, e: ir.BoolConst) -> Value:
        found = self.values.constant()
        found.known = (int(e.value),) * (SAMPLED_WARPS * WARP_SIZE)
        return found

    def _select(self, e: ir.Select) -> Value:
        parts = [self.expr(x) for x in (e.test, e.inside, e.outside)]
        test, inside, outside = parts
        if not (isinstance(inside, Form) and isinstance(outside, Form)):
            if _is_negative(outside, inside) or _is_negative(inside, outside):
                # A select between a value and its negation changes a sign bit: an operand modifier.
                return self._apply_to(("sign",), Mix(), parts[:2], is_sign=True)
            return self._apply_to(("select",), table.mix(0, 1), parts)

        def sample() -> Sample | None:
            found = [test.values(), inside.values(), outside.values()]
            known = [s for s in found if s is not None]
            if len(known) < len(found):
                return None
            return tuple(a if t else b for t, a, b in zip(*known, strict=True))

        registers = [self.register(p) for p in parts]
        key = ("select", test, inside, outside)
        found = self.values.number(key, table.mix(0, 1), registers, sample=sample)
        return Form(0, ((found, 1),))

    # ---- expressions: memory

    def _element(self, e: ir.Element) -> Any:
        base, index = self.path(e)
        found = self.environment.get(base)
        if isinstance(found, dict):
            at = tuple(f.const for f in index)
            if any(f.terms for f in index) or at not in found:
                parts = [v for v in found.values() if isinstance(v, Number)]
                if any(f.terms for f in index):
                    return self._apply_to(("chosen", *index), table.mix(0, 1), parts)
                deeper = {k[len(at) :]: v for k, v in found.items() if k[: len(at)] == at}
                return deeper or self.values.constant()
            return found[at]
        return self.load(ir.Address(e.base, e.index), 1, self.dtype(e))(0)

    def _address(self, e: ir.Address) -> Any:
        base = self.expr(e.pointer)
        index = self.form(e.index)
        if isinstance(base, Place):
            return Place(base.tensor, base.offset.plus(index.times(base.step)), base.step)
        return Place("", index, 1)

    def _reinterpret(self, e: ir.Reinterpret) -> Any:
        return self.expr(e.address)

    def _raw_load(self, e: ir.RawLoad) -> Any:
        return self.load(e.address, e.width, self.dtype(e.address))(0)

    # ---- expressions: numbers

    def _literal(self, e: ir.Literal) -> Value:
        return self.values.literal(repr(e))

    def _convert(self, e: ir.Convert) -> Value:
        mixed = table.of_conversion(e.source, e.dtype, self._arch)
        widens = e.dtype.itemsize > e.source.itemsize
        key = ("cast", e.source, e.dtype)
        return self._apply_to(key, mixed, [self.expr(e.value)], widens=widens)

    def _round(self, e: ir.Round) -> Value:
        return self._apply_to(("round", e.dtype), table.ROUND, [self.expr(e.value)])

    def _narrow(self, e: ir.Narrow) -> Value:
        return self._apply_to(("narrow", e.dtype), table.NARROW, [self.expr(e.value)])

    def _apply(self, e: ir.Apply) -> Value:
        operands = [self.expr(x) for x in e.operands]
        dtype = self._type_of(e.operands[-1])
        mixed = table.BRIEF[e.op] if e.brief else table.of_operation(e.op, dtype)
        if e.op in ("div", "truediv") and _is_power_of_two(e.operands[1]):
            mixed = table.of_operation("mul", dtype)
        return self._apply_to(
            (e.op, dtype, e.brief),
            mixed,
            operands,
            is_sum=e.op in ("add", "sub") and dtype.is_floating,
            is_product=e.op == "mul" and dtype.is_floating,
            is_sign=e.op == "neg" and dtype.is_floating,
        )

    def _apply_to(
        self,
        key: tuple[Any, ...],
        mixed: Mix,
        operands: Sequence[Any],
        *,
        is_sum: bool = False,
        is_product: bool = False,
        is_sign: bool = False,
        widens: bool = False,
    ) -> Number:
        registers = [self.register(o) for o in operands]
        if registers and all(r.constant for r in registers):
            return self.values.constant()
        return self.values.number(
            (*key, *registers),
            mixed,
            registers,
            is_sum=is_sum,
            is_product=is_product,
            is_sign=is_sign,
            widens=widens,
        )

    def _divide_by_constant(self, e: ir.DivideByConstant) -> Value:
        return self._apply_to(("div by", e.high), table.mix(2), [self.expr(e.value)])

    def _make_complex(self, e: ir.MakeComplex) -> Value:
        return self._apply_to(("complex",), Mix(), [self.expr(e.real), self.expr(e.imag)])

    def _checked_position(self, e: ir.CheckedPosition) -> Value:
        operands = [self.register(self.expr(x)) for x in (e.value, e.needed)]

        def sample() -> Sample | None:
            return scattered_warps(e.extent) if operands[0].is_uniform else None

        key = ("position", e.extent, *operands)
        found = self.values.number(key, table.mix(0, 3, 0, 1), operands, sample=sample)
        return Form(0, ((found, 1),))

    def _dynamic_register(self, e: ir.DynamicRegister) -> Value:
        array = self.expr(e.array)
        parts = list(array.values()) if isinstance(array, dict) else [array]
        mixed = table.mix(0, 2.0 * len(parts))
        return self._apply_to(("selected",), mixed, [*parts, self.expr(e.index)])

    def _random_number(self, e: ir.RandomNumber) -> Value:
        operands = [self.expr(x) for x in (*e.parameters, e.number)]
        return self._apply_to((e.op,), table.NUMBER[e.op], operands)

    # ---- expressions: reductions

    def _init_accumulator(self, e: ir.InitAccumulator) -> Value:
        return self._nothing_of(e.reducer)

    def _nothing_of(self, reducer: ir.Reducer) -> Number:
        return self.values.literal(f"start of {reducer}")

    def _as_element(self, e: ir.AsElement) -> Value:
        return self.register(self.expr(e.value))

    def _accumulate(self, e: ir.Accumulate) -> Value:
        operands = [self.expr(e.accumulator), self.expr(e.element)]
        if operands[0] is self._nothing_of(e.reducer) and e.reducer.op == "sum":
            return self.register(operands[1])
        if e.position is not None:
            operands.append(self.expr(e.position))
        mixed = table.of_take(e.reducer.op, e.reducer.accumulate)
        is_sum = e.reducer.op == "sum" and e.reducer.accumulate.is_floating
        return self._apply_to(("take", e.reducer), mixed, operands, is_sum=is_sum)

    def _accumulate_vector(self, e: ir.AccumulateVector) -> Value:
        elements = self.expr(e.elements)
        parts = list(elements.values()) if isinstance(elements, dict) else [elements]
        op = f"brief {e.reducer.op}" if e.reducer.brief else e.reducer.op
        mixed = table.of_vector(op, e.reducer.accumulate, len(parts))
        operands = [self.expr(e.accumulator), *parts]
        return self._apply_to(("take vector", e.reducer), mixed, operands)

    def _present(self, e: ir.Present) -> Value:
        return self.form(e.last)

    def _combine(self, e: ir.Combine) -> Value:
        operands = [self.expr(e.left), self.expr(e.right)]
        mixed = table.of_combine(e.reducer.op, e.reducer.accumulate)
        is_sum = e.reducer.op == "sum" and e.reducer.accumulate.is_floating
        return self._apply_to(("combine", e.reducer), mixed, operands, is_sum=is_sum)

    def _finalize_accumulator(self, e: ir.FinalizeAccumulator) -> Value:
        mixed = table.mix(2) if words(e.reducer) > 1 else Mix()
        return self._apply_to(("finish", e.reducer), mixed, [self.expr(e.accumulator)])

    def _lane(self, e: ir.Lane) -> Value:
        found: Value = self.expr(ir.Element(e.lanes, e.lane))
        return found

    def _warp_reduce(self, e: ir.WarpReduce) -> Value:
        steps = int(math.log2(max(e.threads, 1)))
        self.values.here.exchanges += steps
        mixed = exchanges(e.reducer, steps)
        return self._effect_of(mixed, [self.expr(e.value)])

    def _block_reduce(self, e: ir.BlockReduce) -> Value:
        warps = e.threads // WARP_SIZE * e.blocks
        steps = 5 + (math.ceil(math.log2(min(warps, WARP_SIZE))) if warps > 1 else 0)
        mixed = exchanges(e.reducer, steps)
        for _ in range(warps // WARP_SIZE - 1):
            mixed.update(table.lsu(words(e.reducer)))
            mixed.update(table.of_combine(e.reducer.op, e.reducer.accumulate))
        self.values.here.exchanges += steps
        if e.blocks > 1:
            self.values.here.barriers += CLUSTER_BARRIERS - 1
            # Addresses in other blocks' memory, and two halves of a barrier.
            mixed.update(table.mix(8, 4, 0, 12))
        if warps > 1:
            self.values.here.barriers += 1
            if e.groups > 1:
                self.values.here.apart += 1
                self.values.here.groups = e.groups
            mixed.update(table.lsu(2 * words(e.reducer)))
            mixed.update(table.mix(0, 3, 0, 2))
        return self._effect_of(mixed, [self.expr(e.value)])

    def half_of_lanes(self, e: ir.Expr) -> Value:
        """Count what a second reduction adds when each half of a warp's lanes does one of the two:
        selecting which one a lane holds, and a final shuffle.
        """
        assert isinstance(e, ir.BlockReduce)
        mixed = Mix(table.mix(2, 4 * words(e.reducer) + 4))
        mixed.update(table.lsu(words(e.reducer)))
        self.values.here.exchanges += 1
        return self._effect_of(mixed, [self.expr(e.value)])

    def _mapped_rank(self, e: ir.MappedRank) -> Any:
        return self.expr(e.address)

    def _reduce_partials(self, e: ir.ReducePartials) -> Value:
        groups = max(1, e.threads // e.points)
        rounds = -(-e.count // groups)
        steps = math.ceil(math.log2(groups)) if groups > 1 else 0
        each = words(e.reducer)
        mixed = Mix()
        for _ in range(rounds + steps):
            mixed.update(table.of_combine(e.reducer.op, e.reducer.accumulate))
        mixed.update(table.lsu((rounds + 2 * steps) * each))
        mixed.update(table.mix(2 * rounds, 2.0 * rounds))
        self.values.here.barriers += 2
        return self._effect_of(mixed, [self.expr(e.point)])

    def _effect_of(self, mixed: Mix, operands: Sequence[Any]) -> Number:
        """Count a collective operation: neither eliminated as a common subexpression nor dead."""
        self.values.effect(mixed, [self.register(o) for o in operands])
        return self.values.opaque()

    # ---- types

    def _type_of(self, e: ir.Expr) -> DataType:
        """Return the dtype of a value."""
        match e:
            case ir.Literal() | ir.Convert():
                return e.dtype
            case ir.Var() | ir.Element():
                return self.dtype(e)
            case ir.Apply():
                return self._type_of(e.operands[-1])
            case ir.Select():
                return self._type_of(e.inside)
        return DataType.Float

    EXPRESSIONS: ClassVar[dict[type, Callable[[ExpressionMix, Any], Any]]] = {
        ir.LaunchIndex: _launch_index,
        ir.Var: _var,
        ir.Int: _int,
        ir.OpaqueZero: _opaque_zero,
        ir.Binary: _binary,
        ir.Negative: _negative,
        ir.UnsignedBinary: _binary,
        ir.Min: _min,
        ir.ClampedAdd: _clamped_add,
        ir.IntCast: _same,
        ir.IndexNumber: _index_number,
        ir.And: _tests,
        ir.Or: _tests,
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
        ir.MappedRank: _mapped_rank,
        ir.ReducePartials: _reduce_partials,
    }


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _index_mix(e: ir.Binary | ir.UnsignedBinary, right: Form) -> Mix:
    """Return the instructions of index arithmetic: shifts, masks, products with reciprocals."""
    if e.op not in ("/", "%"):
        return table.mix(1) if e.op == "*" else table.mix(0, 1)
    if right.const & (right.const - 1) == 0:
        return table.mix(0, 1)
    return table.mix(1, 1) if e.op == "/" else table.mix(2, 1)


def all_of(samples: Sequence[Sample | None], count: int) -> Sample | None:
    known = [s for s in samples if s is not None]
    if len(known) < count:
        return None
    return tuple(int(all(each)) for each in zip(*known, strict=True))


def any_of(samples: Sequence[Sample | None], count: int) -> Sample | None:
    known = [s for s in samples if s is not None]
    if len(known) < count:
        return None
    return tuple(int(any(each)) for each in zip(*known, strict=True))


def _is_negative(value: Value, other: Value) -> bool:
    """True if `value` is the negation of `other`."""
    return isinstance(value, Number) and value.is_sign and value.operands == (other,)


def _is_power_of_two(e: ir.Expr) -> bool:
    """True for a divisor that is a power of two: its reciprocal is exact."""
    if not isinstance(e, ir.Literal) or isinstance(e.value, complex) or not e.dtype.is_floating:
        return False
    return abs(math.frexp(e.value)[0]) == 0.5


def words(reducer: ir.Reducer) -> int:
    each = max(1, reducer.accumulate.itemsize // ir.WORD)
    return each * reductions.lookup(reducer.op).accumulator.words


def exchanges(reducer: ir.Reducer, steps: int) -> Mix:
    """Return the instructions of `steps` shuffles of an accumulator, each with a combine."""
    found = Mix()
    for _ in range(steps):
        found.update(table.lsu(words(reducer)))
        found.update(table.of_combine(reducer.op, reducer.accumulate))
    return found
