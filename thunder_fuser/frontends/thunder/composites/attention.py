"""Composites: attention of several heads with its projections, as `nn.MultiheadAttention` calls it.

Torch's function is written in Python and is decomposed into the calls it makes. Thunder treats it
as one call whose gradient torch computes, and fails where a result is None instead of attention
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, cut, floats, known

_thunders = ltorch.scaled_dot_product_attention


def _attention(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> TensorProxy:
    """Thunder's decomposition, in the dtype of a wider mask: torch takes fp32 masks for operands of
    16 bits. `thunder.grad` finds operands by the names of these parameters.
    """
    dtype = query.dtype
    if attn_mask is not None and dtypes.is_float_dtype(attn_mask.dtype):
        dtype = max(dtype, attn_mask.dtype, key=lambda kind: kind.bytes)
    wide = [maybe_convert_to_dtype(x, dtype) for x in (query, key, value)]
    found = _thunders.meta(*wide, attn_mask, dropout_p, is_causal, scale=scale)
    return maybe_convert_to_dtype(found, query.dtype)


_symbol = replace(_thunders, meta=_attention)
"""Thunder's symbol of attention, with a decomposition for all masks."""


def attention(
    query: TensorProxy, key: TensorProxy, value: TensorProxy, *options: Any, **named: Any
) -> TensorProxy:
    """Record attention as one symbol. If queries, keys or values have no elements, torch returns
    zeros [*batch and heads of the queries, queries, elements of a value], with gradients of zeros.
    """
    found: TensorProxy
    if has_elements(query, key, value):
        found = _symbol(query, key, value, *options, **named)
        return found
    nothing = sum(ltorch.sum(cut(x, x.ndim - 1, 0, 0)) for x in (query, key, value))
    shape = (*query.shape[:-1], value.shape[-1])
    found = ltorch.zeros(shape, dtype=query.dtype, device=query.device) + nothing
    return found


def has_elements(*tensors: TensorProxy) -> bool:
    """True if all tensors have elements."""
    return all(x.numel for x in tensors)


class _Heads(NamedTuple):
    """Sizes: queries, keys, batch, heads, elements of a head."""

    queries: int
    keys: int
    batch: int
    heads: int
    size: int


