"""Indices and tests of kernel IR as values in registers: forms where they are linear, else the
instructions that compute them, and what they are for each sampled thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_memory import MemoryMix, Place, Value
from thunder_fuser.time_model.instruction_values import SAMPLED_WARPS, Form, Number, Sample
from thunder_fuser.time_model.pipes import Mix


class IndexMix(MemoryMix):
    """Counts the instructions of the indices and tests of one kernel.

    _ranges  the range of indices that are known to have every value equally often: of blocks, of
             threads, of turns that blocks take
    """

    def __init__(self, kernel: ir.KernelIR, arch: str) -> None:
        super().__init__(kernel, arch)
        self._ranges: dict[Number, tuple[int, int]] = {}

    def expr(self, e: ir.Expr) -> Any:
        return self.EXPRESSIONS[type(e)](self, e)

    def apply_to(
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
        if e.op == "%" and left.terms == ((self._launch[ir.LaunchIndex.BLOCK], 1),):
            self._ranges.setdefault(found, (0, right.const))
        is_test = e.op in ("<", "<=", ">", ">=", "==", "!=")
        return found if is_test else Form(0, ((found, 1),))

    def _negative(self, e: ir.Negative) -> Value:
        return self.form(e.value).times(-1)

    def _min(self, e: ir.Min) -> Value:
        return self._chosen(("min",), self.form(e.left), self.form(e.right))

    def _clamped_add(self, e: ir.ClampedAdd) -> Value:
        start = self.form(e.start)
        return self._chosen(("advanced",), start.plus(self.form(e.step)), self.form(e.bound))

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
        index: Value = self.expr(e.index)
        if e.dtype is DataType.Int32:
            return index
        return self.apply_to(("number",), table.mix(0, 1), [index])

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
                return self.apply_to(("sign",), Mix(), parts[:2], is_sign=True)
            return self.apply_to(("select",), table.mix(0, 1), parts)

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

    EXPRESSIONS: ClassVar[Mapping[type, Callable[..., Any]]] = {
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
