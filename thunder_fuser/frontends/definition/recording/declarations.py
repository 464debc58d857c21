"""Inputs and outputs of a definition, in nvFuser's several spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.operations.arguments import (
    flag,
    flags,
    integer,
    integers,
    sizes,
    storage,
    tensor,
    transform_program,
)
from thunder_fuser.frontends.definition.recording.descriptor import (
    compute_tensor_descriptor,
    descriptor,
    symbolic,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Extent, broadcast, iteration, replay, tensor_domain
from thunder_fuser.ir.dtypes import DataType, from_torch, of_number
from thunder_fuser.ir.fusion import Scalar, TensorView


def are_strides(contiguity: object) -> bool:
    """True if `contiguity` is a non-empty list of strides: non-negative integers, not bools."""
    return (
        isinstance(contiguity, (list, tuple))
        and len(contiguity) > 0
        and all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in contiguity)
    )


def tensor_by_strides(
    b: FusionBuilder, shape: Any, strides: Any, dtype: DataType, static_sizes: bool, is_cpu: bool
) -> TensorView:
    """A tensor input of given sizes and strides in elements; sizes become open unless static."""
    contiguity, order = compute_tensor_descriptor(shape, strides)
    known = symbolic(shape, flag("static_sizes", static_sizes))
    return tensor_by_contiguity(b, known, contiguity, dtype, is_cpu, order)


def tensor_by_contiguity(
    b: FusionBuilder,
    shape: Any,
    contiguity: Any,
    dtype: DataType,
    is_cpu: bool,
    stride_order: Any,
    expanded: Any = None,
    transforms: Sequence[tuple[Any, ...]] = (),
) -> TensorView:
    """A tensor input of given shape and contiguity: see `Recorder.define_tensor`."""
    storage("dtype", dtype)
    if shape is None:
        raise FuserTypeError("expected a shape, or sizes and strides")
    extents = [b.extent(size) for size in sizes("shape", shape)]
    if flag("is_cpu", is_cpu) and extents:
        raise FuserValueError(
            "CPU non-scalar tensor is not supported! is_cpu marks a 0-dim tensor among CUDA "
            f"tensors, got shape {shape}; leave it out, and run on CPU tensors altogether"
        )
    marks = None if expanded is None else flags("expanded", expanded)
    if transforms:
        return _transformed(b, extents, contiguity, dtype, stride_order, marks, transforms)
    d = descriptor(extents, contiguity, stride_order, marks)
    return b.tensor(
        d.sizes,
        dtype,
        expanded=d.expanded,
        allocation=d.allocation,
        contiguity=d.contiguity,
        is_cpu=is_cpu,
    )


def tensor_like(b: FusionBuilder, tensor: Any, static_sizes: bool) -> TensorView:
    """A tensor input with the sizes, strides and dtype of a torch.Tensor; else FuserTypeError."""
    if not isinstance(tensor, torch.Tensor):
        raise FuserTypeError(f"from_pytorch: expected a torch.Tensor, got {tensor!r}")
    if tensor.layout is not torch.strided:
        raise FuserTypeError(f"from_pytorch: a tensor of layout {tensor.layout} has no strides")
    is_cpu_scalar = tensor.dim() == 0 and tensor.device.type == "cpu"
    shape, strides = list(tensor.shape), list(tensor.stride())
    dtype = from_torch(tensor.dtype)
    return tensor_by_strides(b, shape, strides, dtype, static_sizes, is_cpu_scalar)


def _transformed(
    b: FusionBuilder,
    shape: Sequence[Extent],
    contiguity: Any,
    dtype: DataType,
    stride_order: Any,
    expanded: Sequence[bool] | None,
    transforms: Sequence[tuple[Any, ...]],
) -> TensorView:
    """An input whose root domain is `shape` and whose logical dimensions follow by `transforms`."""
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise FuserValueError("an input with transforms needs known sizes, not -1")
    marks = expanded or [False] * len(shape)
    root = [broadcast(n) if mark else iteration(n) for n, mark in zip(shape, marks, strict=True)]
    program = transform_program("transforms", transforms)
    logical = replay(root, program)
    seen = [dim.size for dim in logical]
    d = descriptor(seen, contiguity, stride_order, [dim.expanded is not None for dim in logical])
    domain = tensor_domain(root, program, d.allocation, d.contiguity)
    return b.adopt_input(TensorView(-1, dtype, domain), root)


def scalar(b: FusionBuilder, value: Any, dtype: DataType | None) -> Scalar:
    """A constant, a copy of a constant or size, or, for None, a scalar input."""
    if isinstance(value, Scalar):
        known = value.value if value.value is not None else b.computed_size(value)
        if known is None:
            raise FuserTypeError(f"{value} is not a constant or a size; use fd.ops.cast")
        return b.scalar(known, dtype or value.dtype)
    if value is not None:
        found = of_number(value)
        if dtype is not None and found.category > storage("dtype", dtype).category:
            raise FuserTypeError(f"the constant {value!r} does not fit {dtype!r}; convert it")
    return b.scalar(value, dtype)


def vector(b: FusionBuilder, value: Any, dtype: DataType) -> list[Scalar]:
    """The items of a list as scalars, or `value` new scalar inputs."""
    if isinstance(value, list):
        return [v if isinstance(v, Scalar) else scalar(b, v, dtype) for v in value]
    return [b.scalar(None, dtype) for _ in range(integer("size", value))]


def add_output(b: FusionBuilder, output: Any, alias_input: Any, stride_order: Any = None) -> None:
    """Add an output, an in-place update of an input, or an output of given stride order."""
    if isinstance(output, list):
        raise FuserTypeError(f"add_output: expected one tensor, got {output!r}; add each by a call")
    if isinstance(alias_input, list):
        alias_input, stride_order = None, alias_input
    if stride_order is not None:
        order = integers("stride_order", stride_order)
        output = b.stride_order(tensor("output", output), order)
    if alias_input is not None and any(u.target is alias_input for u in b.build().updates):
        raise FuserValueError(
            f"{alias_input} is updated by another output already; compute one value of both"
        )
    b.output(output, alias_input)
