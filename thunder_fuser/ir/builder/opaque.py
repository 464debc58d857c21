"""The part of FusionBuilder that adds opaque calls (executed by torch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from thunder_fuser.errors import FuserError
from thunder_fuser.ir.builder.values import ValueBuilder
from thunder_fuser.ir.domain import constant_if_known, iteration, tensor_domain
from thunder_fuser.ir.fusion import OpaqueOp, TensorView, Val
from thunder_fuser.ir.tables import opaque
from thunder_fuser.ir.tables.call_shapes import Shaped
from thunder_fuser.ir.tables.opaque import Attribute


class OpaqueCall(NamedTuple):
    """Call `number`: a row of the table, its given operands, and constants, by parameter name."""

    op: str
    operands: Mapping[str, TensorView]
    attributes: Mapping[str, Attribute]
    number: int


class OpaqueBuilder(ValueBuilder):
    """Opaque calls, executed by torch: `op` is a row of `opaque.TABLE`."""

    _calls = 0

    def call(
        self, op: str, operands: Mapping[str, TensorView], attributes: Mapping[str, Attribute]
    ) -> tuple[TensorView, ...]:
        """All results of a new call with the given operands."""
        for tensor in operands.values():
            self._expect_tensor(op, tensor)
        number = self._calls
        made = self._shaped(op, operands, attributes)
        return tuple(
            self._result(OpaqueCall(op, operands, attributes, number), k, shaped)
            for k, shaped in enumerate(made)
        )

    @property
    def next_call(self) -> int:
        """The smallest unused call number."""
        return self._calls

    def result_of(self, call: OpaqueCall, result: int) -> TensorView:
        """One result of a call, as a new expression."""
        made = self._shaped(call.op, call.operands, call.attributes)
        return self._result(call, result, made[result])

    def known_call(self, expr: OpaqueOp, operands: tuple[Val, ...], out: TensorView) -> OpaqueOp:
        """The expression for the same result of the same call, with other operands."""
        tensors = tuple(v for v in operands if isinstance(v, TensorView))
        self._calls = max(self._calls, expr.call + 1)
        return replace(expr, inputs=tensors, output=out, origin=self.origin)

    def _shaped(
        self, op: str, operands: Mapping[str, TensorView], attributes: Mapping[str, Attribute]
    ) -> tuple[Shaped, ...]:
        try:
            return opaque.lookup(op).check(shapes_of(operands), attributes)
        except FuserError as error:
            error.args = (f"{op}: {error}".replace(f"{op}: {op}: ", f"{op}: "),)
            raise

    def _result(self, call: OpaqueCall, result: int, made: Shaped) -> TensorView:
        self._calls = max(self._calls, call.number + 1)
        dims = [iteration(constant_if_known(size)) for size in made.shape]
        domain = tensor_domain(dims, allocation=made.order or None)
        out = TensorView(self._id(), made.dtype, domain)
        names, tensors = tuple(call.operands), tuple(call.operands.values())
        constants, origin = tuple(call.attributes.items()), self.origin
        self._append(OpaqueOp(call.op, tensors, names, constants, result, call.number, out, origin))
        return out


def shapes_of(operands: Mapping[str, TensorView]) -> dict[str, Shaped]:
    """Shapes and dtypes of operands, as rows of the table take them."""
    return {name: Shaped(t.domain.shape, t.dtype) for name, t in operands.items()}
