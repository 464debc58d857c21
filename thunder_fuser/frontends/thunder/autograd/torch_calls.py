"""Gradients of calls that are torch's as a whole, which run once more under torch's autograd.

Thunder's rule for its auto-registered calls differentiates them by every operand of floats, also by
those that torch has no derivative for and that need none (the weights of classes of
`multi_margin_loss`); it gives no gradient to tensors in a tuple or list
(`lstm_cell(x, (h, c), ..)`), and raises if operands are passed by keyword. Here a call is
differentiated by the operands that require a gradient, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache, partial
from inspect import unwrap
from types import BuiltinFunctionType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.prims import OpTags, get_grad, put_grad, shallow_copy
from thunder.core.proxies import Proxy, ProxyTag, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import detached_trace
from thunder.core.transforms import augmented_forward_impls, backward_impls
from thunder.executors.torchex import _always_executable, ex
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from thunder_fuser.frontends.thunder.autograd.draws import refuse_draws
from thunder_fuser.frontends.thunder.autograd.gradient_flags import requires_gradient
from thunder_fuser.frontends.thunder.autograd.rules import Rule, gradient_of_part
from thunder_fuser.frontends.thunder.fake_arguments import fake_arguments

Function = Callable[..., Any]

OPAQUE: dict[str, Function] = {}
"""Torch's functions by the ids of symbols that stand for a call of one."""


def rule_of(bsym: BoundSymbol) -> Rule | None:
    """Return the grad transform of a call that is torch's as a whole; None for all others. Raises
    NotImplementedError for calls that draw random numbers.
    """
    if OpTags.AUTO_REGISTERED not in (bsym.sym.tags or ()):
        return None
    with detached_trace():
        refuse_draws(bsym.sym.name, bsym.sym.meta, *bsym.args, **bsym.kwargs)
    return partial(_once_more, bsym.sym)


def _once_more(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
    operands = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, TensorProxy)]
    names = {x.name for x in operands}
    result = tree_map(lambda x: _not_an_operand(x, names), symbol(*args, **kwargs))
    wanted = _wanted(operands)
    results = [x for x in tree_flatten(result)[0] if isinstance(x, TensorProxy)]
    cotangents = [gradient_of_part(x) for x in results if _is_inexact(x)]
    function = _function(symbol)
    wanted, unread = _needs(function, wanted, args, kwargs)
    if wanted:
        given = _with_zeros(unread, args, kwargs)
        found = _backward(function, symbol.id)(wanted, *given, *cotangents)
        for k, gradient in zip(wanted, found, strict=True):
            put_grad(operands[k], gradient)
    return result


WITH_CONSTANTS = ("native_layer_norm", "lu_unpack", "linalg.lu")
"""Torch's functions some of whose floating-point results are not differentiated."""


def with_constants(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
    """Record a call that is torch's as a whole, and tag those of its results that torch does not
    differentiate, such as the statistics of `torch.native_layer_norm`.
    """
    results = symbol(*args, **kwargs)
    given = [x for x in tree_flatten(results)[0] if isinstance(x, TensorProxy) and _is_inexact(x)]
    operands = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, TensorProxy)]
    wanted = _wanted(operands)
    if len(given) < 2 or not wanted:
        return results
    with FakeTensorMode():
        _, roots = _run(_function(symbol), wanted, *fake_arguments(args, kwargs))
    for x, root in zip(given, roots, strict=True):
        if not root.requires_grad:
            x.tags.add(ProxyTag.CONSTANT_OF_TORCH)
    return results


_UNDERIVED = (NotImplementedError, RuntimeError)
"""What autograd raises for operations without a derivative."""


@cache
def _backward(function: Function, id: str) -> Symbol:
    """Return the symbol of the gradients of a call."""
    name = f"{id.replace('.', '_')}_vjp"
    symbol = ex.register_operator(
        name, meta=partial(_types, function), fn=partial(_gradients, function)
    )
    ex.register_implementation(symbol.id, symbol, checker=_always_executable)
    _BACKWARDS.add(symbol.id)
    return symbol


_BACKWARDS: set[Any] = set()


def is_backward_of_call(symbol: Symbol) -> bool:
    """True for what computes the gradients of a call that is torch's as a whole. Gradients of its
    results may be None.
    """
    return symbol.id in _BACKWARDS


def _needs(
    function: Function, wanted: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[int, ...], frozenset[int]]:
    """Return those of the wanted operands that gradients of the results go to, and the operands
    whose numbers the gradients do not hang on, as those of a linear function.

    All of them are reached, and none is unread, where the function looks at numbers, or torch has
    no derivative, which it says when a gradient is needed.
    """
    saved = set[int]()

    def save(x: torch.Tensor) -> torch.Tensor:
        saved.add(_storage(x))
        return x

    with FakeTensorMode():
        given, given_kwargs = fake_arguments(args, kwargs)
        try:
            with saved_tensors_hooks(save, lambda x: x):
                leaves, roots = _run(function, wanted, given, given_kwargs)
            seeds = [torch.empty_like(x) if x.requires_grad else None for x in roots]
            found = _differentiated(roots, leaves, seeds)
        except (DataDependentOutputException, *_UNDERIVED):
            return tuple(wanted), frozenset()
    operands = [x for x in tree_flatten((given, given_kwargs))[0] if isinstance(x, torch.Tensor)]
    reached = tuple(k for k, gradient in zip(wanted, found, strict=True) if gradient is not None)
    # What autograd saves of the way may hang on any operand.
    is_known = _is_torchs(function) and saved <= set(map(_storage, operands))
    unread = (k for k, x in enumerate(operands) if is_known and _storage(x) not in saved)
    return reached, frozenset(k for k in unread if operands[k].is_floating_point())


