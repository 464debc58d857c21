"""Dynamic sizes of a jitted function: Thunder traces it again for each shape of its arguments."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx

from thunder_fuser.runtime.compilation.dynamic_sizes import DynamicSizes, Sizes

_histories: WeakKeyDictionary[Any, DynamicSizes] = WeakKeyDictionary()
"""By compile data, of which a jitted function has one."""


def sizes_of(trace: TraceCtx) -> Sizes | None:
    """Return the sizes that a trace is for, among those of its function; None outside of a jitted
    function.
    """
    data = get_compile_data()
    if data is None:
        return None
    arguments, _ = tree_flatten((trace.args, trace.kwargs))
    # As text: sizes may be numbers that are unknown until the function runs.
    shapes = tuple(str(tuple(x.shape)) for x in arguments if isinstance(x, TensorProxy))
    return _histories.setdefault(data, DynamicSizes()).of(shapes)
