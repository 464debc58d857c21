"""What torch is called with, on tensors without values, to find the types of a call's results.

Thunder makes such tensors of proxies, and raises for functions and for numbers that are known only
as the program runs. Here a function stands for itself, and in place of an unknown number a call has
one of a few others, if whoever records the call chose one, or the number has been found not to
decide the types (`stand_ins.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import NumberProxy, ProxyTag
from thunder.core.pytree import tree_map

ProxyTag.register_tag("STAND_IN")
STAND_IN = ProxyTag.STAND_IN
"""Of unknown numbers of opaque calls, whose types do not depend on them."""

_STAND_INS: Mapping[type, Sequence[Any]] = {
    float: (0.5, 0.25, 1.0, 7.5),
    int: (1, 2, 0, 5),
    bool: (True, False, True, False),
    complex: (1j, 0.5, 2.0, 0.0),
}
"""Probabilities and slopes, ends of ranges, dimensions and counts: torch takes two at least."""
CHOICES = 4
NONE = -1
"""The choice of no number, so that Thunder raises."""
_choice: ContextVar[int | None] = ContextVar("choice", default=None)
"""Which numbers stand in for unknown ones; None: the first ones, for those that have the tag."""


@contextmanager
def choosing(choice: int) -> Iterator[None]:
    """Let the numbers of this choice stand in for unknown ones, or `NONE`."""
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def is_unknown(x: Any) -> bool:
    """True for a number that is known only as the program runs."""
    return isinstance(x, NumberProxy) and x.value is None


def fake_arguments(*given: Any) -> Any:
    """Return what stands for arguments, or for structures of them, on tensors without values; under
    a FakeTensorMode.
    """
    return tree_map(ltorch._get_fake_arg, given)


def _fake_argument(original: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, FunctionType):
        return x
    if not is_unknown(x):
        return original(x)
    choice = _choice.get()
    if choice is None:
        choice = 0 if STAND_IN in x.tags else NONE
    return original(x) if choice == NONE else _STAND_INS[x.python_type][choice]


def register() -> None:
    """Patch what Thunder calls torch with to find types of results."""
    ltorch._get_fake_arg = partial(_fake_argument, ltorch._get_fake_arg)
