"""Numbers of kernel IR as values in registers and the instructions that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_indices import IndexMix
from thunder_fuser.time_model.instruction_memory import Place, Value
from thunder_fuser.time_model.instruction_values import Form, Number, Sample, scattered_warps
from thunder_fuser.time_model.pipes import Mix


class ExpressionMix(IndexMix):
    """Counts the instructions of the numbers of one kernel."""

    # ---- memory

    def _element(self, e: ir.Element) -> Any:
        base, index = self.path(e)
        found = self.environment.get(base)
        if isinstance(found, dict):
            at = tuple(f.const for f in index)
            if any(f.terms for f in index) or at not in found:
                parts = [v for v in found.values() if isinstance(v, Number)]
                if any(f.terms for f in index):
                    return self.apply_to(("chosen", *index), table.mix(0, 1), parts)
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

    def _lane(self, e: ir.Lane) -> Value:
        found: Value = self.expr(ir.Element(e.lanes, e.lane))
        return found

    # ---- numbers

    def _literal(self, e: ir.Literal) -> Value:
        return self.values.literal(repr(e))

    def _convert(self, e: ir.Convert) -> Value:
        mixed = table.of_conversion(e.source, e.dtype, self._arch)
        widens = e.dtype.itemsize > e.source.itemsize
        key = ("cast", e.source, e.dtype)
        return self.apply_to(key, mixed, [self.expr(e.value)], widens=widens)

    def _round(self, e: ir.Round) -> Value:
        return self.apply_to(("round", e.dtype), table.ROUND, [self.expr(e.value)])

    def _narrow(self, e: ir.Narrow) -> Value:
        return self.apply_to(("narrow", e.dtype), table.NARROW, [self.expr(e.value)])

    def _apply(self, e: ir.Apply) -> Value:
        operands = [self.expr(x) for x in e.operands]
        dtype = self._type_of(e.operands[-1])
        mixed = table.BRIEF[e.op] if e.brief else table.of_operation(e.op, dtype)
        if e.op in pointwise.QUOTIENTS and _is_power_of_two(e.operands[1]):
            mixed = table.of_operation("mul", dtype)
        return self.apply_to(
            (e.op, dtype, e.brief),
            mixed,
            operands,
            is_sum=e.op in pointwise.SUMS and dtype.is_floating,
            is_product=e.op == "mul" and dtype.is_floating,
            is_sign=e.op == "neg" and dtype.is_floating,
        )

    def _divide_by_constant(self, e: ir.DivideByConstant) -> Value:
        return self.apply_to(("div by", e.high), table.mix(2), [self.expr(e.value)])

    def _make_complex(self, e: ir.MakeComplex) -> Value:
        return self.apply_to(("complex",), Mix(), [self.expr(e.real), self.expr(e.imag)])

    def _checked_position(self, e: ir.CheckedPosition) -> Value:
        operands = [self.register(self.expr(x)) for x in (e.value, e.needed)]
        extent = self.form(e.extent).const

        def sample() -> Sample | None:
            return scattered_warps(extent) if operands[0].is_uniform else None

        key = ("position", extent, *operands)
        found = self.values.number(key, table.mix(0, 3, 0, 1), operands, sample=sample)
        return Form(0, ((found, 1),))

    def _dynamic_register(self, e: ir.DynamicRegister) -> Value:
        array = self.expr(e.array)
        parts = list(array.values()) if isinstance(array, dict) else [array]
        mixed = table.mix(0, 2.0 * len(parts))
        return self.apply_to(("selected",), mixed, [*parts, self.expr(e.index)])

    def _random_number(self, e: ir.RandomNumber) -> Value:
        operands = [self.expr(x) for x in (*e.parameters, e.number)]
        return self.apply_to((e.op,), table.NUMBER[e.op], operands)

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

    EXPRESSIONS: ClassVar[Mapping[type, Callable[..., Any]]] = {
        **IndexMix.EXPRESSIONS,
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
        ir.Lane: _lane,
    }


def _is_power_of_two(e: ir.Expr) -> bool:
    """True for a divisor that is a power of two: its reciprocal is exact."""
    if not isinstance(e, ir.Literal) or isinstance(e.value, complex) or not e.dtype.is_floating:
        return False
    return abs(math.frexp(e.value)[0]) == 0.5
