"""Attention left whole: one call forward and one backward, by the kernel that torch picks.

Thunder takes attention apart into two products and a softmax over [heads, rows, columns], which
flash attention never has in memory. So `scaled_dot_product_attention` is claimed as it is. Torch
chooses between its kernels (flash, cuDNN, efficient, or its formula) by sizes, dtypes, strides and
its global switches when the call runs, as in eager code. What the kernel saved tells the backward
which one it was: switches may be others by then.

kernel       logsumexp          seed of dropout
flash, GPU   [batch, heads, n]  UInt64
flash, CPU   [batch, heads, n]  none
efficient    [batch, heads, n]  Int
cuDNN        four dimensions    Int
formula      no elements        the generator's state, where it drops anything
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import FusionExecutor
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad

from thunder_fuser.frontends.thunder.claims.operands import is_static

ID = ltorch.scaled_dot_product_attention.id
NAMES = ("fuser_attention", "fuser_attention_forward", "fuser_attention_backward")

_aten = torch.ops.aten
_ALIGNMENT = 8
"""Elements that rows of flash attention's operands, and of masks, are multiples of."""


class Symbols(NamedTuple):
    """The calls that take the place of attention: alone, and with its gradient."""

    whole: Symbol
    forward: Symbol
    backward: Symbol


def register(executor: FusionExecutor) -> Symbols:
    """Claim attention, with its gradient, where `is_claimed` holds."""
    tags = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, OpTags.RANDOM_OP)
    symbols = Symbols(
        executor.register_operator(NAMES[0], meta=_meta, fn=_whole, tags=tags),
        executor.register_operator(NAMES[1], meta=_forward_meta, fn=_forward, tags=tags),
        executor.register_operator(NAMES[2], meta=_backward_meta, fn=_backward),
    )
    executor.register_supported(
        ID, is_claimed, execution_transform=_alone(symbols), grad_transform=_gradient(symbols)
    )
    return symbols


def is_claimed(
    query: object,
    key: object,
    value: object,
    attn_mask: object = None,
    dropout_p: object = 0.0,
    is_causal: object = False,
    *,
    scale: object = None,
) -> bool:
    """Whether torch has one call for these; Thunder takes all others apart."""
    tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    if not all(type(t) is TensorProxy and is_static(t.shape) for t in tensors):  # type: ignore[attr-defined]
        return False
    shapes = [tuple(t.shape) for t in tensors[:3]]  # type: ignore[attr-defined]
    same = len({shape[:-2] for shape in shapes}) == 1 and len(shapes[0]) >= 2
    # The gradient of a mask is nothing that torch's kernels all give.
    constant = attn_mask is None or not attn_mask.requires_grad  # type: ignore[attr-defined]
    numbers = isinstance(dropout_p, int | float) and isinstance(is_causal, bool)
    return same and constant and numbers and not (is_causal and attn_mask is not None)


