"""Gradients of Thunder's auto-registered torch calls, which run once more under torch's autograd.

Thunder's rule gives gradients to operands that are tensors, but not to tensors in a tuple or list
(`lstm_cell(x, (h, c), ..)`), and raises if operands are passed by keyword.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.prims import OpTags, get_grad, put_grad, shallow_copy
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import detached_trace
from thunder.core.transforms import augmented_forward_impls, backward_impls

from thunder_fuser.frontends.thunder.autograd.draws import refuse_draws
from thunder_fuser.frontends.thunder.autograd.rules import Rule


def rule_of(bsym: BoundSymbol) -> Rule | None:
    """Return the grad transform of an auto-registered call whose operands Thunder's would miss;
    None for all others. Raises NotImplementedError for calls that draw random numbers.
    """
    if OpTags.AUTO_REGISTERED not in (bsym.sym.tags or ()):
        return None
    with detached_trace():
        refuse_draws(bsym.sym.name, bsym.sym.meta, *bsym.args, **bsym.kwargs)
    nested = any(_has_tensor(x) for x in bsym.args if not isinstance(x, Proxy))
    return in_one(bsym) if nested or _has_tensor(bsym.kwargs) else None


def in_one(bsym: BoundSymbol) -> Rule | None:
    """Return one grad transform of a symbol for which Thunder has a forward and a backward."""
    forward, backward = (m.get(bsym.sym.id) for m in (augmented_forward_impls, backward_impls))
    if forward is None or backward is None:
        return None

    def rule(*args: Any, **kwargs: Any) -> Any:
        result, saved = forward(*args, **kwargs)
        given = {x.name for x in bsym.flat_proxy_args}
        result = tree_map(lambda x: _not_an_operand(x, given), result)
        operands: Sequence[Any] = args
        if OpTags.AUTO_REGISTERED in (bsym.sym.tags or ()):
            operands, options = _positional(bsym.sym.id, args, kwargs)
            saved = ((operands, options),)
        cotangents = [get_grad(x) for x in tree_flatten(result)[0] if isinstance(x, TensorProxy)]
        found = backward(*saved, *cotangents)
        found = [found] if isinstance(found, Proxy) else found
        for x, gradient in zip(tree_flatten(operands)[0], tree_flatten(found)[0], strict=False):
            if isinstance(x, TensorProxy) and gradient is not None:
                put_grad(x, gradient)
        return result

    return rule


def _has_tensor(values: Any) -> bool:
    """True if gradients may go through one of the values."""
    return any(
        isinstance(x, TensorProxy) and dtypes.is_inexact_dtype(x.dtype)
        for x in tree_flatten(values)[0]
    )


def _not_an_operand(x: Any, operands: set[str]) -> Any:
    """Thunder's map of gradients takes a result that is an operand for that operand."""
    return shallow_copy(x) if isinstance(x, TensorProxy) and x.name in operands else x


def _positional(
    id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the call with keyword arguments by position, as far as the function's signature is
    known. Thunder raises an error for tensors among the others.
    """
    try:
        bound = inspect.signature(_functions()[id]).bind(*args, **kwargs)
    except (KeyError, TypeError, ValueError):
        return args, kwargs
    bound.apply_defaults()
    return bound.args, bound.kwargs


@cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    """Torch's functions by the ids of Thunder's symbols for them."""
    return {s.id: f for f, s in ltorch._torch_to_thunder_function_map.items() if hasattr(s, "id")}
