"""Cached facts of a bound symbol, stored in its `__dict__` next to Thunder's cached properties.

Arguments and results of a bound symbol do not change: Thunder's own cached properties rely on that.
`from_bsym` drops all of them, even for a copy that differs only in tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import torch
from thunder.core import devices, dtypes
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten_with_dataclass
from thunder.core.symbol import BoundSymbol

T = TypeVar("T")

_PREFIX = "_fuser_"
_FLAT = ("flat_args_and_spec", "flat_args", "flat_outs_and_spec", "flat_outs")
_PROXIES = ("flat_proxy_args", "flat_proxy_outs")
_LEAVES: tuple[type, ...] = (
    *(Proxy, str, int, float, complex, Enum, type, type(None), type(...), torch.Size),
    *(torch.dtype, torch.device, torch.memory_format, dtypes.dtype, devices.Device),
)


def remembered(bsym: BoundSymbol, name: str, find: Callable[[BoundSymbol], T]) -> T:
    """Return the cached result of `find(bsym)`, which may depend on arguments and results alone."""
    known, key = bsym.__dict__, _PREFIX + name
    if key not in known:
        known[key] = find(bsym)
    found: T = known[key]
    return found


def relabelled(bsym: BoundSymbol, **labels: Any) -> BoundSymbol:
    """Return a copy with another source line or other tags that keeps all cached facts."""
    made: BoundSymbol = bsym.from_bsym(**labels)
    for key, value in bsym.__dict__.items():
        if key in _FLAT or key in _PROXIES or key.startswith(_PREFIX):
            made.__dict__[key] = value
    return made


def proxies_in(tree: object) -> tuple[Proxy, ...]:
    """Return the proxies in a tree of arguments or results."""
    return tuple(x for x in leaves_in(tree) if isinstance(x, Proxy))


def leaves_in(tree: object) -> list[Any]:
    """Return the leaves of arguments or results in the order of Thunder's own tree flattening,
    which takes tens of microseconds, and a trace has thousands of symbols.
    """
    found: list[Any] = []
    try:
        _add_leaves(tree, found)
    except TypeError:
        found, _ = tree_flatten_with_dataclass(tree)
    return found


def _add_leaves(tree: Any, found: list[Any]) -> None:
    """Append the leaves of `tree`. TypeError for anything but a leaf or a plain container."""
    kind: type = type(tree)
    if kind in (tuple, list):
        for part in tree:
            _add_leaves(part, found)
    elif kind is dict:
        for key in sorted(tree):
            _add_leaves(tree[key], found)
    elif _is_leaf(kind):
        found.append(tree)
    else:
        raise TypeError(kind)


@cache
def _is_leaf(kind: type) -> bool:
    return issubclass(kind, _LEAVES)


def look_through(symbols: Iterable[BoundSymbol], *, in_parts: bool = True) -> None:
    """Fill the caches of proxy arguments and results of symbols, and of their subsymbols if
    `in_parts`.
    """
    for bsym in symbols:
        known = bsym.__dict__
        if "flat_proxy_args" not in known:
            known["flat_proxy_args"] = proxies_in((bsym.args, bsym.kwargs))
        if "flat_proxy_outs" not in known:
            known["flat_proxy_outs"] = proxies_in(bsym.output)
        if in_parts and bsym.subsymbols:
            look_through(bsym.subsymbols)
