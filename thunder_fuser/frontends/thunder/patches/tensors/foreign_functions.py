"""Functions written in C, other than torch's, that are called on tensors: `math.sqrt(x)`.

Thunder runs such a function on random tensors as it traces, to learn the types of its results, and
records it as a call. Results that are no tensors were those of the random tensors: `math.floor(x)`
was a constant, and another one at each compilation. Here they are computed where the numbers in the
tensors are known, and raise elsewhere; random numbers of the caller's are not drawn. Functions that
Thunder does not find by their name, such as those of NumPy, raised an error of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import Symbol
from thunder.extend import TemporaryExecutor

from thunder_fuser.frontends.thunder.opaque_calls import unrecorded_if_it_raises
from thunder_fuser.frontends.thunder.patches.patched import UnknownNumbersError, is_patched
from thunder_fuser.frontends.thunder.patches.tensors.known_tensors import number_of

Function = Callable[..., Any]

_original: Callable[[TemporaryExecutor, Function], Symbol] = (
    TemporaryExecutor.register_operator_for_opaque_function
)


def _register(executor: TemporaryExecutor, function: Function) -> Symbol | None:
    """Record calls of a function, and return their symbol; None where it has no name."""
    if not is_patched():
        return _original(executor, function)
    try:
        symbol = _original(executor, function)
    except (AttributeError, KeyError, RuntimeError):
        executor._lookasides[function] = partial(_refuse, function)
        return None
    object.__setattr__(symbol, "meta", partial(_types, function, symbol.meta))
    executor._lookasides[function] = partial(_call, function, symbol)
    return symbol


def _types(function: Function, meta: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Return proxies of results that are tensors; raise UnknownNumbersError for others."""
    devices = {x.device.index for x in args if _is_tensor(x) and x.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            results = meta(*args, **kwargs)
        are_tensors = all(x is None or _is_tensor(x) for x in tree_flatten(results)[0])
    except Exception as error:
        raise _refusal(function) from error
    if not are_tensors:
        raise _refusal(function)
    return results


def _call(function: Function, symbol: Symbol, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call whose results are tensors; return the results of known numbers."""
    try:
        with unrecorded_if_it_raises():
            return symbol(*args, **kwargs)
    except UnknownNumbersError:
        known = tree_map(_number, args)
        if any(map(_is_tensor, tree_flatten(known)[0])):
            raise
        return function(*known, **kwargs)


def _number(x: Any) -> Any:
    number = number_of(x) if _is_tensor(x) else x
    return x if number is None else number


def _is_tensor(x: Any) -> bool:
    return isinstance(x, TensorProxy)


def _refuse(function: Function, /, *args: Any, **kwargs: Any) -> Any:
    raise _refusal(function)


def _refusal(function: Function) -> UnknownNumbersError:
    module, name = (getattr(function, f"__{key}__", None) for key in ("module", "name"))
    called = f"{module}.{name}" if module and name else f"a function written in C ({function})"
    return UnknownNumbersError(
        f"{called} of a tensor that the program computes "
        "(data dependency): it reads numbers, which are known only as the program runs; call "
        "torch's function, or this one outside of the compiled function"
    )


def register() -> None:
    """Patch how Thunder records functions written in C."""
    TemporaryExecutor.register_operator_for_opaque_function = _register
