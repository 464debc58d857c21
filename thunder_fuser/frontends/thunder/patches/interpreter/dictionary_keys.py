"""Items of dictionaries by keys of all kinds: floats, tuples, None, members of enumerations.

Thunder reads an item again by a key that is a string or an integer, of which it took the text: a
`(str, Enum)` member was not found, other keys raised, and so did integers beside strings. Here a
string or an integer of another class is a plain one, which is equal, and the prologue holds any
other key as a constant. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue, unwrap, wrap
from thunder.core.prims import OpTags
from thunder.core.proxies import AnyProxy, Proxy
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.guards.own_classes import Reading
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[..., Any] = interpreter.wrap_binary_subscr


class _Constant:
    """A key that the prologue holds."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Key(_Constant):
    """A key in a place, which finds the same items. Thunder takes a place with a constant that can
    be called, such as a type, for one of code.
    """

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


_key = ex.register_operator(
    "dictionary_key",
    meta=lambda constant, /: None,
    fn=lambda constant: constant.value,
    tags=[OpTags.DONT_DCE],
)


class KeyProxy(Proxy):  # type: ignore[misc]
    """A key in the prologue, which Thunder sorts behind strings and integers.

    reader  symbol that reads by this key, other than `held[key]`
    """

    reader: Any = None

    def __init__(self, place: int) -> None:
        super().__init__(prefix="key")
        self.place = place

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __lt__(self, other: object) -> bool:
        return isinstance(other, KeyProxy) and self.place < other.place

    def __gt__(self, other: object) -> bool:
        return not isinstance(other, KeyProxy) or self.place > other.place


_read = ex.register_operator(
    "read",
    meta=lambda held, reading, /: AnyProxy(None),
    fn=lambda held, reading, /: reading.of(held),
)


class _KeyOfReading(KeyProxy):
    """How a prologue reads what is no item, as if it were one by this key."""

    reader = _read


def place_read(owner: ProvenanceRecord, reading: Reading) -> ProvenanceRecord:
    """Return the place of what is read of the object at a place."""
    inputs = [owner, held_key(reading, _KeyOfReading)]
    return ProvenanceRecord(PseudoInst.BINARY_SUBSCR, inputs=inputs)


def _item(value: Any, held: WrappedValue, key: Any) -> WrappedValue:
    """Return the wrapped item of a wrapped container."""
    given = unwrap(key)
    if not is_patched() or isinstance(given, Proxy) or not isinstance(unwrap(held), dict):
        return _original(value, held, key)
    inputs = [held.provenance, _place(unwrap(held), given)]
    return wrap(value, provenance=ProvenanceRecord(PseudoInst.BINARY_SUBSCR, inputs=inputs))


def _place(held: dict[Any, Any], key: Any) -> ProvenanceRecord:
    """Return the place of a key, which has a proxy if the prologue holds the key as a constant."""
    if isinstance(key, str):
        return _constant(str.__str__(key))
    if isinstance(key, int) and not any(isinstance(other, str) for other in held):
        return _constant(int(key))
    return held_key(key)


def held_key(key: Any, kind: type[KeyProxy] | None = None) -> ProvenanceRecord:
    """Return the place of a constant that the prologue holds. Of a `kind` of proxies, the place has
    the constant itself.
    """
    found = _constant(_Key(key) if kind is None else key)
    symbols = jit_ext.get_jit_ctx()._prologue_trace.bound_symbols
    found.proxy = (kind or KeyProxy)(len(symbols))
    symbols.append(_key.bind(_Constant(key), output=found.proxy))
    return found


def _constant(key: Any) -> ProvenanceRecord:
    return ProvenanceRecord(PseudoInst.CONSTANT, inputs=[], value=key)


def register() -> None:
    """Patch how Thunder's interpreter wraps items."""
    interpreter.wrap_binary_subscr = _item
