"""`torch._foreach_add(xs, ys)` and its like, and copies of tensors by `copy`: call by call.

Thunder knows none of torch's functions of lists of tensors, which optimizers, moving averages and
`clip_grad_norm_` use. Each is the method of the same name of each tensor, with the arguments at its
place in lists. A copy of a tensor has its elements and no history; of one that requires a gradient
it would be a leaf of autograd, and is refused. For functions compiled with this executor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import unwrap
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_PREFIX = "_foreach_"
_WITH_VALUE = ("addcmul", "addcdiv")
"""Methods that take their last operand as `value=` alone."""


def _at(place: int, x: Any) -> Any:
    return x[place] if isinstance(x, list | tuple) else x


def _each(call: Function) -> Function:
    """Return a function of lists, interpreted, that calls `call` for each place."""

    def function(self: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [
            call(x, *[_at(k, a) for a in args], **{name: _at(k, kwargs[name]) for name in kwargs})
            for k, x in enumerate(self)
        ]

    return function


def _method(name: str) -> Function:
    if name.rstrip("_") in _WITH_VALUE:
        return lambda x, a, b, value=1: getattr(x, name)(a, b, value=value)
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _norm(x: Any, ord: float = 2, dtype: torch.dtype | None = None) -> Any:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _power(base: Any, exponent: Any) -> Any:
    return base**exponent


def _powers_of_one(base: Any, exponents: Sequence[Any]) -> list[Any]:
    """Return powers of a number, or of the bases at the places of the exponents."""
    if isinstance(base, list | tuple):
        exponents = [_at(k, exponents) for k, _ in enumerate(base)]
    return [_power(_at(k, base), exponent) for k, exponent in enumerate(exponents)]


def _grouped(
    lists: Sequence[Sequence[Any]], with_indices: bool = False
) -> dict[tuple[Any, Any], tuple[list[list[Any]], list[int]]]:
    """Return lists of the tensors with one device and dtype, and their places, if asked for."""
    found: dict[tuple[Any, Any], tuple[list[list[Any]], list[int]]] = {}
    for k, first in enumerate(lists[0]):
        key = (first.device, first.dtype)
        if key not in found:
            found[key] = ([[] for _ in lists], [])
        groups, places = found[key]
        for group, held in zip(groups, lists, strict=True):
            group.append(held[k])
        if with_indices:
            places.append(k)
    return found


def _in_place(function: Function) -> Function:
    def call(self: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)

    return call


def _copied(self: Any) -> Any:
    if self.requires_grad:
        raise NotImplementedError(
            "copy.copy and copy.deepcopy of a tensor that requires a gradient, in a compiled "
            "function: copies are no leaves of autograd; write x.detach() or x.clone()"
        )
    return self.detach()


def _deeply_copied(self: Any, memo: Any = None) -> Any:
    return _copied(self).clone()


_COPIES: Mapping[Function, Function] = {copy.copy: _copied, copy.deepcopy: _deeply_copied}


def _interpreted() -> Mapping[Function, Function]:
    """Return torch's functions of lists, and what is interpreted in their place."""
    found: dict[Function, Function] = {}
    for name in dir(torch):
        method = name.removeprefix(_PREFIX)
        if name != method and hasattr(torch.Tensor, method):
            call = _each(_method(method))
            found[getattr(torch, name)] = _in_place(call) if method[-1] == "_" else call
    found[torch._foreach_norm] = _each(_norm)
    found[torch._foreach_pow] = _powers_of_one
    found[torch._C._group_tensors_by_device_and_dtype] = _grouped
    return found


_INTERPRETED = _interpreted()


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if fn not in _COPIES:
        return partial(interpreter._interpret_call, _INTERPRETED[fn])
    if args and isinstance(unwrap(args[0]), torch.Tensor | TensorProxy):
        return partial(interpreter._interpret_call, _COPIES[fn])
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=(*_INTERPRETED, *_COPIES))
