"""Guards of arguments that are no tensors, numbers or texts: None, functions, dtypes, sets, enums.

Thunder guards the numbers, texts and tensors that a program reads. Of other values it compiles what
the first call made of them: `f(x, None)`, and then `f(x, mask)`, ran the program without a mask.
Here each of them is guarded, also in lists, dictionaries and dataclasses: a value that stands for
itself by equality, a function by its code, all others by their type, since what a program reads of
an object is guarded on its own. The guards are added where Thunder makes its prologue, for
functions compiled with this executor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from thunder.core import jit_ext, utils
from thunder.core.interpreter import ProvenanceRecord, PseudoInst
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.trace import tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.patched import is_patched

Found = tuple[Any, ProvenanceRecord]

_original: Callable[..., Any] = jit_ext.unpack_inputs

_THUNDERS = (torch.Tensor, int, float, complex, str, slice, torch.device, torch.nn.Module)
"""What Thunder guards itself where a program reads it."""
_STAND_FOR_THEMSELVES = (
    *(type(None), type, BuiltinFunctionType, Enum, np.generic),
    *(torch.dtype, torch.layout, torch.memory_format, torch.Size),
    *(range, set, frozenset, bytes),
)
_DEEPEST = 8
"""Depth of containers in containers that is looked into."""


class _Like:
    """What later values have in common with one that a program was compiled for."""

    __slots__ = ("likeness",)

    def __init__(self, value: Any) -> None:
        self.likeness = likeness(value)


def likeness(value: Any) -> tuple[Any, ...]:
    """Return a value that is equal for values which a program cannot tell apart by themselves."""
    kind = type(value)
    if isinstance(value, _STAND_FOR_THEMSELVES):
        return kind, value
    if isinstance(value, dict) and kind is not dict:
        return kind, *value  # its keys; those of a dict are guarded where they are read
    if isinstance(value, MethodType):
        return kind, likeness(value.__func__)
    if isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return kind, value.__code__, *map(_default, defaults)
    return (kind,)


def _default(value: Any) -> tuple[Any, ...]:
    """Defaults are constants of a program: tensors are compared by identity."""
    if isinstance(value, torch.Tensor):
        return type(value), id(value)
    return (type(value), value) if isinstance(value, _THUNDERS) else likeness(value)


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Found]:
    for inst, given in ((PseudoInst.INPUT_ARGS, args), (PseudoInst.INPUT_KWARGS, kwargs)):
        root = ProvenanceRecord(inst, inputs=[])
        for reads, key, held in _items(given):
            yield from _values(held, _inside(root, reads, key), _DEEPEST)


def _values(held: Any, place: ProvenanceRecord, depth: int) -> Iterator[Found]:
    """Yield the values at a place and inside of it, with their places, unless Thunder guards
    them.
    """
    if isinstance(held, _THUNDERS):
        return
    yield held, place
    if depth:
        for inst, key, value in _items(held):
            yield from _values(value, _inside(place, inst, key), depth - 1)


def _items(held: Any) -> Iterator[tuple[PseudoInst, Any, Any]]:
    kind = type(held)
    if kind is list or (isinstance(held, tuple) and kind is not torch.Size):
        yield from ((PseudoInst.BINARY_SUBSCR, k, value) for k, value in enumerate(held))
    elif isinstance(held, dict):
        named = ((k, value) for k, value in held.items() if type(k) in (str, int))
        yield from ((PseudoInst.BINARY_SUBSCR, k, value) for k, value in named)
    elif kind is SimpleNamespace or (dataclasses.is_dataclass(held) and hasattr(held, "__dict__")):
        yield from ((PseudoInst.LOAD_ATTR, name, value) for name, value in vars(held).items())


def _inside(place: ProvenanceRecord, inst: PseudoInst, key: Any) -> ProvenanceRecord:
    constant = ProvenanceRecord(PseudoInst.CONSTANT, inputs=[], value=key)
    return ProvenanceRecord(inst, inputs=[place, constant])


def _check_like(given: Any, expected: _Like, /) -> None:
    utils.check(
        likeness(given) == expected.likeness,
        lambda: f"Expected a value like {expected.likeness}, compiled for, got {given}",
    )


_check_like_symbol = ex.register_operator(
    "check_like",
    meta=lambda given, expected, /: None,
    fn=_check_like,
    tags=[OpTags.DONT_DCE],
)


def _unpack(
    context: Any,
    prologue: Any,
    to_computation: Any,
    to_epilogue: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Make the prologue, with guards of the values among the arguments."""
    if is_patched():
        with tracectx(context.computation_trace):
            for value, place in _arguments(args, kwargs):
                proxy = Proxy(history=place, prefix="given")
                context.add_constraint((_check_like_symbol, proxy, _Like(value)))
    return _original(context, prologue, to_computation, to_epilogue, args, kwargs)


def register() -> None:
    """Patch how Thunder makes prologues to use `_unpack`."""
    jit_ext.unpack_inputs = _unpack
