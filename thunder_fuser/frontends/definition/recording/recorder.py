"""The recording half of a FusionDefinition: inputs, operations and outputs become a Fusion.

Every call goes through `record`, which turns handles into IR values and gives each expression, and
each error, the line of the user's program that caused it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.multidevice.api import LoopDomain
from thunder_fuser.frontends.definition.operations.ops import Ops
from thunder_fuser.frontends.definition.recording.declarations import (
    add_output,
    are_strides,
    scalar,
    tensor_by_contiguity,
    tensor_by_strides,
    tensor_like,
    vector,
)
from thunder_fuser.frontends.definition.recording.origin import calling_origin
from thunder_fuser.frontends.definition.recording.values import Scalar, Tensor, Value
from thunder_fuser.ir import fusion as ir
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import constant_if_known
from thunder_fuser.ir.dtypes import DataType, Number


class Recorder:
    """Builds one Fusion. Handles belong to the recorder that made them."""

    def __init__(self) -> None:
        self._builder = FusionBuilder()
        self._finished = False
        self.ops = Ops(lambda: self)
        self.loops: dict[ir.TensorView, LoopDomain] = {}
        """Loop domains of the tensors that have a device mesh."""

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, which records into a builder of its own."""
        state = {**self.__dict__, "_builder": self._builder.copied(), "loops": dict(self.loops)}
        del state["ops"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.ops = Ops(lambda: self)

    @classmethod
    def finished(cls) -> Recorder:
        """A recorder whose values can be inspected and that takes no more operations."""
        found = Recorder()
        found._finished = True
        return found

    @property
    def fusion_so_far(self) -> ir.Fusion:
        """The fusion as defined so far, as IR."""
        return self._builder.build()

    # ---- recording

    def record(
        self,
        name: str,
        build: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Return build(builder, ...) on IR values. Errors quote `name`, the user's spelling."""
        short = name.rpartition(".")[2]
        origin = calling_origin(short)
        place = f"in {name} at {origin.file}:{origin.line}"
        try:
            if self._finished:
                raise FuserError("the definition is finished: nothing can be added to it any more")
            self._builder.origin = origin
            plain = {key: self._plain(value) for key, value in kwargs.items()}
            return build(self._builder, *map(self._plain, args), **plain)
        except FuserError as error:
            error.args = (f"{error} ({place})",)
            raise
        except TypeError as error:
            mismatch = _mismatch(build, args, kwargs)
            told = f"{short}: {mismatch}" if mismatch else error
            raise FuserTypeError(f"{told} ({place})") from error

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Value):
            if value.owner is not self:
                raise FuserValueError(
                    f"{value} belongs to another FusionDefinition; define it in this one, or "
                    "execute that one and pass its result to this one's execute"
                )
            return value.val
        if isinstance(value, torch.Tensor):
            raise FuserTypeError(
                "got a torch.Tensor; make it an input with fd.from_pytorch(x) and pass it to "
                "execute, or pass a number"
            )
        return [self._plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    def handle(self, value: Any) -> Any:
        """The user-facing handle of an IR value, or handles of a list or tuple of them."""
        if isinstance(value, ir.TensorView):
            return Tensor(self, value)
        if isinstance(value, ir.Scalar):
            return Scalar(self, value)
        handles = [self.handle(v) for v in value]
        return tuple(handles) if isinstance(value, tuple) else handles

    def divided(self, a: Scalar | int, b: Scalar | int, *, remainder: bool) -> Scalar:
        """Floor division of sizes, or its remainder; FuserValueError for a divisor below 1."""

        def build(builder: FusionBuilder, x: ir.Scalar | int, y: ir.Scalar | int) -> ir.Scalar:
            numerator, divisor = builder.extent(x), builder.extent(y)
            if isinstance(divisor, int) and divisor < 1:
                raise FuserValueError(f"a divisor of sizes must be positive, got {divisor}")
            found = numerator % divisor if remainder else numerator // divisor
            return builder.scalar(constant_if_known(found), DataType.Int)

        return Scalar(self, self.record("%" if remainder else "//", build, (a, b)))

    # ---- inputs and outputs

    def define_tensor(
        self,
        shape: Sequence[Any] | int | None = None,
        contiguity: bool | Sequence[bool | None] | Sequence[int] = False,
        dtype: DataType = DataType.Float,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
        *,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        static_sizes: bool = False,
        symbolic_sizes: Sequence[int] | None = None,
        contiguous: bool | Sequence[bool | None] | None = None,
        expanded: Sequence[bool] | None = None,
        transforms: Sequence[tuple[Any, ...]] = (),
    ) -> Tensor:
        """A new tensor input, by shape and contiguity or by sizes and strides.

        shape         -1 any size, 1 a broadcast, other sizes fixed; an int: rank, all sizes open
        contiguity    per dimension in memory order (outermost first): True if dense with the next
                      inner one, None for a broadcast (size 1, or expanded with stride 0); one bool
                      for all dimensions
        is_cpu        a CPU scalar (shape []) among CUDA tensors
        stride_order  position in memory of each dimension, counted from the innermost
        sizes, strides, static_sizes   as a tensor has them; sizes other than 1 are kept if static
        symbolic_sizes, contiguous   older names of shape and contiguity
        expanded      flag per dimension: expanded (stride 0), where contiguity does not say
        transforms    domain transforms from `shape` to the logical dimensions; contiguity and
                      stride_order are then the logical dimensions'

        Raises FuserTypeError or FuserValueError for arguments that do not describe a tensor.
        """
        if strides is None and are_strides(contiguity):
            strides, contiguity = contiguity, False  # type: ignore[assignment]
        contiguity = contiguity if contiguous is None else contiguous
        if isinstance(shape, int) and not isinstance(shape, bool):
            shape = [-1] * shape
        known = next((s for s in (shape, sizes, symbolic_sizes) if s is not None), None)
        if strides is not None:
            args = (known, strides, dtype, static_sizes, is_cpu)
            return Tensor(self, self.record("fd.define_tensor", tensor_by_strides, args))
        rest = (known, contiguity, dtype, is_cpu, stride_order, expanded, transforms)
        return Tensor(self, self.record("fd.define_tensor", tensor_by_contiguity, rest))

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> Tensor:
        """A tensor input with the dtype, stride order and contiguity of `tensor` (fake tensors will
        do).

        Sizes other than 1 may differ at execution unless `static_sizes`. A 0-dim CPU tensor may go
        along with CUDA tensors. FuserTypeError for anything but a strided torch.Tensor.
        """
        made = self.record("fd.from_pytorch", lambda b: tensor_like(b, tensor, static_sizes), ())
        return Tensor(self, made)

    def define_scalar(
        self, value: Scalar | Number | DataType | None = None, dtype: DataType | None = None
    ) -> Scalar:
        """A constant, or, without a value, a scalar input of `dtype` (default Double).
        FuserTypeError for a constant that does not fit `dtype`.
        """
        if isinstance(value, DataType):
            value, dtype = None, value
        return Scalar(self, self.record("fd.define_scalar", scalar, (value, dtype)))

    def define_constant(self, value: Number, dtype: DataType | None = None) -> Scalar:
        """A constant; FuserTypeError without a value."""
        if value is None or isinstance(value, DataType):
            raise FuserTypeError(
                f"define_constant: expected a number, got {value!r}; define_scalar({value!r}) is "
                "an input"
            )
        return self.define_scalar(value, dtype)

    def define_vector(
        self, value: int | Sequence[Scalar | int], dtype: DataType = DataType.Int
    ) -> list[Scalar]:
        """`value` new scalar inputs of `dtype` if it is an int, else the scalars and numbers of the
        list as scalars.
        """
        found = self.record("fd.define_vector", vector, (value, dtype))
        return [Scalar(self, v) for v in found]

    def add_output(
        self,
        output: Tensor,
        alias_input: Tensor | Sequence[int] | None = None,
        *,
        stride_order: Sequence[int] | None = None,
    ) -> None:
        """Return `output`; with an input, write it into that input's memory instead.

        An output that updates an input is returned too if it was also added as an output itself.
        A list instead of an input, or `stride_order`, is the stride order of the output.
        FuserValueError for an input that is updated already, or that differs in dtype or sizes.
        """
        self.record("fd.add_output", add_output, (output, alias_input, stride_order))


def _mismatch(build: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """How the arguments of a call differ from the operation's parameters, or "" if they do not."""
    signature = inspect.signature(build)
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        _, *names = signature.parameters
        given = ", ".join([*map(repr, args), *(f"{name}={x!r}" for name, x in kwargs.items())])
        return f"{error}; it takes ({', '.join(names)}), got ({given})"
    return ""
