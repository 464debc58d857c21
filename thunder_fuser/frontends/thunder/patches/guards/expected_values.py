"""What a value that a traced function reads must be at later calls; `value_guards` says where."""

from __future__ import annotations

import copy
import enum
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch.nn import Module
from torch.nn.modules import module as torch_modules

from thunder_fuser.frontends.thunder.patches.guards.own_classes import keys_of, length_of

GUARDED_BY_THUNDER = (int, float, complex, str, slice)
_NOT_GUARDED = (CellType, CodeType, ModuleType)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
FLAGS = (
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks_with_kwargs",
)
"""Dictionaries of the hooks that are called in another way."""
_GLOBAL_HOOKS = tuple(getattr(torch_modules, f"_global{name}") for name in HOOKS)
_FORWARD = "forward"
_hooks_of = itemgetter(*HOOKS)


class Expected:
    """What a value must be for a program to be valid; `holds` decides."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def holds(self, given: Any) -> bool:
        """True for a value of the same type and an equal value."""
        return type(given) is type(self.value) and bool(given == self.value)

    @classmethod
    def joined(cls, of_one_object: Sequence[Any]) -> Sequence[Expected]:
        """Return what is to be checked for all that is expected of one object by this class."""
        return of_one_object

    def __repr__(self) -> str:
        return f"{self.value!r}"


class Same(Expected):
    """Identity of a value."""

    def holds(self, given: Any) -> bool:
        return given is self.value


class OfType(Expected):
    """Type of a value."""

    def holds(self, given: Any) -> bool:
        return type(given) is self.value


class _OfCode(Expected):
    """Code of a function or method, and its defaults, which are constants of a program."""

    def holds(self, given: Any) -> bool:
        constants = _constants_of(given)
        return len(constants) == len(self.value) and all(
            a is b or (type(a) is type(b) and isinstance(a, GUARDED_BY_THUNDER) and a == b)
            for a, b in zip(constants, self.value, strict=True)
        )


def _constants_of(function: Any) -> tuple[Any, ...]:
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return ()
    named = (function.__kwdefaults__ or {}).values()
    return (function.__code__, *(function.__defaults__ or ()), *named)


class OfKeys(Expected):
    """Type and keys of a dictionary."""

    def __init__(self, held: dict[Any, Any]) -> None:
        super().__init__((type(held), keys_of(held)))

    def holds(self, given: Any) -> bool:
        kind, keys = self.value
        return type(given) is kind and keys_of(given) == keys

    def __repr__(self) -> str:
        return "a {.__name__} of the keys {}".format(*self.value)


class OfLength(Expected):
    """Type of a list, tuple or deque, and how many elements it has."""

    def __init__(self, held: list[Any] | tuple[Any, ...] | deque[Any]) -> None:
        super().__init__((type(held), length_of(held)))

    def holds(self, given: Any) -> bool:
        return type(given) is self.value[0] and length_of(given) == self.value[1]

    def __repr__(self) -> str:
        return "a {.__name__} of {} elements".format(*self.value)


class _OfArray(Expected):
    """Type, dtype and shape of an array of NumPy, whose numbers a program may read as a tensor."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        super().__init__((type(held), held.dtype, held.shape))

    def holds(self, given: Any) -> bool:
        return isinstance(given, np.ndarray) and self.value == (
            type(given),
            given.dtype,
            given.shape,
        )

    def __repr__(self) -> str:
        return "a {.__name__} of {} with the shape {}".format(*self.value)


class OfNumbers(Expected):
    """A number of NumPy, or numbers in an array, that a program reads as constants: their bits,
    as -0.0 is another number than 0.0, and NaN the same as NaN.
    """

    def __init__(self, held: np.ndarray[Any, Any] | np.generic) -> None:
        super().__init__(held.copy())

    def holds(self, given: Any) -> bool:
        of_arrays = type(given), getattr(given, "dtype", None), getattr(given, "shape", None)
        return (
            of_arrays == (type(self.value), self.value.dtype, self.value.shape)
            and given.tobytes() == self.value.tobytes()
        )

    def __repr__(self) -> str:
        return f"{type(self.value).__name__} of {self.value}"


