"""The operations that read at an index that data decide, with nvFuser's signatures.

Index tensors are Int or Int32 and count from 0: an index that is negative, or not below the size of
its dimension, is an error as the definition runs. On a CPU that is a FuserIndexError, and nothing
is updated in place; on a GPU the kernel traps, as torch's do.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder_fuser.definition.arguments import integer
from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView


def index_select(b: FusionBuilder, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """`arg` with the elements along `dim` that `index`, which has one dimension, lists.

    The result has `arg`'s sizes but for `dim`, where it has the index's. An index without
    dimensions counts as one of a single element.
    """
    return b.gather("index_select", arg, integer("dim", dim), index)


def take_along_axis(b: FusionBuilder, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """result[.., i, ..] = arg[.., index[.., i, ..], ..], with i at `dim`.

    `arg` and `index` have one rank and broadcast to each other in the dimensions other than `dim`.
    """
    return b.gather("take_along_axis", arg, integer("dim", dim), index)


def gather(b: FusionBuilder, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """As `take_along_axis`, but the result has the index's sizes, whose dimensions other than `dim`
    may be shorter than `arg`'s.
    """
    return b.gather("gather", arg, integer("dim", dim), index)


def embedding_fwd(
    b: FusionBuilder, input: TensorView, weight: TensorView, padding_idx: Any = None,
    max_norm: Any = None, norm_type: Any = None, scale_grad_by_freq: Any = None, sparse: Any = None,
) -> TensorView:  # fmt: skip
    """The rows of the matrix `weight` that `input`, of any rank, names: sizes (*input, columns).

    padding_idx, scale_grad_by_freq and sparse only matter to the gradient, and norm_type only
    with max_norm, which changes the weight and is refused.
    """
    if max_norm is not None:
        raise FuserValueError(
            "embedding_fwd: max_norm rescales rows of the weight in place, which is not supported; "
            "renormalise the weight before"
        )
    return b.gather("embedding_fwd", weight, 0, input)


INDEXING: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {op.__name__: op for op in (index_select, take_along_axis, gather, embedding_fwd)}
)
"""By name; each takes the builder first."""
