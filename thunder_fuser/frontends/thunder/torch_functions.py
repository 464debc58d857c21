"""Lookup of torch functions by name, with the symbols that Thunder records for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from types import MappingProxyType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.prims import OpTags
from thunder.core.symbol import Symbol

Function = Callable[..., Any]

MISTAKEN = MappingProxyType({torch.Tensor.unfold: "tensor_unfold"})
"""Functions that Thunder takes for others of the same name, with names of their own."""


def symbol_of(call: Function) -> Function:
    """Thunder's symbol for a torch function, or the call itself, if it is one of Thunder's."""
    found: Function = ltorch._torch_to_thunder_function_map.get(call, call)
    return found


def named(path: str) -> Iterator[tuple[Function, Symbol]]:
    """Yield torch's functions at a path below `torch`, and Thunder's symbols for them."""
    *modules, name = path.split(".")
    home = reduce(getattr, modules, torch)
    for module in (home, *([] if modules else [torch.Tensor])):
        theirs = getattr(module, name, None)
        symbol = ltorch._torch_to_thunder_function_map.get(theirs)
        if theirs is not None and symbol is not None:
            yield theirs, symbol


def registered(name: str) -> Iterator[tuple[Function, Symbol]]:
    """Yield the auto-registered torch functions of a name, and Thunder's symbols for them."""
    for theirs, symbol in named(name):
        if OpTags.AUTO_REGISTERED in (symbol.tags or ()):
            yield theirs, symbol


def decomposed() -> Iterator[tuple[Function, Symbol]]:
    """Yield torch's functions of tensors that Thunder decomposes, with its symbols for them; not
    those that update a tensor.
    """
    for theirs, symbol in ltorch._torch_to_thunder_function_map.items():
        is_registered = OpTags.AUTO_REGISTERED in (getattr(symbol, "tags", None) or ())
        name = getattr(theirs, "__name__", "_")
        homes = (torch, torch.nn.functional, torch.special, torch.Tensor)
        is_torchs = any(getattr(home, name, None) is theirs for home in homes)
        is_pure = name[-1] != "_" and theirs not in MISTAKEN
        if isinstance(symbol, Symbol) and is_torchs and is_pure and not is_registered:
            yield theirs, symbol


def registered_calls() -> dict[Function, Function]:
    """Return torch's functions that Thunder knows, by themselves and by its symbols for them."""
    found: dict[Function, Function] = {}
    for theirs, symbol in ltorch._torch_to_thunder_function_map.items():
        is_named = not isinstance(theirs, type) and hasattr(theirs, "__name__")
        if is_named and theirs not in MISTAKEN:
            found[theirs] = theirs
            found.setdefault(symbol, theirs)
    return found