def _multi_head_attention_forward(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: TensorProxy | None,
    in_proj_bias: TensorProxy | None,
    bias_k: TensorProxy | None,
    bias_v: TensorProxy | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: TensorProxy,
    out_proj_bias: TensorProxy | None,
    training: bool = True,
    key_padding_mask: TensorProxy | None = None,
    need_weights: bool = True,
    attn_mask: TensorProxy | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: TensorProxy | None = None,
    k_proj_weight: TensorProxy | None = None,
    v_proj_weight: TensorProxy | None = None,
    static_k: TensorProxy | None = None,
    static_v: TensorProxy | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[TensorProxy, TensorProxy | None]:
    floats(query, key, value)
    if static_k is not None or static_v is not None:
        raise Unusual
    is_batched = query.ndim == 3
    if not is_batched:
        query, key, value = _batches_of_one(query, key, value)
        if key_padding_mask is not None:
            key_padding_mask = ltorch.unsqueeze(key_padding_mask, 0)
    sizes = _sizes(query, key, value, embed_dim_to_check, num_heads)
    if is_causal and attn_mask is None:
        raise Unusual  # torch raises an error
    # That a mask is causal is a hint for the kernel, which then takes the place of the mask.
    hint = is_causal and key_padding_mask is None and not need_weights
    mask = None if hint else _merged(attn_mask, key_padding_mask, sizes, query.dtype)
    if use_separate_proj_weight:
        apart = (q_proj_weight, k_proj_weight, v_proj_weight)
        projected = _projected((query, key, value), apart, in_proj_bias)
    else:
        projected = _packed((query, key, value), in_proj_weight, in_proj_bias)
    sizes, projected, mask = _with_further_keys(
        sizes, projected, mask, (bias_k, bias_v), add_zero_attn, hint
    )
    rows = (sizes.queries, sizes.keys, sizes.keys)
    heads = tuple(_by_head(x, n, sizes) for x, n in zip(projected, rows, strict=True))
    dropped = dropout_p if training else 0.0
    weights = None
    if need_weights:
        found, weights = _with_weights(heads, mask, dropped, sizes)
    else:
        found = _without_weights(heads, mask, dropped, hint, sizes)
    result = ltorch.linear(found, out_proj_weight, out_proj_bias)
    result = ltorch.reshape(result, (sizes.queries, sizes.batch, out_proj_weight.shape[0]))
    if weights is not None and average_attn_weights:
        weights = ltorch.mean(weights, 1)
    if is_batched:
        return result, weights
    return ltorch.squeeze(result, 1), None if weights is None else ltorch.squeeze(weights, 0)


def _batches_of_one(
    query: TensorProxy, key: TensorProxy, value: TensorProxy
) -> tuple[TensorProxy, ...]:
    """Return the three with a batch in dimension 1; equal ones stay equal."""
    of_name = {x.name: ltorch.unsqueeze(x, 1) for x in (query, key, value) if x.ndim == 2}
    if not {query.name, key.name, value.name} <= of_name.keys():
        raise Unusual
    return of_name[query.name], of_name[key.name], of_name[value.name]


def _sizes(
    query: TensorProxy, key: TensorProxy, value: TensorProxy, embedding: Any, heads: Any
) -> _Heads:
    fits = query.ndim == key.ndim == value.ndim == 3 and type(heads) is int and heads > 0
    if not fits or query.shape[2] != embedding or query.shape[2] % heads:
        raise Unusual
    if key.shape[:2] != value.shape[:2] or key.shape[1] != query.shape[1]:
        raise Unusual
    queries, batch, width = query.shape
    return _Heads(queries, key.shape[0], batch, heads, width // heads)


def _merged(
    mask: TensorProxy | None, padding: TensorProxy | None, sizes: _Heads, dtype: dtypes.dtype
) -> TensorProxy | None:
    """Return the mask [batch * heads or 1, queries or 1, keys] that is added to the products."""
    per_head = (sizes.batch * sizes.heads, sizes.queries, sizes.keys)
    if mask is not None:
        known(mask)
        if mask.shape not in (per_head, per_head[1:]):
            raise Unusual
        mask = _added(mask, dtype)
        mask = ltorch.unsqueeze(mask, 0) if mask.ndim == 2 else mask
    if padding is None:
        return mask
    known(padding)
    if padding.shape != (sizes.batch, sizes.keys):
        raise Unusual
    spread = ltorch.reshape(_added(padding, dtype), (sizes.batch, 1, 1, sizes.keys))
    spread = ltorch.expand(spread, (sizes.batch, sizes.heads, 1, sizes.keys))
    spread = ltorch.reshape(spread, (sizes.batch * sizes.heads, 1, sizes.keys))
    return spread if mask is None else mask + spread


def _added(mask: TensorProxy, dtype: dtypes.dtype) -> TensorProxy:
    """Return a mask as numbers: -inf where one of bools is True."""
    if dtypes.is_float_dtype(mask.dtype):
        return mask
    if not dtypes.is_boolean_dtype(mask.dtype):
        raise Unusual
    zeros = ltorch.zeros_like(mask, dtype=dtype)
    found: TensorProxy = ltorch.masked_fill(zeros, mask, -math.inf)
    return found


def _projected(
    tensors: tuple[TensorProxy, ...],
    weights: tuple[TensorProxy | None, ...],
    bias: TensorProxy | None,
) -> list[TensorProxy]:
    biases = (None, None, None) if bias is None else ltorch.chunk(bias, 3)
    if any(w is None for w in weights):
        raise Unusual
    return [ltorch.linear(x, w, b) for x, w, b in zip(tensors, weights, biases, strict=True)]


def _packed(
    tensors: tuple[TensorProxy, ...], weight: TensorProxy | None, bias: TensorProxy | None
) -> list[TensorProxy]:
    """Project by one weight [3 * embedding, embedding]; equal tensors by one product."""
    if weight is None or weight.shape[0] % 3:
        raise Unusual
    query, key, value = (x.name for x in tensors)
    if query == key == value:
        return list(ltorch.chunk(ltorch.linear(tensors[0], weight, bias), 3, -1))
    if key != value:
        return _projected(tensors, tuple(ltorch.chunk(weight, 3)), bias)
    width = weight.shape[0] // 3
    parts = [(weight[:width], None if bias is None else bias[:width])]
    parts.append((weight[width:], None if bias is None else bias[width:]))
    first, both = (ltorch.linear(x, *part) for x, part in zip(tensors[:2], parts, strict=True))
    return [first, *ltorch.chunk(both, 2, -1)]


def _with_further_keys(
    sizes: _Heads,
    projected: list[TensorProxy],
    mask: TensorProxy | None,
    biases: tuple[TensorProxy | None, ...],
    has_zeros: bool,
    is_causal: bool,
) -> tuple[_Heads, list[TensorProxy], TensorProxy | None]:
    """Append keys and values that all batches share, of parameters [1, 1, embedding] and of zeros;
    no mask hides them.
    """
    given = [bias is not None for bias in biases]
    count = int(any(given)) + int(has_zeros)
    if (count and is_causal) or any(given) != all(given):
        raise Unusual
    query, *others = projected
    for k, bias in enumerate(biases):
        x, shape = others[k], (1, sizes.batch, others[k].shape[-1])
        further = [] if bias is None else [ltorch.expand(bias, shape)]
        zeros = [ltorch.zeros(shape, dtype=x.dtype, device=x.device)] if has_zeros else []
        others[k] = ltorch.cat([x, *further, *zeros]) if count else x
    if mask is not None and count:
        mask = ltorch.pad(mask, (0, count))
    return sizes._replace(keys=sizes.keys + count), [query, *others], mask


def _by_head(x: TensorProxy, rows: int, sizes: _Heads) -> TensorProxy:
    """Return [batch, heads, rows, elements of a head]."""
    parts = ltorch.reshape(x, (rows, sizes.batch, sizes.heads, sizes.size))
    found: TensorProxy = ltorch.permute(parts, (1, 2, 0, 3))
    return found


def _with_weights(
    heads: tuple[TensorProxy, ...], mask: TensorProxy | None, dropout_p: float, sizes: _Heads
) -> tuple[TensorProxy, TensorProxy]:
    """Return [queries * batch, embedding], and the weights [batch, heads, queries, keys].

    heads  queries, keys and values [batch, heads, rows, elements of a head]
    """
    every = sizes.batch * sizes.heads
    q, k, v = (ltorch.reshape(x, (every, x.shape[2], sizes.size)) for x in heads)
    scaled, across = q * math.sqrt(1.0 / sizes.size), ltorch.transpose(k, -2, -1)
    if mask is None:
        products = ltorch.bmm(scaled, across)
    else:
        products = ltorch.baddbmm(mask, scaled, across)
    weights = ltorch.softmax(products, -1)
    if dropout_p > 0:
        weights = ltorch.dropout(weights, dropout_p)
    found = ltorch.transpose(ltorch.bmm(weights, v), 0, 1)
    shown = ltorch.reshape(weights, (sizes.batch, sizes.heads, sizes.queries, sizes.keys))
    return ltorch.reshape(found, (sizes.queries * sizes.batch, sizes.heads * sizes.size)), shown


def _without_weights(
    heads: tuple[TensorProxy, ...],
    mask: TensorProxy | None,
    dropout_p: float,
    is_causal: bool,
    sizes: _Heads,
) -> TensorProxy:
    """Return [queries * batch, embedding]; `heads` as in `_with_weights`."""
    if mask is not None:
        before = (1, 1) if mask.shape[0] == 1 else (sizes.batch, sizes.heads)
        mask = ltorch.reshape(mask, (*before, mask.shape[-2], sizes.keys))
    found = attention(*heads, mask, dropout_p, is_causal)
    found = ltorch.permute(found, (2, 0, 1, 3))
    return ltorch.reshape(found, (sizes.queries * sizes.batch, sizes.heads * sizes.size))


PARTS: Mapping[str, Callable[..., Any]] = {
    "nn.functional.multi_head_attention_forward": _multi_head_attention_forward,
}
