"""Names in the dictionaries of an object's attributes, of a module's members, and of globals.

`"mask" in self.__dict__`, `vars(options).get("scale", 3)` and a loop over `vars(options)` had the
answer of the first call for ever. Here a name that is looked for is guarded by whether it is there,
and a dictionary that is read as a whole by its names. Torch's own code, which looks for each member
of a module in all of its dictionaries, is left out: that a member is found is guarded by its value.
For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import PseudoInst, unwrap

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected
from thunder_fuser.frontends.thunder.patches.guards.value_guards import (
    MEMBERS,
    add_guard,
    path_of,
)
from thunder_fuser.frontends.thunder.patches.patched import ask_first

_OF_A_NAME = frozenset({dict.__contains__, dict.get, dict.pop, dict.setdefault})
_OF_ALL = frozenset(
    {
        *(dict.__iter__, dict.__reversed__, dict.__len__, dict.__eq__, dict.__ne__, dict.copy),
        *(dict.keys, dict.values, dict.items, dict.__or__, dict.__ror__),
    }
)


class _Presence(Expected):
    """Names that a dictionary has which an object has as an attribute, and names that it has not.

    value  whether it has the name, by name
    """

    def __init__(self, home: str, value: dict[str, bool]) -> None:
        super().__init__(value)
        self.home = home
        self.present = {name for name, has in value.items() if has}
        self.absent = value.keys() - self.present

    def holds(self, given: Any) -> bool:
        names = getattr(given, self.home).keys()
        return bool(names >= self.present and names.isdisjoint(self.absent))

    @classmethod
    def joined(cls, of_one_object: Sequence[Any]) -> Sequence[Expected]:
        homes: dict[str, dict[str, bool]] = {}
        for expected in of_one_object:
            homes.setdefault(expected.home, {}).update(expected.value)
        return [cls(home, value) for home, value in homes.items()]

    def __repr__(self) -> str:
        parts = [f"{'a' if has else 'no'} name {name}" for name, has in self.value.items()]
        return f"{', '.join(parts)} in {self.home}"


class _AllNames(Expected):
    """The names in a dictionary that an object has as an attribute, in order."""

    def __init__(self, home: str, value: list[Any]) -> None:
        super().__init__(value)
        self.home = home

    def holds(self, given: Any) -> bool:
        return bool(list(getattr(given, self.home)) == self.value)

    def __repr__(self) -> str:
        return f"the names {self.value} in {self.home}"


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if args and _is_guarded(args[0]):
        name = unwrap(args[1]) if fn in _OF_A_NAME else None
        if name is None or isinstance(name, str):
            _guard(args[0], name)
    return original(fn, *args, **kwargs)


def _is_guarded(value: Any) -> bool:
    """True for such a dictionary that code of the user reads."""
    place = value.provenance
    if place.inst is not PseudoInst.LOAD_ATTR or place.inputs[1].value not in MEMBERS:
        return False
    return path_of(place) is not None and not _is_read_by_torch()


def _is_read_by_torch() -> bool:
    """True if Thunder's interpreter runs code of torch, besides its own."""
    for frame in reversed(interpreter.get_interpreterruntimectx().frame_stack):
        package = (frame.module or "").partition(".")[0]
        if package != "thunder":
            return bool(package == "torch")
    return False


def _guard(value: Any, name: str | None) -> None:
    """Guard a name, or all names, of a dictionary as it was before the program ran."""
    owner, home = value.provenance.inputs
    before = value.value if value.original_value is value.nothing else value.original_value
    if name is None:
        add_guard(owner, _AllNames(home.value, list(before)))
    else:
        add_guard(owner, _Presence(home.value, {str(name): name in before}))


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=_OF_A_NAME | _OF_ALL)
