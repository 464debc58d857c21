"""Named tuples: results of torch functions, and results of the user's program.

`x.max(-1).values`, `x.topk(2).indices` and `torch.linalg.qr(x).Q` did not exist in Thunder, whose
calls return plain tuples. Here calls return the named tuples of torch. A named tuple that a program
returns was rebuilt from a list of its elements, which raised an error or made a wrong tuple; a
`torch.Size` became a plain tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from thunder.core import codeutils, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap, wrap
from thunder.core.proxies import AnyProxy
from thunder.core.symbol import BoundSymbol
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched
from thunder_fuser.frontends.thunder.torch_functions import symbol_of

Function = Callable[..., Any]

_original_value: Callable[[Any], Any] = jit_ext.build_value_from_wrapped


def _functions() -> Iterator[tuple[Any, type]]:
    """Yield torch's functions that return named tuples, and Thunder's symbols for them, with the
    type of what they return.
    """
    for name in dir(torch.return_types):
        kind = getattr(torch.return_types, name)
        if not isinstance(kind, type) or not issubclass(kind, tuple):
            continue
        family, _, rest = name.partition("_")
        homes: Sequence[tuple[Any, str]] = ((torch, name), (torch.Tensor, name))
        if family in ("linalg", "special"):
            homes = (*homes, (getattr(torch, family), rest))
        for home, called in homes:
            if (function := getattr(home, called, None)) is not None:
                yield function, kind
                yield symbol_of(function), kind


_KINDS: Mapping[Any, type] = dict(_functions())


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    found = original(fn, *args, **kwargs)
    return partial(_named, _KINDS[fn], found) if callable(found) else found


def _named(kind: type, function: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Call a replacement, and name the elements of the tuple that it returns."""
    found = function(*args, **kwargs)
    if not isinstance(found, WrappedValue) or type(unwrap(found)) is not tuple:
        return found
    return wrap(kind(unwrap(found)), provenance=found.provenance)


def print_new(
    bsym: BoundSymbol, out: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> str:
    result = codeutils.prettyprint(out, literals_as_underscores=True)
    given = ", ".join(codeutils.prettyprint(x) for x in arguments)
    return f"{result} = {bsym.sym.name}({given})"


def _made(kind: Any, items: Any, /) -> Any:
    """Return a tuple of torch's kinds, or of the program's own, without a call of its `__new__`."""
    is_of_python = kind.__new__ is tuple.__new__ or isinstance(kind.__new__, FunctionType)
    return tuple.__new__(kind, items) if is_of_python else kind(items)


_new = ex.register_operator(
    "new_named_tuple",
    meta=lambda kind, items, /: AnyProxy(None),
    fn=_made,
    python_printer=print_new,
)


def is_given(wrapped: Any) -> bool:
    """True for a value that the epilogue gets from the caller."""
    return hasattr(wrapped, "anyproxy") or bool(
        jit_ext.should_register_for_prologue(wrapped.provenance)
    )


def _value(wrapped: Any) -> Any:
    """Return what the epilogue returns for a wrapped result of the program."""
    value = unwrap(wrapped)
    kind = type(value)
    if not isinstance(value, tuple) or kind is tuple or not is_patched() or is_given(wrapped):
        return _original_value(wrapped)
    wrapped.track_items()
    return _new(kind, tuple(map(jit_ext.build_value_from_wrapped, wrapped.item_wrappers)))


def register() -> None:
    """Patch Thunder's interpreter to use `_lookaside` and `_value`."""
    ask_first(_lookaside, of=_KINDS)
    jit_ext.build_value_from_wrapped = _value
