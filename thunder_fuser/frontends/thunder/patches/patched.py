"""How Thunder is patched: for functions compiled with this executor, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import jit_ext
from thunder.core.compile_data import get_compile_data

OUTSIDE = "compile the functions or modules around it, and call it outside of them"
"""Way out for a call that a trace cannot hold."""


class UntraceableError(NotImplementedError):
    """Raised where torch can run what a program does, and a trace cannot hold it."""


class UnknownNumbersError(UntraceableError):
    """Raised where a trace would need the numbers in a tensor: for a size, or a branch.

    names_call  the message names the call that needs them
    """

    names_call = True

    @classmethod
    def of_item(cls, name: str | None = None) -> UnknownNumbersError:
        """Return the error of a call of `name`, if it is known, that asks for a number which is
        read of a tensor.
        """
        subject = "a branch, a size or an option" if name is None else f"{name}: its result"
        error = cls(
            f"{subject} depends on a number that is read of a tensor, as by x.item(), which is "
            "known only as the program runs; compute with the tensor (torch.where, alpha * y), or "
            "read it outside of the compiled function and pass it as an argument"
        )
        error.names_call = name is not None
        return error

    @classmethod
    def of_size(cls, name: object) -> UnknownNumbersError:
        """Return the error of a call of `name`, whose result has a size that they decide."""
        return cls(
            f"{name}: the size of its result depends on the numbers in its operands; {OUTSIDE}"
        )


def is_patched() -> bool:
    """True while Thunder compiles a function with an executor that has `patches_thunder`."""
    return has_patches(get_compile_data())


def has_patches(data: Any) -> bool:
    """True if the compile data, or None, is that of a function compiled with such an executor."""
    if data is None:
        return False
    # Asked at each step of a trace, in a fourth of the time of `any` with a generator.
    for executor in data.executors_list:  # noqa: SIM110
        if getattr(executor, "patches_thunder", False):
            return True
    return False


_Lookaside = Callable[..., Any]


class _Choice:
    """Chooses what replaces a call: Thunder or, while it `is_patched`, the last of `asked` that is
    for the called function, which may ask the one before it.

    asked  lookasides, and the functions and kinds of functions that each is for; None: all
    """

    def __init__(self, thunders: _Lookaside) -> None:
        self.thunders = thunders
        self.asked: list[tuple[_Lookaside, frozenset[Any] | None, tuple[type, ...]]] = []
        self._named: dict[Any, _Lookaside | None] = {}
        self._by_kind: WeakKeyDictionary[type, _Lookaside] = WeakKeyDictionary()

    def ask(self, lookaside: _Lookaside, of: Iterable[Any] | None, kinds: tuple[type, ...]) -> None:
        functions = None if of is None and not kinds else frozenset(of or ())
        self.asked.append((lookaside, functions, kinds))
        self._named = dict.fromkeys((*self._named, *(functions or ())))
        self._by_kind.clear()

    def __call__(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        choose = self._first(fn) if is_patched() else self.thunders
        return choose(fn, *args, **kwargs)

    def _first(self, fn: Any) -> _Lookaside:
        """Return the lookaside that is asked first, found once for all functions of a kind that no
        lookaside names.
        """
        try:
            is_named = fn in self._named
        except TypeError:  # It has no hash.
            is_named = False
        found = self._named[fn] if is_named else self._by_kind.get(type(fn))
        if found is None:
            found = self.thunders
            for lookaside, functions, kinds in self.asked:
                if functions is None or (is_named and fn in functions) or isinstance(fn, kinds):
                    found = partial(lookaside, found)
            if is_named:
                self._named[fn] = found
            else:
                self._by_kind[type(fn)] = found
        return found


_thunders: _Lookaside = jit_ext.general_jit_lookaside


def _as_thunder_chooses(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return Thunder's replacement of a call on wrapped values, or None. It has a parameter `fn`,
    and does not ask for the names of keywords.
    """
    return _thunders(fn, *args, **{"fn_" if k == "fn" else k: v for k, v in kwargs.items()})


_CHOICE = _Choice(_as_thunder_chooses)


def ask_first(
    lookaside: _Lookaside, *, of: Iterable[Any] | None = None, kinds: tuple[type, ...] = ()
) -> None:
    """Let `lookaside(original, fn, /, *args, **kwargs)` choose what replaces a call of `fn` on
    wrapped values, while Thunder `is_patched`: a function of wrapped values, or None. `original` is
    the choice without it. It is asked for the functions `of`, and for instances of `kinds`, or, if
    neither is given, for all.
    """
    _CHOICE.ask(lookaside, of, kinds)
    jit_ext.general_jit_lookaside = _CHOICE