class ExpectedMethods(Expected):
    """Methods that an object has of its type, by `methods`: no attribute of its own is in place of
    one.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.methods: set[str] = set()

    def holds(self, given: Any) -> bool:
        return self.methods.isdisjoint(given.__dict__)

    def __repr__(self) -> str:
        return f"no attributes in place of the methods {sorted(self.methods)}"


class HooksOfAllModules(Expected):
    """The hooks that torch calls for each module, such as `register_module_forward_hook` adds."""

    def __init__(self) -> None:
        super().__init__(_hooks_of_all_modules())

    def holds(self, given: Any) -> bool:
        return bool(_hooks_of_all_modules() == self.value)

    def __repr__(self) -> str:
        return "the hooks of all modules of its first call"


class ExpectedModule(ExpectedMethods):
    """How a module is called, and the number and types of its submodules, with those inside.

    value      type of the module; None if that is guarded elsewhere
    is_called  its hooks and its own `forward` matter, which `see_calls` takes from the module
    shared     pairs of names inside that have one module
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: int | None = None
        self.is_called = False
        self.calls: tuple[Any, ...] = ()
        self.inside: dict[str, ExpectedModule] = {}
        self.shared: list[tuple[list[str], list[str]]] = []

    def __repr__(self) -> str:
        return "the submodules of its first call"

    def at(self, names: list[str]) -> ExpectedModule:
        """Return what is expected of the submodule with these names, outermost first."""
        found = self
        for name in names:
            found = found.inside.setdefault(name, ExpectedModule())
        return found

    def see_calls(self, module: Module) -> None:
        """Expect the calls that the module and its submodules have now."""
        self.calls = _calls_of(module.__dict__)
        for name, expected in self.inside.items():
            if (inner := module._modules[name]) is not None:
                expected.see_calls(inner)

    def holds(self, given: Any) -> bool:
        """True for a module with these submodules and calls. It runs at each call of a model, for
        each module in it: loops, as generators take several times as long.
        """
        if self.value is not None and type(given) is not self.value:
            return False
        held = given.__dict__
        if self.is_called and _calls_of(held) != self.calls:
            return False
        if not self.methods.isdisjoint(held):
            return False
        for one, other in self.shared:
            if _inside(given, one) is not _inside(given, other):
                return False
        modules = held["_modules"]
        if self.count is not None and len(modules) != self.count:
            return False
        for name, expected in self.inside.items():  # noqa: SIM110
            if not expected.holds(modules.get(name)):
                return False
        return True


def _inside(module: Module | None, names: list[str]) -> Module | None:
    """Return the submodule with these names, outermost first; None if there is none."""
    for name in names:
        module = None if module is None else module._modules.get(name)
    return module


def _calls_of(held: dict[str, Any]) -> tuple[Any, ...]:
    """Return hooks among the attributes of a module, and the function that it has in place of its
    type's `forward`; an empty tuple if none.
    """
    hooks = _hooks_of(held)
    if not any(hooks) and _FORWARD not in held:
        return ()
    flags = [held[name] for name in FLAGS]
    found = [[(hook, [k in flag for flag in flags]) for k, hook in x.items()] for x in hooks]
    return (*found, held.get(_FORWARD))


def _hooks_of_all_modules() -> list[Any]:
    return [hook for named in _GLOBAL_HOOKS for hook in named.values()]


def expected_of(value: Any) -> Expected | None:
    """Return what is guarded of a value; None if nothing."""
    if isinstance(value, (*GUARDED_BY_THUNDER, *_NOT_GUARDED)):
        return None
    if isinstance(value, FunctionType | MethodType):
        return _OfCode(_constants_of(value))
    if isinstance(value, type | enum.Enum):
        return Same(value)
    if isinstance(value, np.ndarray):
        return _OfArray(value)
    if isinstance(value, dict) and type(value) is not dict:
        return OfKeys(value.copy())
    plain = (*GUARDED_BY_THUNDER, type(None))
    if isinstance(value, deque) and not all(isinstance(x, plain) for x in value):
        return OfLength(value)  # What the program reads of it is guarded by that.
    if hasattr(value, "__dict__") or isinstance(value, list | tuple | dict):
        return OfType(type(value))
    if callable(value):
        return Same(value)
    try:
        return Expected(copy.copy(value)) if (value == value) is True else Same(value)
    except Exception:  # a type that compares or copies nothing
        return Same(value)
