"""Branches that no random number changes: `if torch.rand([]) < 0`.

A trace has no numbers, so that a branch on a tensor raises. In training, many models of
transformers leave out a layer where a random number is less than `layerdrop`, which is 0 by
default. `torch.rand` draws from [0, 1): compared with a number outside, it has one result. For
functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from math import prod
from typing import Any

from thunder.core import jit_ext
from thunder.core.interpreter import interpreter_needs_wrap
from thunder.core.proxies import TensorProxy
from thunder.core.trace import get_tracectx

from thunder_fuser.frontends.thunder.patches.patched import UnknownNumbersError, is_patched
from thunder_fuser.frontends.thunder.patches.tensors.known_tensors import number_of

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_original: Callable[[Any], bool] = TensorProxy.__bool__

_DRAWS = ("rand", "rand_like")
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "lt": lambda drawn, number: drawn < number,
    "le": lambda drawn, number: drawn <= number,
    "gt": lambda drawn, number: drawn > number,
    "ge": lambda drawn, number: drawn >= number,
}


def _truth(x: TensorProxy) -> bool:
    if not is_patched():
        return _original(x)
    found = _decided(x)
    if found is None:
        found = number_of(x)
    if found is None:
        raise UnknownNumbersError(
            "a branch on a tensor that the program computes (data dependency): its numbers are "
            "known only as the program runs; compute with tensors (torch.where), or branch outside "
            "of the compiled function"
        )
    return bool(found)


def _decided(x: TensorProxy) -> bool | None:
    """Return the value of a comparison of a random tensor of one element with a number, if no draw
    changes it.
    """
    makers = {
        out.name: bsym
        for bsym in chain.from_iterable(get_tracectx().scopes)
        for out in bsym.flat_proxy_outs
    }
    comparison = makers.get(x.name)
    if comparison is None or comparison.sym.name not in _COMPARED or prod(x.shape) != 1:
        return None
    drawn, number = comparison.args
    maker = makers.get(getattr(drawn, "name", None))
    if maker is None or maker.sym.name not in _DRAWS or not isinstance(number, int | float):
        return None
    if 0 < number < 1 or (number == 0 and comparison.sym.name in ("le", "gt")):
        return None
    # No draw lies beyond the number, so that any of them has the result of all.
    return _COMPARED[comparison.sym.name](0.5, number)


def register() -> None:
    """Patch Thunder's interpreter to use `_truth`."""
    TensorProxy.__bool__ = _truth
    _LOOKASIDES[_truth] = interpreter_needs_wrap(_truth)
