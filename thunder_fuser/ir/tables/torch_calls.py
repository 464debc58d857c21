"""The torch calls of opaque operations, with nvFuser's names and parameters where it has them.

Parameters annotated as tensors are operands; omitted optional ones are None. Unless stated, the
operands of matrix products, attention and convolutions have one floating or complex dtype, which is
the result's, and index tensors are Int or Int32; other dtypes are a FuserTypeError, sizes that do
not match a FuserValueError.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dtypes import DataType

_aten = torch.ops.aten


def linear(arg1: Tensor, arg2: Tensor, bias: Tensor | None = None) -> Tensor:
    """arg1 @ arg2.T + bias: [.., k], weight [n, k] or [k], bias [n] -> [.., n] or [..]."""
    return functional.linear(arg1, arg2, bias)


def matmul(arg1: Tensor, arg2: Tensor) -> Tensor:
    """torch.matmul: [.., n, k] @ [.., k, m] -> [.., n, m]; batch dimensions broadcast.

    A one-dimensional operand is a row on the left, a column on the right, and is removed.
    """
    return torch.matmul(arg1, arg2)


def bmm(batch1: Tensor, batch2: Tensor) -> Tensor:
    """Batched matrix product: [b, n, k] @ [b, k, m] -> [b, n, m]."""
    return torch.bmm(batch1, batch2)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2), of sizes [b, n, m], to which `input` broadcasts."""
    return torch.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha)


def grouped_mm(mat1: Tensor, mat2: Tensor, offsets: Tensor) -> Tensor:
    """Grouped matrix product. `offsets`, of size [g], are the ends of the groups.

    [n, k] @ [g, k, m] -> [n, m]   groups of rows of `mat1`
    [g, n, k] @ [k, m] -> [n, m]   groups of columns of `mat2`
    [n, k] @ [k, m] -> [g, n, m]   groups of the summed dimension
    """
    if mat1.dtype is torch.bfloat16 and mat1.is_cuda:
        return torch._grouped_mm(mat1, mat2, offsets.to(torch.int32))
    return product_of_groups(mat1, mat2, offsets)


def product_of_groups(mat1: Tensor, mat2: Tensor, offsets: Tensor) -> Tensor:
    """grouped_mm as one product per group."""
    ends = [int(end) for end in offsets.tolist()]
    spans = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    if mat1.dim() == mat2.dim():
        found = [mat1[:, span] @ mat2[span] for span in spans]
        return torch.stack(found) if found else mat1.new_zeros(0, len(mat1), mat2.shape[1])
    out = mat1.new_zeros(mat1.shape[-2], mat2.shape[-1])
    for k, span in enumerate(spans):
        if mat1.dim() == 2:
            out[span] = mat1[span] @ mat2[k]
        else:
            out[:, span] = mat1[k] @ mat2[:, span]
    return out


def scaled_mm(
    mat1: Tensor,
    mat2: Tensor,
    scale1: Tensor,
    scale2: Tensor,
    bias: Tensor | None = None,
    dtype: DataType = DataType.BFloat16,
) -> Tensor:
    """(mat1 * scale1) @ (mat2 * scale2) + bias of 8-bit floats: [n, k] @ [k, m] -> [n, m], rounded
    to `dtype`.
    """
    return torch._scaled_mm(mat1, mat2, scale1, scale2, bias=bias, out_dtype=dtype.torch)


def product_of_scaled(
    mat1: Tensor,
    mat2: Tensor,
    scale1: Tensor,
    scale2: Tensor,
    bias: Tensor | None = None,
    dtype: DataType = DataType.BFloat16,
) -> Tensor:
    """scaled_mm as a product in the operands' own dtype."""
    found = (mat1 * scale1) @ (mat2 * scale2)
    return found if bias is None else found + bias


