"""Claims for whole calls whose decomposition is less accurate than torch's kernel, or not fusible.

The decomposition of `log_softmax` adds the maximum to the logarithm before it subtracts both, which
costs digits, and has -inf where torch has NaN; that of its gradient rounds to 16 bits four times.
The gradient of `nll_loss` has no decomposition: it would scatter at a data-dependent index, as the
decomposition of `one_hot` does. Here each output element compares its position with the index
instead.
"""

from __future__ import annotations

import math

from thunder.core.proxies import TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import FP8, data_type, refuse_symbolic
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables.indexing import INDEX_DTYPES
from thunder_fuser.segment.regions.joint_graph import Role


def _refuse_log_softmax(x: TensorProxy, dim: object, *, dtype: object = None) -> Refusal | None:
    if x.numel == 0:
        return Refusal("empty", f"the input of sizes {list(x.shape)} has no elements: torch has it")
    return _refuse(x, dim, dtype or x.dtype)


def _refuse_part(x: TensorProxy, *rest: object, dtype: object) -> Refusal | None:
    return _refuse_log_softmax(x, None, dtype=dtype)


def _refuse_backward(
    g: TensorProxy, output: TensorProxy, dim: object, dtype: object
) -> Refusal | None:
    return _refuse(g, dim, dtype) or _refuse(output, dim, dtype)


def _refuse(x: TensorProxy, dim: object, dtype: object) -> Refusal | None:
    if refused := refuse_symbolic(dim):
        return refused
    try:
        types = (data_type(x.dtype), data_type(dtype))
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if not all(d.is_floating and d not in FP8 for d in types):
        return Refusal(
            "dtype",
            f"from {types[0].name} to {types[1].name} it is decomposed: expected floating-point "
            "types of 16 bits or more; cast the input",
        )
    return None


def _largest(b: FusionBuilder, x: TensorView, dim: int, *, dtype: object = None) -> Val:
    return b.reduce("max", _typed(b, x, dtype), [dim], keepdim=True)


def _logarithm(
    b: FusionBuilder, x: TensorView, largest: TensorView, dim: int, *, dtype: object = None
) -> Val:
    shifted = b.pointwise("sub", _typed(b, x, dtype), largest)
    total = b.reduce("sum", _tensor(b.pointwise("exp", shifted)), [dim], keepdim=True)
    return b.pointwise("log", total)


def _shifted(
    b: FusionBuilder,
    x: TensorView,
    largest: TensorView,
    logarithm: TensorView,
    *,
    dtype: object = None,
) -> Val:
    shifted = b.pointwise("sub", _typed(b, x, dtype), largest)
    return b.pointwise("sub", shifted, logarithm)


def _log_softmax(b: FusionBuilder, x: TensorView, dim: int, *, dtype: object = None) -> Val:
    largest = _tensor(_largest(b, x, dim, dtype=dtype))
    logarithm = _tensor(_logarithm(b, x, largest, dim, dtype=dtype))
    return _shifted(b, x, largest, logarithm, dtype=dtype)


def _typed(b: FusionBuilder, x: TensorView, dtype: object) -> TensorView:
    return _wide(b, x, x.dtype if dtype is None else data_type(dtype))


def _backward(b: FusionBuilder, g: TensorView, output: TensorView, dim: int, dtype: object) -> Val:
    gradient, result = (_wide(b, t, t.dtype) for t in (g, output))
    total = b.reduce("sum", gradient, [dim], keepdim=True)
    return b.pointwise("sub", gradient, b.pointwise("mul", b.pointwise("exp", result), total))


def _refuse_nll(
    g: TensorProxy,
    x: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None,
    reduction: str,
    ignore_index: object,
    total_weight: object,
) -> Refusal | None:
    if not isinstance(ignore_index, int) or reduction not in ("none", "sum", "mean"):
        return Refusal(
            "number",
            f"ignore_index={ignore_index}, reduction={reduction!r}: expected an int, and 'none', "
            "'sum' or 'mean'",
        )
    if x.numel == 0:
        return Refusal("empty", f"the input of sizes {list(x.shape)} has no elements: torch has it")
    if not data_type(g.dtype).is_floating or not data_type(target.dtype).is_integral:
        return Refusal(
            "dtype",
            f"the gradient is {g.dtype} and the target {target.dtype}: expected a floating-point "
            "gradient and an integral target; cast them",
        )
    return None


def _nll_loss_backward(
    b: FusionBuilder,
    g: TensorView,
    x: TensorProxy,
    target: TensorView,
    weight: TensorView | None,
    reduction: str,
    ignore_index: int,
    total_weight: TensorView | None,
) -> Val:
    shape, rank = list(x.shape), len(x.shape)
    axis = 1 if rank > 1 else 0
    others = [k for k in range(rank) if k != axis]
    wide = compute_dtype(g.dtype)
    scale = b.pointwise("neg", _wide(b, g, g.dtype))
    if reduction == "mean" and total_weight is not None:
        scale = b.pointwise("div", scale, b.cast(total_weight, wide))
    if reduction == "none":
        scale = b.broadcast_in_dim(_tensor(scale), shape, others)
    if weight is not None:
        scale = b.pointwise("mul", scale, b.broadcast_in_dim(_wide(b, weight, wide), shape, [axis]))
    # Index -1 if no class is chosen, so that one comparison suffices; 32 bits if they hold it.
    wide_index = b.cast_tensor(target, DataType.Int)
    counts = b.pointwise("ne", wide_index, ignore_index)
    for op, bound in (("ge", 0), ("lt", shape[axis])):
        counts = b.pointwise("bitwise_and", counts, b.pointwise(op, wide_index, bound))
    index = DataType.Int32 if shape[axis] < 2**31 else DataType.Int
    chosen = b.cast(b.pointwise("where", counts, wide_index, -1), index)
    classes = b.broadcast_in_dim(b.iota(shape[axis], 0, 1, index), shape, [axis])
    hit = b.pointwise("eq", classes, b.broadcast_in_dim(_tensor(chosen), shape, others))
    return b.pointwise("where", hit, scale, 0.0)


