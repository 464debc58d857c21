"""Claims for reduction prims: each is a row of `ir/tables/reductions.py`, or composed of them.

Thunder's calls convert 16-bit tensors to fp32 and integers to int64 before the prim, and back
after it. A prim that is given such a tensor itself accumulates in the same types and rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import (
    FP8,
    NARROW_INTEGERS,
    data_type,
    refuse_symbolic,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables import reductions
from thunder_fuser.segment.regions.joint_graph import Role

_FOLDS = {
    PrimIDs.SUM: "sum",
    PrimIDs.PROD: "prod",
    PrimIDs.AMAX: "max",
    PrimIDs.AMIN: "min",
}
_POSITIONS = {PrimIDs.ARGMAX: "argmax", PrimIDs.ARGMIN: "argmin"}


def _refuse_fold(op: str, x: TensorProxy, dims: Sequence[object]) -> Refusal | None:
    row, dtype = reductions.lookup(op), data_type(x.dtype)
    if refused := refuse_symbolic(*dims) or _refuse_fp8(op, dtype):
        return refused
    if row.takes_dtype and (dtype is DataType.Bool or dtype in NARROW_INTEGERS):
        return Refusal("dtype", f"{op} on {dtype.name} stays with torch; cast to int64 first")
    if not row.of_empty and 0 in map(x.shape.__getitem__, dims if x.ndim else ()):
        return Refusal("empty", f"torch raises an error for the {op} of nothing")
    try:
        row.check(dtype)
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    return None


def _refuse_position(op: str, x: TensorProxy, dim: object) -> Refusal | None:
    return _refuse_fold(op, x, range(x.ndim) if dim is None else (dim,))


def _refuse_spread(
    op: str, x: TensorProxy, dims: Sequence[object], *, correction: object
) -> Refusal | None:
    dtype = data_type(x.dtype)
    if refused := refuse_symbolic(*dims, correction) or _refuse_fp8(op, dtype):
        return refused
    if not dtype.is_floating:
        return Refusal("dtype", f"{op} on {dtype.name} stays with torch")
    return None


def _refuse_fp8(op: str, dtype: DataType) -> Refusal | None:
    if dtype in FP8:
        return Refusal("dtype", f"torch has no {op} on {dtype.name}; cast it first")
    return None


def _fold(op: str, b: FusionBuilder, x: TensorView, dims: Sequence[int]) -> Val:
    return b.reduce(op, x, dims)


def _position(op: str, b: FusionBuilder, x: TensorView, dim: int | None) -> Val:
    return b.reduce(op, x, None if dim is None else [dim])


def _var_mean(
    b: FusionBuilder, x: TensorView, dims: Sequence[int], *, correction: float
) -> tuple[TensorView, TensorView]:
    """Variance and mean in the computation dtype, rounded only at the end."""
    wide = compute_dtype(x.dtype)
    values = x if x.dtype is wide else b.cast_tensor(x, wide)
    return b.var_mean(values, dims, correction=correction)


def _var(b: FusionBuilder, x: TensorView, dims: Sequence[int], *, correction: float) -> Val:
    """Compute fp32 and bf16 in double, as torch's CPU kernel, where neither sum nor squares
    overflow. Doubles are scaled down by a power of two, which is exact except for values whose
    squares underflow.
    """
    if x.dtype is DataType.Half or not x.dtype.is_floating:
        return _var_mean(b, x, dims, correction=correction)[0]
    values, places = x, 0
    if x.dtype is DataType.Double:
        # Torch accepts dimensions -1 and 0 for a 0-dim tensor.
        count = math.prod(x.sizes[k] for k in dims if x.rank)
        places = math.ceil(math.log2(max(count, 1)))
    else:
        values = b.cast_tensor(x, DataType.Double)
    if places:
        values = _tensor(b.pointwise("mul", values, 0.5**places))
    variance, _ = b.var_mean(values, dims, correction=correction)
    return b.pointwise("mul", variance, 4.0**places) if places else variance


def _std(b: FusionBuilder, x: TensorView, dims: Sequence[int], *, correction: float) -> Val:
    return b.pointwise("sqrt", _var(b, x, dims, correction=correction))


def _cuda_var(b: FusionBuilder, x: TensorView, dims: Sequence[int], *, correction: float) -> Val:
    """Compute in the computation dtype, as torch's CUDA kernel: many GPUs run double at 1/64 of the
    rate.
    """
    return _var_mean(b, x, dims, correction=correction)[0]


def _cuda_std(b: FusionBuilder, x: TensorView, dims: Sequence[int], *, correction: float) -> Val:
    return b.pointwise("sqrt", _cuda_var(b, x, dims, correction=correction))


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value


_PASS = 4
"""Cost of reducing one element, including its share of a further pass over the row, in fp32
instructions."""


def _claim(refuse: Callable[..., Refusal | None], build: Callable[..., Val], op: str) -> Claim:
    return Claim(Role.REDUCE, partial(refuse, op), partial(build, op), _PASS)


def _spread(
    op: str,
    build: Callable[..., Val | tuple[Val, ...]],
    cuda: Callable[..., Val | tuple[Val, ...]] | None = None,
) -> Claim:
    return Claim(Role.REDUCE, partial(_refuse_spread, op), build, 2 * _PASS, cuda=cuda)


CLAIMS = {
    **{p: _claim(_refuse_fold, _fold, op) for p, op in _FOLDS.items()},
    **{p: _claim(_refuse_position, _position, op) for p, op in _POSITIONS.items()},
    PrimIDs.VAR: _spread("var", _var, _cuda_var),
    PrimIDs.VAR_MEAN: _spread("var_mean", _var_mean),
    PrimIDs.STD: _spread("std", _std, _cuda_std),
}
