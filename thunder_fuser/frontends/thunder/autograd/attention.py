"""Attention left whole: one torch call forward and one backward, with the backend that torch picks.

Thunder decomposes attention into two matrix products and a softmax over [heads, rows, columns],
which flash attention never materialises. So `scaled_dot_product_attention` is claimed as a whole.
Torch chooses between its backends (flash, cuDNN, efficient, or its math formula) by sizes, dtypes,
strides and its global switches when the call runs, as in eager code. The backward derives the
backend from the saved tensors, as switches may have changed by then.

With `enable_gqa` keys and values have fewer heads, each shared by a group of query heads. Thunder
has no such attention; torch's kernels read shared heads in place and sum their gradients over the
group.

backend      logsumexp          dropout seed
flash, GPU   [batch, heads, n]  UInt64
flash, CPU   [batch, heads, n]  none
efficient    [batch, heads, n]  Int
cuDNN        four dimensions    Int
formula      no elements        RNG state of the generator, with dropout
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.jit_ext import record_source_loc_in_symbol_header
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import FusionExecutor
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.thunder.autograd.gradient_flags import wants_gradient
from thunder_fuser.frontends.thunder.autograd.on_shards import Heads, heads_of
from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites.attention import attention, has_elements

ID = ltorch.scaled_dot_product_attention.id
NAMES = ("fuser_attention", "fuser_attention_forward", "fuser_attention_backward")

_aten = torch.ops.aten
_ALIGNMENT = 8
"""Rows of masks and of operands of flash attention are padded to a multiple of this length."""


class Symbols(NamedTuple):
    """Operators that replace attention: without gradient; augmented forward; backward."""

    whole: Symbol
    forward: Symbol
    backward: Symbol


def register(executor: FusionExecutor) -> Symbols:
    """Register the operators, and claim attention with its grad transform if `is_claimed`."""
    tags = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, OpTags.RANDOM_OP)
    symbols = Symbols(
        executor.register_operator(NAMES[0], meta=_meta, fn=_whole, tags=tags),
        executor.register_operator(NAMES[1], meta=_forward_meta, fn=_forward, tags=tags),
        executor.register_operator(NAMES[2], meta=_backward_meta, fn=_backward),
    )
    rule = _gradient(symbols)
    executor.register_supported(
        ID, is_claimed, execution_transform=_alone(symbols), grad_transform=rule
    )
    executor.register_supported(symbols.whole, grad_transform=rule)
    # Thunder's own lookaside does not know `enable_gqa`.
    attend = record_source_loc_in_symbol_header(partial(_attend, symbols))
    executor._lookasides[functional.scaled_dot_product_attention] = attend
    return symbols


class Attention(NamedTuple):
    """Operands and options of an attention call in torch's order; proxies in a trace, tensors at
    run time.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """The differentiable operands: query, key and value."""
        return self.query, self.key, self.value

    @property
    def scores_factor(self) -> float:
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    @property
    def is_grouped(self) -> bool:
        """True if several query heads share a head of keys and values."""
        heads = [t.shape[-3] if len(t.shape) > 2 else 0 for t in (self.query, self.key)]
        return heads[0] != heads[1]

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword arguments of torch's functions."""
        return {"scale": self.scale, "enable_gqa": self.is_grouped}

    def kernel(self) -> SDPBackend:
        """Return torch's choice of backend for operands that require gradients."""
        trained = [t.detach().requires_grad_() for t in self.operands]
        options = self.attn_mask, self.dropout_p, self.is_causal
        return SDPBackend(torch._fused_sdp_choice(*trained, *options, **self.keywords))

    def formula(self) -> Tensor:
        """Compute the output by torch's math formula: two matrix products and a softmax."""
        *call, _ = self
        found: Tensor = _aten._scaled_dot_product_attention_math(*call, **self.keywords)[0]
        return found


def is_claimed(*args: Any, **options: Any) -> bool:
    """True if attention with these arguments is one torch call; Thunder decomposes all others."""
    call = Attention(*args, **options)
    shapes = [tuple(t.shape) for t in call.operands]
    same = len({shape[:-2] for shape in shapes}) == 1 and len(shapes[0]) >= 2
    return same and _is_one_call(call)


def _is_one_call(call: Attention) -> bool:
    """True if a call is one torch call, batch dimensions and heads not checked."""
    mask = call.attn_mask
    tensors = [*call.operands, *([] if mask is None else [mask])]
    if not all(type(t) is TensorProxy and is_static(t.shape) for t in tensors):
        return False
    # Not all of torch's backends return the gradient of a mask.
    constant = mask is None or not wants_gradient(mask)
    numbers = isinstance(call.dropout_p, int | float) and isinstance(call.is_causal, bool)
    return constant and numbers and not (call.is_causal and mask is not None)