def sdpfa_fwd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Flash attention, softmax(query @ key.T * scale) @ value, of [batch, heads, rows, columns].

    Results: output, of query's rows and value's columns; logsumexp [batch, heads, rows], Float
    (Double for Double); philox_seed [2] and philox_offset [], UInt64, the RNG state of dropout.
    `scale` defaults to 1 / sqrt(columns). FuserValueError for dropout on a CPU, when it is
    executed.
    """
    if query.is_cuda:
        found = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
        return found[0], found[1], found[6], found[7]
    if dropout_p:
        raise FuserValueError("sdpfa_fwd: torch's flash attention has no dropout on a CPU")
    output, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, scale=scale
    )
    return output, logsumexp, *_no_state(query)


def _no_state(like: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.zeros(2, dtype=torch.int64, device=like.device).view(torch.uint64)
    return state, state[0].clone()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """sdpfa_fwd as matrix products and a softmax; FuserTypeError for dropout."""
    if dropout_p:
        raise FuserTypeError("sdpfa_fwd with dropout: no reference draws the same numbers")
    scores = _scores(query, key, is_causal, scale)
    return scores.softmax(-1) @ value, scores.logsumexp(-1), *_no_state(query)


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * factor
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, -math.inf)
    return scores


def sdpfa_bwd(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of sdpfa_fwd for query, key and value, with their sizes and dtypes."""
    shared = (grad_output, query, key, value, output, logsumexp)
    found: tuple[Tensor, ...]
    if query.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_backward(
            *shared, None, None, query.shape[2], key.shape[2], dropout_p, is_causal,
            philox_seed, philox_offset, scale=scale,
        )  # fmt: skip
    else:
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *shared, dropout_p, is_causal, scale=scale
        )
    return found


def attention_gradient(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """sdpfa_bwd, recomputed from the probabilities."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    chances = (_scores(query, key, is_causal, scale) - logsumexp.unsqueeze(-1)).exp()
    change = grad_output @ value.mT
    inner = chances * (change - (grad_output * output).sum(-1, keepdim=True)) * factor
    return inner @ key, inner.mT @ query, chances.mT @ grad_output


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: tuple[int, ...] = (1,),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    transposed: bool = False,
    output_padding: tuple[int, ...] = (0,),
    groups: int = 1,
) -> Tensor:
    """torch.convolution of [batch, channels, ..] with 1 to 3 spatial dimensions, or its transpose.

    The weight is [out, in / groups, ..], transposed [in, out / groups, ..], the bias [out]. One
    value of stride, padding, dilation or output_padding stands for all dimensions.
    """
    dims = input.dim() - 2
    steps, pads, dilations, more = (
        list(v) * dims if len(v) == 1 else list(v)
        for v in (stride, padding, dilation, output_padding)
    )
    return torch.convolution(input, weight, bias, steps, pads, dilations, transposed, more, groups)


def scatter(arg: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
    """`arg` with the elements of `src`, or a scalar, written along `dim` at the positions in
    `index`.

    Sizes and dtype are those of `arg`, the dtype of `src` too. With repeated positions the last
    write counts, or any.
    """
    return torch.scatter(arg, dim, index.to(torch.int64), src)


def scatter_add(arg: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
    """`arg` with the elements of `src` added along `dim` at the positions in `index`; `src` has the
    dtype of `arg`.
    """
    return torch.scatter_add(arg, dim, index.to(torch.int64), src)


def index_add(arg: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
    """`arg` with slice k of `src` along `dim` added to slice index[k], for each k."""
    return torch.index_add(arg, dim, index, src)


def index_copy(arg: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
    """`arg` with slice k of `src` along `dim` written to slice index[k], for each k."""
    return torch.index_copy(arg, dim, index.to(torch.int64), src)


def index_put_accumulate(acc: Tensor, index: Tensor, value: Tensor) -> Tensor:
    """`acc` with the slices of `value` added at positions `index` of the first dimension."""
    return torch.index_put(acc, [index.to(torch.int64)], value, accumulate=True)


def embedding_backward(
    grad: Tensor, index: Tensor, rows: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Tensor:
    """Gradient of an embedding table, [rows, columns], from `grad`, [*index sizes, columns]."""
    return torch.ops.aten.embedding_dense_backward(
        grad, index, rows, padding_idx, scale_grad_by_freq
    )


def sort(
    arg: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> tuple[Tensor, ...]:
    """(sorted elements, their positions in `arg` as Int), sorted along `dim`."""
    return tuple(torch.sort(arg, dim=dim, descending=descending, stable=stable))


def argsort(arg: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """Positions in `arg`, as Int, of the elements sorted along `dim`."""
    return torch.argsort(arg, dim=dim, descending=descending, stable=stable)


def topk(
    arg: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = False
) -> tuple[Tensor, ...]:
    """(the k largest or smallest elements along `dim`, their positions as Int).

    Sizes are those of `arg` with k along `dim`; in order only if `sorted`. FuserValueError for k
    above the size.
    """
    return tuple(torch.topk(arg, k, dim, largest, sorted))
