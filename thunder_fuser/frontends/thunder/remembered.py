"""Facts of a bound symbol, kept with it, beside those that Thunder caches there.

Arguments and results of a bound symbol do not change: Thunder's own cached properties rest on that.
A copy forgets them all, even one that has other tags alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from thunder.core.symbol import BoundSymbol

T = TypeVar("T")

_PREFIX = "_fuser_"
_FLAT = ("flat_args_and_spec", "flat_args", "flat_outs_and_spec", "flat_outs")
_PROXIES = ("flat_proxy_args", "flat_proxy_outs")


def remembered(bsym: BoundSymbol, name: str, find: Callable[[BoundSymbol], T]) -> T:
    """What `find` says of the symbol, which may depend on its arguments and results alone."""
    known, key = bsym.__dict__, _PREFIX + name
    if key not in known:
        known[key] = find(bsym)
    found: T = known[key]
    return found


def relabelled(bsym: BoundSymbol, **labels: Any) -> BoundSymbol:
    """A copy with another line, or other tags, of which all is known that is known of `bsym`."""
    made: BoundSymbol = bsym.from_bsym(**labels)
    for key, value in bsym.__dict__.items():
        if key in _FLAT or key in _PROXIES or key.startswith(_PREFIX):
            made.__dict__[key] = value
    return made