def _refuse_nll_loss(
    x: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    ignore_index: object = None,
    reduction: str = "mean",
) -> Refusal | None:
    if x.ndim == 0 or target.ndim != x.ndim - 1:
        return Refusal(
            "shape",
            f"the target has {target.ndim} dimensions and the input {x.ndim}: expected one less, "
            "classes and no probabilities",
        )
    ignored = -1 if ignore_index is None else ignore_index
    if not data_type(x.dtype).is_floating or data_type(x.dtype) in FP8:
        return Refusal(
            "dtype",
            f"on {x.dtype} it is decomposed: expected a floating-point type of 16 bits or more; "
            "cast the input",
        )
    if weight is not None and data_type(weight.dtype) is not data_type(x.dtype):
        return Refusal(
            "dtype",
            f"the weight is {weight.dtype} and the input {x.dtype}: expected one type; cast one",
        )
    if refused := _refuse_indices(target):
        return refused
    return _refuse_nll(x, x, target, weight, reduction, ignored, None)


def _nll_loss(
    b: FusionBuilder,
    x: TensorView,
    target: TensorView,
    weight: TensorView | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Val:
    """A class out of range is read like any index out of range; an ignored class is not read."""
    axis = 1 if x.rank > 1 else 0
    ignored = -1 if ignore_index is None else ignore_index
    counts = _tensor(b.pointwise("ne", target, ignored))
    may_exist = 0 <= ignored < x.sizes[axis]
    classes = target if may_exist else _tensor(b.pointwise("where", counts, target, 0))
    shape = [1 if k == axis else size for k, size in enumerate(x.sizes)]
    kept = [k for k in range(x.rank) if k != axis]
    chosen = b.gather("gather", x, axis, b.broadcast_in_dim(classes, shape, kept))
    loss = b.pointwise("neg", _wide(b, b.squeeze(chosen, [axis]), x.dtype))
    total: Val = counts
    if weight is not None:
        flat = b.gather("index_select", weight, 0, b.reshape(classes, [math.prod(classes.sizes)]))
        weights = _wide(b, b.reshape(flat, classes.sizes), x.dtype)
        loss = b.pointwise("mul", loss, weights)
        total = b.pointwise("where", counts, weights, 0.0)
    losses = _tensor(b.pointwise("where", counts, loss, 0.0))
    if reduction == "none":
        return losses
    axes = list(range(losses.rank))
    summed = b.reduce("sum", losses, axes)
    if reduction == "sum":
        return summed
    return b.pointwise("div", summed, b.cast(b.reduce("sum", _tensor(total), axes), summed.dtype))


def _refuse_one_hot(index: TensorProxy, num_classes: object) -> Refusal | None:
    if type(num_classes) is not int:
        return Refusal(
            "symbolic-shape",
            "the number of classes is unknown until the function runs; pass num_classes",
        )
    return _refuse_indices(index)


def _refuse_indices(index: TensorProxy) -> Refusal | None:
    if data_type(index.dtype) in INDEX_DTYPES:
        return None
    return Refusal(
        "dtype", f"the indices are {index.dtype}: expected int64 or int32; cast them with .long()"
    )


def _one_hot(b: FusionBuilder, index: TensorView, num_classes: int) -> Val:
    """Compare each class with the index. The index is read by a gather from the classes, so that a
    class out of range is an error.
    """
    classes = b.iota(num_classes, 0, 1, DataType.Int)
    flat = b.reshape(index, [math.prod(index.sizes)])
    chosen = b.reshape(b.gather("index_select", classes, 0, flat), index.sizes)
    shape, rank = [*index.sizes, num_classes], index.rank
    every = b.broadcast_in_dim(classes, shape, [rank])
    hit = b.pointwise("eq", every, b.broadcast_in_dim(chosen, shape, list(range(rank))))
    return b.cast(hit, DataType.Int)


def _wide(b: FusionBuilder, x: TensorView, dtype: DataType) -> TensorView:
    """Cast `x` to the computation dtype of `dtype`."""
    wide = compute_dtype(dtype)
    return x if x.dtype is wide else b.cast_tensor(x, wide)


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value


_COST = 20
"""Cost per element of two reductions, an exponential and the arithmetic around them, in fp32
instructions."""

CLAIMS = {
    "torch.log_softmax": Claim(Role.REDUCE, _refuse_log_softmax, _log_softmax, _COST),
    "log_softmax_largest": Claim(Role.REDUCE, _refuse_part, _largest),
    "log_softmax_logarithm": Claim(Role.REDUCE, _refuse_part, _logarithm, _COST // 2),
    "log_softmax_shifted": Claim(Role.COMPUTE, _refuse_part, _shifted, 2),
    "log_softmax_backward": Claim(Role.REDUCE, _refuse_backward, _backward, _COST),
    "torch.nn.functional.nll_loss": Claim(Role.REDUCE, _refuse_nll_loss, _nll_loss),
    "torch.nn.functional.one_hot": Claim(Role.JOIN, _refuse_one_hot, _one_hot),
    "nll_loss_backward": Claim(Role.JOIN, _refuse_nll, _nll_loss_backward, unread=(1,)),
}
