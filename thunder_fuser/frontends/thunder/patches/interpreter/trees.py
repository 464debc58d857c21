"""Flattening of nested arguments without repeated work.

Thunder flattens the arguments and results of a symbol for each question about it. Each time it
built a set of thirty types that it accepts, and copied the arguments to register the dataclasses
among them: an eighth of the time to trace a model. Leaves and structures are the same, so the
patches apply to all functions that Thunder compiles.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import optree
from thunder.core import pytree
from thunder.core.baseutils import ProxyInterface

Flat = tuple[list[Any], Any]

_original: Callable[..., Flat] = pytree.tree_flatten
_original_with_dataclass: Callable[[Any], Flat] = pytree.tree_flatten_with_dataclass

_COMMON = (tuple, list, dict, int, float, bool, complex, str, slice, type(None))


@functools.cache
def _is_common(kind: type) -> bool:
    """True for the types of the most common trees; Thunder accepts more."""
    return kind in _COMMON or issubclass(kind, ProxyInterface)


def _flatten(args: Any, namespace: str = pytree.OPTREE_NAMESPACE) -> Flat:
    """Return the leaves and the structure of `args`; TypeError if Thunder does not accept it."""
    kind: type = type(args)
    if not _is_common(kind):
        return _original(args, namespace)
    return optree.tree_flatten(args, none_is_leaf=True, namespace=namespace)


def _flatten_with_dataclass(tree: Any) -> Flat:
    """Return `_flatten` of `tree`, with the fields of dataclasses as leaves."""
    flat = _flatten(tree)
    # Registered dataclasses are flattened, so that a leaf is one that is not registered yet.
    if any(map(_is_dataclass, map(type, flat[0]))):
        return _original_with_dataclass(tree)
    return flat


_is_dataclass: Callable[[type], bool] = functools.lru_cache(1024)(dataclasses.is_dataclass)


def register() -> None:
    """Replace both functions in all modules of Thunder that have imported them."""
    replaced = {
        "tree_flatten": (_original, _flatten),
        "tree_flatten_with_dataclass": (_original_with_dataclass, _flatten_with_dataclass),
    }
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] == "thunder":
            for attribute, (before, after) in replaced.items():
                if vars(module).get(attribute) is before:
                    setattr(module, attribute, after)
