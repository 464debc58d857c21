"""Symbols that are in a trace for their effect, such as a check or an in-place method: functions of
tensors that Thunder keeps although nothing reads their results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.executors.torchex import ex as torch_executor


def effect(name: str, function: Callable[..., object], executor: Any = None) -> Symbol:
    """Return the symbol that calls a function for its effect. `executor`: that has claimed it."""

    def meta(*tensors: object, **options: object) -> None:
        return None

    return _symbol(name, function, meta, (OpTags.DONT_DCE,), executor)


def in_place(name: str, function: Callable[..., object]) -> Symbol:
    """Return the symbol, of torch's executor, of a function that writes to its first argument and
    returns it.
    """

    def meta(x: TensorProxy, *args: object, **options: object) -> TensorProxy:
        return TensorProxy(like=x)

    tags = (OpTags.DONT_DCE, OpTags.IN_PLACE)
    return _symbol(name, function, meta, tags, torch_executor)


def _symbol(
    name: str,
    function: Callable[..., object],
    meta: Callable[..., object],
    tags: tuple[OpTags, ...],
    executor: Any,
) -> Symbol:
    def give_context(symbol: BoundSymbol) -> None:
        symbol._call_ctx = {name: function}

    return Symbol(
        name=name,
        id=name,
        meta=meta,
        is_prim=True,
        tags=tags,
        _bind_postprocess=give_context,
        executor=executor,
    )