def _alone(symbols: Symbols) -> Callable[..., TensorProxy]:
    def transform(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> TensorProxy:
        found: TensorProxy = symbols.whole(
            query, key, value, attn_mask, dropout_p, is_causal, scale
        )
        return found

    return transform


def _gradient(symbols: Symbols) -> Callable[..., TensorProxy]:
    def rule(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> TensorProxy:
        options = (dropout_p, is_causal, scale)
        output, *state = symbols.forward(query, key, value, attn_mask, *options)
        g = get_grad(output)
        found = symbols.backward(g, query, key, value, attn_mask, output, *state, *options)
        for operand, gradient in zip((query, key, value), found, strict=True):
            put_grad(operand, gradient)
        return output

    return rule


# ---- what Thunder knows of the calls


def _meta(
    query: TensorProxy, key: TensorProxy, value: TensorProxy, *options: object
) -> TensorProxy:
    return TensorProxy(like=query, shape=(*query.shape[:-1], value.shape[-1]))


def _forward_meta(
    query: TensorProxy, key: TensorProxy, value: TensorProxy, *options: object
) -> tuple[TensorProxy, ...]:
    plain = {"device": query.device, "requires_grad": False}
    return (
        _meta(query, key, value),
        TensorProxy(shape=tuple(query.shape[:-1]), dtype=dtypes.float32, **plain),
        TensorProxy(shape=(), dtype=dtypes.int64, **plain),
        TensorProxy(shape=(), dtype=dtypes.int64, **plain),
    )


def _backward_meta(
    g: TensorProxy, query: TensorProxy, key: TensorProxy, value: TensorProxy, *others: object
) -> tuple[TensorProxy, ...]:
    return tuple(TensorProxy(like=t, shape=tuple(t.shape)) for t in (query, key, value))


# ---- the calls


def _whole(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale
    )


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and what the backward wants of the kernel: logsumexp, seed, offset."""
    with torch.no_grad():
        mask = _added(mask, query)
        kernel = _chosen(query, key, value, mask, dropout_p, is_causal, scale)
        nothing = query.new_empty(0)
        if kernel == SDPBackend.FLASH_ATTENTION and not query.is_cuda:
            output, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
            )
            return output, logsumexp, nothing, nothing
        if kernel == SDPBackend.FLASH_ATTENTION:
            width = value.shape[-1]
            output, logsumexp, _, _, _, _, seed, offset, _ = (
                _aten._scaled_dot_product_flash_attention(
                    *map(_padded, (query, key, value)), dropout_p, is_causal, False,
                    scale=_scale(query, scale),
                )
            )  # fmt: skip
            return output[..., :width], logsumexp, seed, offset
        if kernel == SDPBackend.EFFICIENT_ATTENTION:
            found: tuple[Tensor, Tensor, Tensor, Tensor] = (
                _aten._scaled_dot_product_efficient_attention(
                    query, key, value, _aligned(mask, query, key), True, dropout_p, is_causal,
                    scale=scale,
                )
            )  # fmt: skip
            return found
        if kernel == SDPBackend.CUDNN_ATTENTION:
            output, logsumexp, _, _, _, _, seed, offset, _ = (
                _aten._scaled_dot_product_cudnn_attention(
                    query, key, value, mask, True, dropout_p, is_causal, False, scale=scale
                )
            )
            return output, logsumexp, seed, offset
        seed = _generator_state(query) if dropout_p else nothing
        output = _formula(query, key, value, mask, dropout_p, is_causal, scale)
        return output, nothing, seed, nothing


def _backward(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    output: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    with torch.no_grad():
        mask = _added(mask, query)
        shared = (g, query, key, value)
        if not logsumexp.numel():
            return _formula_backward(*shared, mask, seed, dropout_p, is_causal, scale)
        found: tuple[Tensor, ...]
        if not query.is_cuda:
            found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *shared, output, logsumexp, dropout_p, is_causal, attn_mask=mask, scale=scale
            )
        elif seed.dtype is torch.uint64:
            wide = _aten._scaled_dot_product_flash_attention_backward(
                *map(_padded, (*shared, output)), logsumexp, None, None, query.shape[-2],
                key.shape[-2], dropout_p, is_causal, seed, offset, scale=_scale(query, scale),
            )  # fmt: skip
            found = tuple(
                x[..., : t.shape[-1]] for x, t in zip(wide, (query, key, value), strict=True)
            )
        elif logsumexp.dim() == 4:
            found = _aten._scaled_dot_product_cudnn_attention_backward(
                *shared, output, logsumexp, seed, offset, mask, None, None, query.shape[-2],
                key.shape[-2], dropout_p, is_causal, scale=scale,
            )  # fmt: skip
        else:
            found = _aten._scaled_dot_product_efficient_attention_backward(
                *shared, _aligned(mask, query, key), output, logsumexp, seed, offset, dropout_p,
                [True, True, True, False], is_causal, scale=scale,
            )  # fmt: skip
        return found[:3]


def _chosen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> SDPBackend:
    """Torch's choice for tensors that want gradients."""
    trained = [t.detach().requires_grad_() for t in (query, key, value)]
    return SDPBackend(torch._fused_sdp_choice(*trained, mask, dropout_p, is_causal, scale=scale))


def _added(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """What a mask adds to scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -math.inf)


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as the efficient kernel reads it: of all heads, with rows that begin aligned."""
    if mask is None:
        return None
    columns = mask.shape[-1]
    if columns % _ALIGNMENT:
        mask = pad(mask, (0, -columns % _ALIGNMENT))[..., :columns]
    return mask.expand(*query.shape[:-1], key.shape[-2])


def _padded(x: Tensor) -> Tensor:
    return pad(x, (0, -x.shape[-1] % _ALIGNMENT)) if x.shape[-1] % _ALIGNMENT else x


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    found: Tensor = _aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, scale=scale
    )[0]
    return found


def _formula_backward(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    state: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    """By autograd of the formula, computed again with the numbers that it drew."""
    devices = [query.device] if query.is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        if state.numel():
            _set_generator_state(query, state)
        query, key, value = (t.detach().requires_grad_() for t in (query, key, value))
        output = _formula(query, key, value, mask, dropout_p, is_causal, scale)
        found: tuple[Tensor, ...] = torch.autograd.grad(output, (query, key, value), g)
        return found


def _generator_state(like: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(like.device) if like.is_cuda else torch.get_rng_state()


def _set_generator_state(like: Tensor, state: Tensor) -> None:
    if like.is_cuda:
        torch.cuda.set_rng_state(state, like.device)
    else:
        torch.set_rng_state(state)