def _attend(
    symbols: Symbols,
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorProxy:
    """Lookaside for torch's attention, including `enable_gqa`."""
    options = attn_mask, dropout_p, is_causal
    call = Attention(query, key, value, *options, scale)
    if not (enable_gqa and call.is_grouped and has_elements(*call.operands)):
        return _thunders(call)
    heads = [t.shape[-3] if t.ndim > 2 else 0 for t in call.operands]
    if not all(heads) or heads[1] != heads[2] or heads[0] % heads[1]:
        raise FuserValueError(
            "scaled_dot_product_attention with enable_gqa: expected as many heads of keys as of "
            f"values, and a multiple of them of queries, got {heads[0]} heads of queries, "
            f"{heads[1]} of keys and {heads[2]} of values"
        )
    if len({tuple(t.shape[:-3]) for t in call.operands}) == 1 and _is_one_call(call):
        return _alone(symbols)(*call)
    key, value = (ltorch.repeat_interleave(t, heads[0] // heads[1], -3) for t in (key, value))
    return _thunders(call._replace(key=key, value=value))


def _thunders(call: Attention) -> TensorProxy:
    """Record Thunder's attention, which the executor claims if `is_claimed`."""
    *options, scale = call
    found: TensorProxy = attention(*options, scale=scale)
    return found


def _alone(symbols: Symbols) -> Callable[..., TensorProxy]:
    def transform(*args: Any, **options: Any) -> TensorProxy:
        found: TensorProxy = symbols.whole(*Attention(*args, **options))
        return found

    return transform


def _gradient(symbols: Symbols) -> Callable[..., TensorProxy]:
    def rule(*args: Any, **options: Any) -> TensorProxy:
        call = Attention(*args, **options)
        saved = symbols.forward(*call)
        output: TensorProxy = saved[0]
        found = symbols.backward(get_grad(output), *saved, *call)
        for operand, gradient in zip(call.operands, found, strict=True):
            put_grad(operand, gradient)
        return output

    return rule


# ---- meta functions


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


def _backward_meta(g: TensorProxy, *saved_and_call: Any) -> tuple[TensorProxy, ...]:
    call = Attention(*saved_and_call[len(Saved._fields) :])
    return tuple(TensorProxy(like=t, shape=tuple(t.shape)) for t in call.operands)


# ---- implementations


class Saved(NamedTuple):
    """The output, and the tensors that the backward needs of the forward kernel."""

    output: Tensor
    logsumexp: Tensor
    seed: Tensor
    offset: Tensor


def _whole(*args: Any) -> Tensor:
    call = Attention(*args)
    heads = heads_of(call.operands)
    if heads is not None:
        with torch.no_grad():
            return heads.whole(_whole(*_on_shards(call, heads)), call.query.shape[:-2])
    *options, _ = call
    return functional.scaled_dot_product_attention(*options, **call.keywords)


def _forward(*args: Any) -> Saved:
    call = Attention(*args)
    with torch.no_grad():
        heads = heads_of(call.operands)
        if heads is None:
            return _run(call)
        found = _run(_on_shards(call, heads))
        return found._replace(output=heads.whole(found.output, call.query.shape[:-2]))


def _on_shards(call: Attention, heads: Heads) -> Attention:
    """Return the local call of this device for an attention call on DTensors."""
    if call.dropout_p:
        raise FuserTypeError(
            f"attention of DTensors: expected dropout_p 0, got {call.dropout_p}: devices would "
            "have to draw numbers of one sequence; drop elements of its result instead"
        )
    if call.is_grouped:
        raise FuserTypeError(
            f"attention of DTensors: expected as many heads of keys as of queries, got "
            f"{call.key.shape[-3]} and {call.query.shape[-3]}: a device's queries would need keys "
            "of others; repeat_interleave keys and values before"
        )
    query, key, value = map(heads.local, call.operands)
    mask = heads.local_mask(call.attn_mask, call.query.ndim)
    return Attention(query, key, value, mask, *call[4:])


def _run(call: Attention) -> Saved:
    call = _added(call)
    query, key, value, mask, dropout_p, is_causal, scale = call
    kernel = call.kernel()
    nothing = query.new_empty(0)
    if kernel == SDPBackend.FLASH_ATTENTION and not query.is_cuda:
        output, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
            *call.operands, dropout_p, is_causal, attn_mask=mask, scale=scale
        )
        return Saved(output, logsumexp, nothing, nothing)
    if kernel == SDPBackend.FLASH_ATTENTION:
        output, logsumexp, _, _, _, _, seed, offset, _ = (
            _aten._scaled_dot_product_flash_attention(
                *map(_padded, call.operands), dropout_p, is_causal, False,
                scale=call.scores_factor,
            )
        )  # fmt: skip
        return Saved(output[..., : value.shape[-1]], logsumexp, seed, offset)
    if kernel == SDPBackend.EFFICIENT_ATTENTION:
        return Saved(
            *_aten._scaled_dot_product_efficient_attention(
                *call.operands, _aligned(mask, query, key), True, dropout_p, is_causal,
                scale=scale,
            )
        )  # fmt: skip
    if kernel == SDPBackend.CUDNN_ATTENTION:
        output, logsumexp, _, _, _, _, seed, offset, _ = _aten._scaled_dot_product_cudnn_attention(
            *call.operands, mask, True, dropout_p, is_causal, False, scale=scale
        )
        return Saved(output, logsumexp, seed, offset)
    seed = _generator_state(query) if dropout_p else nothing
    return Saved(call.formula(), nothing, seed, nothing)


def _backward(g: Tensor, *args: Any) -> tuple[Tensor, ...]:
    count = len(Saved._fields)
    saved, call = Saved(*args[:count]), Attention(*args[count:])
    with torch.no_grad():
        heads = heads_of(call.operands)
        if heads is None:
            return _run_backward(g, saved, call)
        saved = saved._replace(output=heads.local(saved.output))
        found = _run_backward(heads.local(g), saved, _on_shards(call, heads))
        return tuple(heads.whole(t, call.query.shape[:-2]) for t in found)


def _run_backward(g: Tensor, saved: Saved, call: Attention) -> tuple[Tensor, ...]:
    call = _added(call)
    if not saved.logsumexp.numel():
        return _formula_backward(g, saved.seed, call)
    query, key, _, mask, dropout_p, is_causal, scale = call
    output, logsumexp, seed, offset = saved
    lengths = query.shape[-2], key.shape[-2]
    shared = (g, *call.operands)
    found: tuple[Tensor, ...]
    if not query.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *shared, output, logsumexp, dropout_p, is_causal, attn_mask=mask, scale=scale
        )
    elif seed.dtype is torch.uint64:
        wide = _aten._scaled_dot_product_flash_attention_backward(
            *map(_padded, (*shared, output)), logsumexp, None, None, *lengths, dropout_p,
            is_causal, seed, offset, scale=call.scores_factor,
        )  # fmt: skip
        found = tuple(x[..., : t.shape[-1]] for x, t in zip(wide, call.operands, strict=True))
    elif logsumexp.dim() == 4:
        found = _aten._scaled_dot_product_cudnn_attention_backward(
            *shared, *saved, mask, None, None, *lengths, dropout_p, is_causal, scale=scale
        )
    else:
        found = _aten._scaled_dot_product_efficient_attention_backward(
            *shared, _aligned(mask, query, key), *saved, dropout_p,
            [True, True, True, False], is_causal, scale=scale,
        )  # fmt: skip
    return found[:3]


def _added(call: Attention) -> Attention:
    """Return the call with a boolean mask converted to an additive one."""
    mask, query = call.attn_mask, call.query
    if mask is None or mask.dtype is not torch.bool:
        return call
    added = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -math.inf)
    return call._replace(attn_mask=added)


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask as the efficient backend reads it: expanded to all heads, with aligned rows."""
    if mask is None:
        return None
    columns = mask.shape[-1]
    if columns % _ALIGNMENT:
        mask = pad(mask, (0, -columns % _ALIGNMENT))[..., :columns]
    return mask.expand(*query.shape[:-1], key.shape[-2])


def _padded(x: Tensor) -> Tensor:
    return pad(x, (0, -x.shape[-1] % _ALIGNMENT)) if x.shape[-1] % _ALIGNMENT else x


def _formula_backward(g: Tensor, state: Tensor, call: Attention) -> tuple[Tensor, ...]:
    """Gradients by autograd of the formula, recomputed with the same RNG state for dropout."""
    devices = [call.query.device] if call.query.is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        if state.numel():
            _set_generator_state(call.query, state)
        trained = [t.detach().requires_grad_() for t in call.operands]
        output = Attention(*trained, *call[len(trained) :]).formula()
        found: tuple[Tensor, ...] = torch.autograd.grad(output, trained, g)
        return found


def _generator_state(like: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(like.device) if like.is_cuda else torch.get_rng_state()


def _set_generator_state(like: Tensor, state: Tensor) -> None:
    if like.is_cuda:
        torch.cuda.set_rng_state(state, like.device)
    else:
        torch.set_rng_state(state)
