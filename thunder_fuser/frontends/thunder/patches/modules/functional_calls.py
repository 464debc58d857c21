"""`torch.func.functional_call`: a module called with other parameters and buffers.

Torch sets them on the module for the call. Here the traced module has them for as long as its call
is traced. Which names of the module they are, tied ones included, is guarded. For functions
compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap, wrap_const
from torch.nn import Module
from torch.nn.utils import stateless

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected
from thunder_fuser.frontends.thunder.patches.guards.value_guards import add_guard, is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import ask_first

_HOMES = ("_parameters", "_buffers")


class _Place(NamedTuple):
    """Where a module keeps a tensor, and the name of the one that is given for it."""

    owners: tuple[str, ...]
    home: str
    name: str
    given: str


class _Places(Expected):
    """Where a module keeps the tensors of these names, and those that are tied to them."""

    def __init__(self, names: list[str], is_tied: bool, value: list[_Place]) -> None:
        super().__init__(value)
        self.names, self.is_tied = names, is_tied

    def holds(self, given: Any) -> bool:
        return bool(_places(given, self.names, self.is_tied) == self.value)

    def __repr__(self) -> str:
        return f"a module with the parameters and buffers {self.names}"


def _places(module: Module, names: Sequence[str], is_tied: bool) -> list[_Place]:
    """Return the places of the tensors that are replaced. Names that the module lacks have none."""
    held = {
        f"{owner}.{name}" if owner else name: (owner, home, name, tensor)
        for owner, inner in module.named_modules(remove_duplicate=False)
        for home in _HOMES
        for name, tensor in getattr(inner, home).items()
    }
    given = {name: name for name in names if name in held}
    if is_tied:
        by_tensor = {id(held[name][-1]): name for name in given if held[name][-1] is not None}
        for name, (*_, tensor) in held.items():
            if id(tensor) in by_tensor:
                given.setdefault(name, by_tensor[id(tensor)])
    return [
        _Place(tuple(owner.split(".")) if owner else (), home, last, name)
        for (owner, home, last, _), name in ((held[key], name) for key, name in given.items())
    ]


def _lookaside(*_: Any, **__: Any) -> Any:
    """Return the replacement of a call on wrapped values."""
    return _functional_call


def _functional_call(
    module: WrappedValue,
    given: WrappedValue,
    args: WrappedValue | None = None,
    kwargs: WrappedValue | None = None,
    *,
    tie_weights: WrappedValue | None = None,
    strict: WrappedValue | None = None,
) -> Any:
    """Return the wrapped result of the module, or the interpreter's signal of an exception."""
    names = interpreter._interpret_call(lambda given: [*given], given)
    if names is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return names
    is_tied = tie_weights is None or bool(unwrap(tie_weights))
    places = _places(unwrap(module), unwrap(names), is_tied)
    if is_of_caller(module):
        add_guard(module.provenance, _Places(list(unwrap(names)), is_tied, places))
    if (
        strict is not None
        and unwrap(strict)
        and (error := _differing(unwrap(module), places, unwrap(names)))
    ):
        return interpreter.do_raise(error)
    with _having(module, given, places):
        return interpreter._interpret_call(
            _call, module, *(wrap_const(None) if x is None else x for x in (args, kwargs))
        )


def _call(module: Any, args: Any, kwargs: Any) -> Any:
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    return module(*args) if kwargs is None else module(*args, **kwargs)


def _differing(module: Module, places: list[_Place], names: list[str]) -> RuntimeError | None:
    """Return the error of a strict call, if names are missing or unknown."""
    found = {".".join((*place.owners, place.name)) for place in places}
    all_names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    unknown = [name for name in names if name not in found]
    missing = [name for name in all_names if name not in found]
    if not unknown and not missing:
        return None
    return RuntimeError(
        f"Error(s) in reparametrizing for {type(module).__name__}: unexpected keys {unknown}, "
        f"missing keys {missing}"
    )


@contextmanager
def _having(module: WrappedValue, given: WrappedValue, places: list[_Place]) -> Iterator[None]:
    """Let a traced module have the given tensors."""
    replaced: list[tuple[WrappedValue, str, Any, Any]] = []
    try:
        for place in places:
            home = interpreter._interpret_call(
                _home, module, wrap_const(place.owners), wrap_const(place.home)
            )
            value = interpreter._interpret_call(dict.__getitem__, given, wrap_const(place.given))
            name = place.name
            replaced.append((home, name, home.value[name], home.item_wrappers.get(name)))
            home.value[name], home.item_wrappers[name] = value.value, value
            home.key_wrappers.setdefault(name, wrap_const(name))
        yield
    finally:
        for home, name, tensor, wrapper in reversed(replaced):
            home.value[name] = tensor
            if wrapper is None:
                del home.item_wrappers[name], home.key_wrappers[name]
            else:
                home.item_wrappers[name] = wrapper


def _home(module: Any, owners: tuple[str, ...], home: str) -> Any:
    for owner in owners:
        module = getattr(module, owner)
    return getattr(module, home)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=(stateless._functional_call,))
