"""Lists, tuples and dictionaries of a program's own classes, read by Python's own methods.

`len(held)`, `held[k]` and loops call methods that the class may define. What the interpreter keeps
track of, and a prologue reads again, is what Python keeps: `list.__getitem__(held, k)`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_KINDS = (list, tuple, dict)
_PLAIN = (list, tuple, dict, str)


def kind_of(held: object) -> Any:
    """Return list, tuple or dict for an object of a class that is derived from it, or else None."""
    if not isinstance(held, _KINDS) or type(held) in _KINDS:
        return None
    return next(kind for kind in _KINDS if isinstance(held, kind))


def length_of(held: Any) -> int:
    """Return the number of elements."""
    if type(held) in _PLAIN:
        return len(held)
    kind = kind_of(held)
    return len(held) if kind is None else int(kind.__len__(held))


def keys_of(held: dict[Any, Any]) -> list[Any]:
    """Return the keys of a dictionary in order."""
    # The order of an `OrderedDict` is its own.
    kind: Any = OrderedDict if isinstance(held, OrderedDict) else dict
    return list(kind.keys(held))


class Reading:
    """How something is read of an object in another way than by a key or a name."""

    def of(self, held: Any) -> Any:
        """Return what is read."""
        raise NotImplementedError


def item_of(held: Any, key: Any, /) -> Any:
    """Return an element, by its position or key; none is made for a key that is missing."""
    if isinstance(key, Reading):
        return key.of(held)
    kind = kind_of(held)
    if kind is dict and not dict.__contains__(held, key):
        raise KeyError(key)
    return held[key] if kind is None else kind.__getitem__(held, key)


def is_read_by_python(held: Any) -> bool:
    """True if `held[key]` calls no method of a class of the program, or of `defaultdict`."""
    kind = kind_of(held)
    if kind is None:
        return True
    return type(held).__getitem__ is kind.__getitem__ and not hasattr(type(held), "__missing__")


def reads_otherwise(held: Any) -> bool:
    """True if a loop over a list or tuple calls a method of its class."""
    kind = kind_of(held)
    return kind in (list, tuple) and type(held).__iter__ is not kind.__iter__