def _storage(x: torch.Tensor) -> int:
    """Return what the memory of a tensor is known by; a detached one shares it."""
    found: int = x.untyped_storage()._cdata
    return found


def _is_torchs(function: Function) -> bool:
    """True for a function whose gradients read what torch's nodes save, and nothing else: not for
    autograd functions in Python, which may keep tensors as attributes.
    """
    inner = unwrap(function)
    module = getattr(inner, "__module__", None)
    return isinstance(inner, BuiltinFunctionType) or module in _OF_TORCH


_OF_TORCH = ("torch.nn.functional", "torch.functional")


def _with_zeros(
    unread: Container[int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the arguments with zeros in the place of operands, which are not saved then."""
    given, spec = tree_flatten((args, kwargs))
    places = [k for k, x in enumerate(given) if isinstance(x, TensorProxy)]
    for k, place in enumerate(places):
        x = given[place]
        if k in unread and type(x) is TensorProxy:
            given[place] = ltorch.full(tuple(x.shape), 0, device=x.device, dtype=x.dtype)
    found: tuple[Any, Any] = tree_unflatten(given, spec)
    return found


def _types(
    function: Function,
    wanted: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *cotangents: TensorProxy | None,
) -> tuple[TensorProxy, ...]:
    operands = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, TensorProxy)]
    chosen = [operands[k] for k in wanted]
    return tuple(TensorProxy(shape=x.shape, device=x.device, dtype=x.dtype) for x in chosen)


def _gradients(
    function: Function,
    wanted: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *cotangents: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of a call.

    wanted      numbers of the differentiated operands, among all tensors of args and kwargs
    cotangents  gradients of its floating-point and complex results, in order; None for those that
                no gradient reaches
    """
    leaves, roots = _run(function, wanted, args, kwargs)
    found = _differentiated(roots, leaves, cotangents)
    given = zip(leaves, found, strict=True)
    return tuple(torch.zeros_like(x) if gradient is None else gradient for x, gradient in given)


def _run(
    function: Function, wanted: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the differentiated operands, and the results that may have gradients."""
    given, spec = tree_flatten((args, kwargs))
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in given]
    operands = [x for x in given if isinstance(x, torch.Tensor)]
    leaves = [operands[k].requires_grad_() for k in wanted]
    given_args, given_kwargs = tree_unflatten(given, spec)
    with torch.enable_grad():
        results = tree_flatten((function(*given_args, **given_kwargs),))[0]
    tensors = [x for x in results if isinstance(x, torch.Tensor)]
    return leaves, [x for x in tensors if x.is_floating_point() or x.is_complex()]


def _differentiated(
    roots: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    seeds: Sequence[torch.Tensor | None],
) -> tuple[Any, ...]:
    """Return the gradients of the leaves, None for those that no result depends on. `seeds`: those
    of the results, None for results without one.
    """
    pairs = [(x, g) for x, g in zip(roots, seeds, strict=True) if x.requires_grad and g is not None]
    if not pairs or not leaves:
        return (None,) * len(leaves)
    reached, given = zip(*pairs, strict=True)
    found: tuple[Any, ...] = torch.autograd.grad(reached, leaves, given, allow_unused=True)
    return found


def in_one(bsym: BoundSymbol) -> Rule | None:
    """Return one grad transform of a symbol for which Thunder has a forward and a backward."""
    forward, backward = (m.get(bsym.sym.id) for m in (augmented_forward_impls, backward_impls))
    if forward is None or backward is None:
        return None

    def rule(*args: Any, **kwargs: Any) -> Any:
        result, saved = forward(*args, **kwargs)
        given = {x.name for x in bsym.flat_proxy_args}
        result = tree_map(lambda x: _not_an_operand(x, given), result)
        cotangents = [get_grad(x) for x in tree_flatten(result)[0] if isinstance(x, TensorProxy)]
        found = backward(*saved, *cotangents)
        found = [found] if isinstance(found, Proxy) else found
        for x, gradient in zip(tree_flatten(args)[0], tree_flatten(found)[0], strict=False):
            if isinstance(x, TensorProxy) and gradient is not None:
                put_grad(x, gradient)
        return result

    return rule


def _wanted(operands: Sequence[TensorProxy]) -> tuple[int, ...]:
    """Return the numbers of the operands that require gradients."""
    return tuple(k for k, x in enumerate(operands) if _is_inexact(x) and requires_gradient(x))


def _is_inexact(x: TensorProxy) -> bool:
    """True for floating-point and complex tensors, which gradients may go through."""
    return bool(dtypes.is_inexact_dtype(x.dtype))


def _not_an_operand(x: Any, operands: set[str]) -> Any:
    """Thunder's map of gradients takes a result that is an operand for that operand."""
    return shallow_copy(x) if isinstance(x, TensorProxy) and x.name in operands else x


def _function(symbol: Symbol) -> Function:
    """Return torch's function that a symbol stands for."""
    return OPAQUE.get(symbol.id) or _registered()[symbol.id]


@cache
def _registered() -> Mapping[str, Function]:
    """Torch's functions by the ids of Thunder's auto-registered symbols for them."""
    return {
        symbol.id: function
        for function, symbol in ltorch._torch_to_thunder_function_map.items()
        if OpTags.AUTO_REGISTERED in (getattr(symbol, "tags", None) or ())
    }
