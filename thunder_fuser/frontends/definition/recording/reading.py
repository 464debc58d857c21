"""Parser of printed definitions: rebuilds a Fusion call by call. No text is executed, so that
untrusted files can do no harm.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.definition.recording.recorder import Recorder
from thunder_fuser.frontends.definition.recording.values import Tensor
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion

_METHODS = frozenset({"define_tensor", "define_scalar", "define_vector", "add_output"})
_NUMBERS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {"float": float, "complex": complex}
)
_ARITHMETIC: MappingProxyType[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


def read_definition(text: str) -> Fusion:
    """The fusion that `def nvfuser_fusion(fd)` in this text defines; else FuserValueError."""
    try:
        (function,) = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise FuserValueError(f"not a printed definition: {error}") from error
    if not isinstance(function, ast.FunctionDef) or function.name != "nvfuser_fusion":
        raise FuserValueError("not a printed definition: expected def nvfuser_fusion(fd)")
    reader = _Reader()
    for statement in function.body:
        reader.run(statement)
    return reader.recorder.fusion_so_far


class _Reader:
    def __init__(self) -> None:
        self.recorder = Recorder()
        self._names: dict[str, Any] = {}

    def run(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                self._names[name] = self._value(value)
            case ast.Assign([ast.Tuple(names)], value):
                found = self._value(value)
                for target, part in zip(names, found, strict=True):
                    self._names[ast.unparse(target)] = part
            case ast.Expr(ast.Call() as call):
                self._value(call)
            case ast.Pass():
                pass
            case _:
                raise _foreign(statement)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if name in self._names:
                return self._names[name]
            case ast.List(items) | ast.Tuple(items):
                values = [self._value(item) for item in items]
                return values if isinstance(node, ast.List) else tuple(values)
            case ast.UnaryOp(ast.USub(), operand):
                return -self._value(operand)
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._value(left), self._value(right))
            case ast.Attribute(ast.Name("DataType"), name) if name in DataType.__members__:
                return DataType[name]
            case ast.Call(function, arguments, keywords):
                called = self._callable(function)
                named = {k.arg: self._value(k.value) for k in keywords if k.arg}
                return called(*map(self._value, arguments), **named)
            case _:
                raise _foreign(node)

    def _callable(self, node: ast.expr) -> Callable[..., Any]:
        match node:
            case ast.Name(name) if name in _NUMBERS:
                return _NUMBERS[name]
            case ast.Attribute(ast.Name("fd"), name) if name in _METHODS:
                return getattr(self.recorder, name)  # type: ignore[no-any-return]
            case ast.Attribute(ast.Attribute(ast.Name("fd"), "ops"), name) if name[0] != "_":
                return getattr(self.recorder.ops, name)  # type: ignore[no-any-return]
            case ast.Attribute(ast.Name(name), "size"):
                tensor = self._names.get(name)
                if isinstance(tensor, Tensor):
                    return tensor.size
        raise _foreign(node)


def _foreign(node: ast.AST) -> FuserValueError:
    return FuserValueError(f"not a printed definition: it has {ast.unparse(node)!r}")
