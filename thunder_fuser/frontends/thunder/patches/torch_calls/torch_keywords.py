"""Arguments by torch's names: `torch.sum(x, axis=-1)`, `torch.add(x, other=y)`.

Thunder's functions take torch's arguments in torch's order, but some under other names, or only by
position, and raised a TypeError. A keyword that the called function does not know becomes a
positional argument, at the place that it has in torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import wrap_const
from thunder.core.symbol import Symbol
from thunder.core.utils import is_hashable

from thunder_fuser.frontends.thunder.patches.patched import ask_first
from thunder_fuser.frontends.thunder.torch_functions import symbol_of

Function = Callable[..., Any]

_SECOND_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "x2": "other"}
"""NumPy's, which torch takes, too."""
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, which takes torch's keywords, or None."""
    found = original(fn, *args, **kwargs)
    if found is None or not kwargs or not is_hashable(fn):
        return found
    symbol = _symbol(fn)
    if symbol is None:
        return found
    data = get_compile_data()
    assert data is not None
    called = inspect.unwrap(data.executor_lookasides.get(fn, symbol))
    parameters = _parameters(called)
    if _takes_any(parameters):  # a wrapper around the symbol
        parameters = _parameters(symbol)
    return partial(_call, found, parameters, tuple(_names_in_torch(fn, symbol)))


def _call(
    function: Function,
    parameters: Mapping[str, inspect.Parameter],
    overloads: Sequence[Sequence[str]],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    by_name = {name for name, p in parameters.items() if p.kind in _BY_NAME}
    if not _takes_any(parameters) and not by_name.issuperset(kwargs):
        named = {k if k in by_name else _SECOND_NAMES.get(k, k): v for k, v in kwargs.items()}
        for names in overloads:
            if placed := _placed(parameters, by_name, names, args, named):
                return function(*placed[0], **placed[1])
    return function(*args, **kwargs)


def _placed(
    parameters: Mapping[str, inspect.Parameter],
    by_name: set[str],
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments with unknown keywords at their places; None if torch has no such."""
    unknown = [name for name in kwargs if name not in by_name]
    if not set(unknown) <= set(names[len(args) :]):
        return None
    places = [p for p in parameters.values() if p.kind in _BY_PLACE]
    end = max((names.index(name) + 1 for name in unknown), default=0)
    takes_more = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values())
    if end > len(places) and not takes_more:
        return None
    given, rest = list(args), dict(kwargs)
    for place in range(len(args), end):
        if names[place] in rest:
            given.append(rest.pop(names[place]))
        elif place < len(places) and places[place].default is not inspect.Parameter.empty:
            given.append(wrap_const(places[place].default))
        else:
            return None
    return given, rest


def _symbol(fn: Any) -> Any:
    """Thunder's symbol for a function of torch, or itself; None for other functions. Some of
    torch's functions have a wrapper, with the symbol in its closure next to that of DTensors.
    """
    symbol = symbol_of(fn)
    if isinstance(symbol, FunctionType) and symbol.__module__.startswith("thunder.torch."):
        held = [cell.cell_contents for cell in symbol.__closure__ or ()]
        own = (x for x in held if isinstance(x, Symbol) and str(x.id).startswith("torch."))
        symbol = next(own, symbol)
    return None if symbol is fn and not isinstance(fn, Symbol) else symbol


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _parameters(called: Any) -> Mapping[str, inspect.Parameter]:
    meta = called.meta if isinstance(called, Symbol) else called
    return inspect.signature(meta).parameters


def _names_in_torch(fn: Any, symbol: Any) -> Iterator[Sequence[str]]:
    """Yield the names of the positional arguments of each overload."""
    if isinstance(fn, FunctionType):
        parameters = inspect.signature(fn).parameters
        yield [name for name, p in parameters.items() if p.kind in _BY_PLACE]
    path = getattr(symbol, "id", None)
    if isinstance(path, str):
        parts = [p for p in path.split(".") if p not in ("torch", "Tensor")]
        for name in dict.fromkeys(("_".join(parts), parts[-1])):
            yield from _of_schemas(name)


@cache
def _of_schemas(name: str) -> Sequence[Sequence[str]]:
    return [
        ["input" if a.name == "self" else a.name for a in schema.arguments if not a.kwarg_only]
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    ]


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_lookaside)
