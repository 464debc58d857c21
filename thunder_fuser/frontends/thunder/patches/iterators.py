"""Steps of iterators over lists and tuples: loops, unpacking and `next`.

Thunder's interpreter has an iterator of its own for them, whose `__next__` it interprets: two
comparisons with a length, for which it interprets `len`, an element and an addition, in three
frames. At the end each frame adds itself to the traceback of StopIteration. Here the element is
read at once, as by a subscript, with the same value, provenance and guards. The choice is patched
where it is made, for functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import SequenceIter, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = interpreter._default_lookaside_map
_original: Callable[..., Any] = _LOOKASIDES[next]

# Not their subclasses, which may have methods of their own.
_ITEMS = MappingProxyType({kind: kind.__getitem__ for kind in (list, tuple)})


def _next(iterator: Any, *default: Any) -> Any:
    """Return the wrapped next element of a wrapped iterator, the default at its end, or the
    interpreter's signal of an exception.
    """
    held = unwrap(iterator)
    if type(held) is not SequenceIter or held.is_reversed or not is_patched():
        return _original(iterator, *default)
    kind = type(held.s)
    if kind not in _ITEMS:
        return _original(iterator, *default)
    items = interpreter._interpret_call(getattr, iterator, wrap_const("s"))
    position = held.next_pos
    if position >= len(held.s):
        return default[0] if default else interpreter.do_raise(StopIteration())
    held.next_pos = position + 1
    return interpreter._interpret_call(_ITEMS[kind], items, wrap_const(position))


def register() -> None:
    """Patch Thunder's interpreter to use `_next`."""
    _LOOKASIDES[next] = _next
