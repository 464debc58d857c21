"""Operands and results of a definition's operations: handles to tensors and scalars.

A handle knows its definition, where IR values are plain data without an owner, so that users can
write `T0.size(0) * 2` and `x + 1.0`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.definition.multidevice import api as multidevice
from thunder_fuser.frontends.definition.operations.unavailable import unavailable_method
from thunder_fuser.ir import fusion as ir
from thunder_fuser.ir.domain import IterDomain, TensorDomain, shape_text
from thunder_fuser.ir.dtypes import DataType, Number

if TYPE_CHECKING:
    from thunder_fuser.frontends.definition.recording.recorder import Recorder

Operand = Union["Tensor", "Scalar", Number]


class Value:
    """A tensor or a scalar of one definition. Arithmetic on it adds operations to the fusion."""

    __slots__ = ("owner", "val")

    def __init__(self, owner: Recorder, val: ir.Val) -> None:
        self.owner = owner
        self.val = val

    def __bool__(self) -> bool:
        raise self._unknown("use fd.ops.where")

    def __float__(self) -> float:
        raise self._unknown("use fd.ops.cast")

    def __int__(self) -> int:
        raise self._unknown("use fd.ops.cast")

    def _unknown(self, remedy: str) -> FuserTypeError:
        return FuserTypeError(f"{self} has no value while the definition is written; {remedy}")

    def __getitem__(self, index: object) -> Value:
        raise FuserTypeError(
            f"{self} is not subscriptable; use fd.ops.select, fd.ops.slice or "
            "fd.ops.take_along_axis, and size(k) for a size"
        )

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], *_call: Any) -> Value:
        name = getattr(function, "__name__", str(function))
        raise FuserTypeError(
            f"torch.{name} does not take values of a definition; use the operations of fd.ops, "
            "which dir(fd.ops) lists"
        )

    def dtype(self) -> DataType:
        """The dtype of the elements."""
        return self.val.dtype

    def is_tensor(self) -> bool:
        """True for a tensor, False for a scalar."""
        return isinstance(self.val, ir.TensorView)

    def definition(self) -> ir.Expr | None:
        """The expression that computes the value; None for inputs and constants."""
        return self.owner.fusion_so_far.definitions().get(self.val)

    def uses(self) -> list[ir.Expr]:
        """The expressions so far that read the value."""
        return self.owner.fusion_so_far.uses().get(self.val, [])

    def __getattr__(self, name: str) -> Any:
        found = unavailable_method(type(self).__name__, name)
        raise found or AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def is_symbolic(self) -> bool:
        """True unless the value is a constant of the definition."""
        return not (isinstance(self.val, ir.Scalar) and self.val.is_constant)


class Tensor(Value):
    """A tensor of a definition."""

    __slots__ = ()
    val: ir.TensorView

    def set_device_mesh(self, mesh: multidevice.DeviceMesh) -> None:
        """Place the tensor on a mesh: replicated, until an axis of its loop domain is parallelised.
        It then has `outer_split`, `inner_split`, `split`, `axis(k).parallelize`: see
        multidevice/api.py. FuserTypeError for anything but a `multidevice.DeviceMesh`.
        """
        if not isinstance(mesh, multidevice.DeviceMesh):
            raise FuserTypeError(
                f"set_device_mesh: expected multidevice.DeviceMesh(torch.arange(n)), got {mesh!r}"
            )
        self.owner.loops[self.val] = multidevice.LoopDomain(self.val, mesh)

    def has_device_mesh(self) -> bool:
        """True after `set_device_mesh`."""
        return self.val in self.owner.loops

    def __getattr__(self, name: str) -> Any:
        if name in multidevice.METHODS and self.val in self.owner.loops:
            return getattr(self.owner.loops[self.val], name)
        return super().__getattr__(name)

    @property
    def ndim(self) -> int:
        """Number of logical dimensions."""
        return self.val.rank

    def size(self, dim: int) -> Scalar:
        """The size of a dimension as an Int scalar, usable in shapes and in arithmetic."""
        found: Scalar = self.owner.ops.size(self, dim)
        return found

    def shape(self) -> list[Scalar]:
        """All sizes, as Int scalars."""
        return [self.size(k) for k in range(self.ndim)]

    def num_dims(self) -> int:
        """Number of logical dimensions."""
        return self.ndim

    def domain(self) -> TensorDomain:
        """The tensor's dimensions: root, transforms to the logical ones, and memory order."""
        return self.val.domain

    def get_root_domain(self) -> list[IterDomain]:
        """The dimensions before transforms: the operand's, or an input's own."""
        return list(self.val.domain.root)

    def get_logical_domain(self) -> list[IterDomain]:
        """The dimensions that users see, after transforms."""
        return list(self.val.domain.logical)

    def has_root(self) -> bool:
        """True if the logical dimensions differ from those of the operand (the root domain)."""
        return bool(self.val.domain.transforms)

    def __repr__(self) -> str:
        return f"{self.val.name}: {self.val.dtype!r} {shape_text(self.val.domain.shape)}"


class Scalar(Value):
    """A scalar of a definition: a constant, an input, a size, or computed from those."""

    __slots__ = ()
    val: ir.Scalar

    def __floordiv__(self, other: Scalar | int) -> Scalar:
        """Floor division of sizes."""
        return self.owner.divided(self, other, remainder=False)

    def __rfloordiv__(self, other: int) -> Scalar:
        return self.owner.divided(other, self, remainder=False)

    def __mod__(self, other: Scalar | int) -> Scalar:
        """Remainder of the floor division of sizes."""
        return self.owner.divided(self, other, remainder=True)

    def __rmod__(self, other: int) -> Scalar:
        return self.owner.divided(other, self, remainder=True)

    def __repr__(self) -> str:
        value = "" if self.val.value is None else f" = {self.val.value}"
        return f"{self.val.name}: {self.val.dtype!r}{value}"


_UNARY = {"__neg__": "neg", "__abs__": "abs", "__invert__": "bitwise_not"}
_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "truediv",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_COMPARISONS = {"__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge"}
"""Comparison operators. `==` and `!=` keep Python's meaning, so that lists can find values: write
fd.ops.eq.
"""


def _operator(op: str, reflected: bool = False) -> Callable[..., Any]:
    def apply(self: Value, *others: Operand) -> Any:
        operands = (*others, self) if reflected else (self, *others)
        return getattr(self.owner.ops, op)(*operands)

    return apply


for _method, _op in {**_UNARY, **_COMPARISONS}.items():
    setattr(Value, _method, _operator(_op))
for _method, _op in _BINARY.items():
    setattr(Value, f"__{_method}__", _operator(_op))
    setattr(Value, f"__r{_method}__", _operator(_op, reflected=True))

TensorView = Tensor
Val = Value
"""nvFuser's names of these classes."""
