"""Order of the tensors that `update_aliases` names: by name.

Thunder takes them from a set, so that names, and the order of the numbers that a trace reads, would
depend on hash seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from thunder.core import update_aliases
from thunder.core.utils import Variable

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_new_of_thunder: Callable[..., Any] = update_aliases._get_new_aliases
_symbol_of_thunder: Callable[..., Any] = update_aliases._get_update_bsym


def _ordered(group: Iterable[Variable]) -> list[Variable]:
    return sorted(group, key=lambda x: str(x.proxy.name)) if is_patched() else list(group)


def _new(group: Iterable[Variable], trace: Any) -> Any:
    """Return new proxies of tensors in one memory, in order."""
    return _new_of_thunder(_ordered(group), trace)


def _symbol(group: Iterable[Variable], *rest: Any) -> Any:
    """Return `update_aliases` of tensors in one memory, in order, and the names it gives them."""
    return _symbol_of_thunder(_ordered(group), *rest)


def register() -> None:
    """Patch Thunder's alias updates to take tensors in order."""
    update_aliases._get_new_aliases = _new
    update_aliases._get_update_bsym = _symbol
