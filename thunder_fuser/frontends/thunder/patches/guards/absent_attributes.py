"""Attributes that a traced function looks for, and members of a module that it lists.

`hasattr(self, "mask")` and `getattr(options, "scale", None)` had the answer of the first call for
ever, and so had `self.parameters()`, in an order that changed with each process. Here the answers
are guarded, for functions compiled with this executor; that an attribute is found by `getattr` is
guarded by its value. Attributes of classes of torch and Python modules are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import PseudoInst, WrappedValue, unwrap
from torch.nn import Module

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected
from thunder_fuser.frontends.thunder.patches.guards.value_guards import (
    add_guard,
    is_of_caller,
    path_of,
)
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_getattr: Callable[..., Any] = _LOOKASIDES[getattr]
_hasattr: Callable[..., Any] = _LOOKASIDES[hasattr]


class _Has(Expected):
    """Whether an object has an attribute."""

    def __init__(self, name: str, value: bool) -> None:
        super().__init__(value)
        self.name = name

    def holds(self, given: Any) -> bool:
        return hasattr(given, self.name) is self.value

    @classmethod
    def joined(cls, of_one_object: Sequence[Any]) -> Sequence[Expected]:
        return [*{expected.name: expected for expected in of_one_object}.values()]

    def __repr__(self) -> str:
        return f"{'an' if self.value else 'no'} attribute {self.name}"


class _Names(Expected):
    """Names of a module's parameters or buffers, in order, as `list_names` returns them."""

    def __init__(self, list_names: Callable[[Module], list[str]], value: list[str]) -> None:
        super().__init__(value)
        self.list_names = list_names

    def holds(self, given: Any) -> bool:
        return bool(self.list_names(given) == self.value)


def guard_presence(held: WrappedValue, name: WrappedValue | str, has: bool) -> None:
    """Guard whether an object of the caller has an attribute."""
    text = unwrap(name)
    if isinstance(text, str) and not text.startswith("__") and is_of_caller(held):
        add_guard(held.provenance, _Has(str(text), has))


def _has_attribute(held: WrappedValue, name: WrappedValue) -> Any:
    if not is_patched():
        return _hasattr(held, name)
    if is_of_caller(held) and is_changed(held):
        return interpreter._interpret_call(_found, held, name)
    answer = _hasattr(held, name)
    if isinstance(answer, WrappedValue):
        guard_presence(held, name, bool(answer.value))
    return answer


def is_changed(held: WrappedValue) -> bool:
    """True if the trace has set or deleted attributes of an object."""
    return any(
        changed.provenance.inst is PseudoInst.LOAD_ATTR
        and changed.provenance.inputs[0] == held.provenance
        for changed in jit_ext.get_jit_ctx()._additional_outputs
    )


def _found(held: Any, name: str) -> bool:
    try:
        getattr(held, name)
    except AttributeError:
        return False
    return True


def _get_attribute(held: WrappedValue, name: WrappedValue, *default: WrappedValue) -> Any:
    found = _getattr(held, name, *default)
    is_missing = bool(default) or found is interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED
    if is_missing and is_patched() and is_of_caller(held) and not is_changed(held):
        text = unwrap(name)
        if isinstance(text, str) and not hasattr(unwrap(held), text):
            guard_presence(held, name, has=False)
    return found


def _members(list_members: Callable[..., Any], get_member: Callable[..., Any], home: str) -> Any:
    """Make the replacement of `Module.named_parameters`, or of `Module.named_buffers`."""

    def members(held: WrappedValue, /, *args: Any, **kwargs: Any) -> Any:
        if not is_patched():
            return original(held, *args, **kwargs)
        if path_of(held.provenance) is None:
            return interpreter._interpret_call(_of_made(home), held, *args, **kwargs)
        given = [unwrap(x) for x in args], {unwrap(k): unwrap(v) for k, v in kwargs.items()}
        return _listed(held, partial(_names, list_members, *given), given, get_member)

    original = _LOOKASIDES[list_members]
    return members


def _of_made(home: str) -> Callable[..., Any]:
    """Return what lists the members of a module that the program makes; it is interpreted."""

    def members(
        module: Module, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        seen: list[Any] = []
        owners = module.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        for owner, inner in owners if recurse else [(prefix, module)]:
            for name, x in getattr(inner, home).items():
                # Torch keeps them in a set, as which a proxy has no place.
                if x is None or (remove_duplicate and any(x is other for other in seen)):
                    continue
                seen.append(x)
                yield f"{owner}.{name}" if owner else name, x

    return members


def _names(list_members: Any, args: list[Any], kwargs: dict[str, Any], module: Module) -> list[str]:
    return [name for name, _ in list_members(module, *args, **kwargs)]


def _listed(
    held: WrappedValue,
    list_names: Callable[[Module], list[str]],
    given: tuple[list[Any], dict[str, Any]],
    get_member: Callable[..., Any],
) -> Any:
    """Return the wrapped iterator over names and members."""
    names = list_names(unwrap(held))
    args, kwargs = given
    prefix = args[0] if args else kwargs.get("prefix", "")
    if is_of_caller(held):
        add_guard(held.provenance, _Names(list_names, names))

    def found(module: Module) -> Iterator[tuple[str, Any]]:
        for name in names:
            yield name, get_member(module, name.removeprefix(prefix + "."))

    return interpreter._interpret_call(found, held)


def own_attributes(held: WrappedValue) -> Container[str]:
    """Return the names that an object itself holds, as the trace has set and deleted them; none for
    `super()`, whose `__dict__` is the descriptor of a class.
    """
    noted = held.attribute_wrappers.get("__dict__")
    names = getattr(unwrap(held), "__dict__", ()) if noted is None else unwrap(noted)
    return names if isinstance(names, Mapping) else ()


def register() -> None:
    """Patch how Thunder's interpreter looks for attributes and lists members."""
    _LOOKASIDES[hasattr] = _has_attribute
    _LOOKASIDES[getattr] = _get_attribute
    for list_members, get_member, home in (
        (Module.named_parameters, Module.get_parameter, "_parameters"),
        (Module.named_buffers, Module.get_buffer, "_buffers"),
    ):
        _LOOKASIDES[list_members] = _members(list_members, get_member, home)
