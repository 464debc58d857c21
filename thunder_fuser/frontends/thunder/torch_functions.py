"""Lookup of torch functions by name, with the symbols that Thunder records for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.prims import OpTags
from thunder.core.symbol import Symbol

Function = Callable[..., Any]


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
