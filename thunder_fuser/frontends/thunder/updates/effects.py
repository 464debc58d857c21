"""Symbols that are in a trace for their effect, such as a check: functions of tensors that Thunder
keeps although nothing reads their results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.prims import OpTags
from thunder.core.symbol import BoundSymbol, Symbol


def effect(name: str, function: Callable[..., object], executor: Any = None) -> Symbol:
    """Return the symbol that calls a function for its effect. `executor`: that has claimed it."""

    def meta(*tensors: object, **options: object) -> None:
        return None

    def give_context(symbol: BoundSymbol) -> None:
        symbol._call_ctx = {name: function}

    return Symbol(
        name=name,
        id=name,
        meta=meta,
        is_prim=True,
        tags=(OpTags.DONT_DCE,),
        _bind_postprocess=give_context,
        executor=executor,
    )
