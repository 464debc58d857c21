"""`torch._check_tensor_all`: a check of all elements of a tensor of bools.

It reads the number of `condition._is_all_true()`, which Thunder does not know, and which is not
known while a program is traced. Here the check is called for its effect as the program runs, as is
`torch._assert_async`. Its message is made by the trace, and is torch's where it shows numbers of
tensors.
For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.core import dtypes, interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    WrappedValue,
    interpreter_needs_wrap,
    unwrap,
    wrap_const,
)
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy, TensorProxy
from thunder.executors.torchex import ex

from thunder_fuser.frontends.thunder.patches.patched import ask_first

_ALL: Callable[..., None] = torch._check_tensor_all_with


def _run(check: Callable[[torch.Tensor], None], condition: torch.Tensor, /) -> None:
    check(condition)


_check_symbol = ex.register_operator(
    "check_tensor_all", meta=lambda check, condition, /: None, fn=_run, tags=[OpTags.DONT_DCE]
)


def _check(kind: type[Exception], text: str | None, condition: torch.Tensor) -> None:
    _ALL(kind, condition, None if text is None else lambda: text)


def _text(message: Callable[[], Any]) -> str:
    return str(message())


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    condition = unwrap(args[1]) if len(args) > 1 else None
    is_check = isinstance(condition, TensorProxy) and condition.dtype == dtypes.bool8
    return _recorded if is_check else original(fn, *args, **kwargs)


def _recorded(
    kind: WrappedValue, condition: WrappedValue, message: WrappedValue | None = None
) -> Any:
    """Record the check; return None, wrapped, or the interpreter's signal."""
    text = None
    if message is not None and callable(unwrap(message)):
        found = interpreter._interpret_call(_text, message)
        if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            # It formats the numbers of tensors.
            interpreter.get_interpreterruntimectx().curexc = None
        elif Proxy.__name__ not in unwrap(found):
            text = unwrap(found)
    check = wrap_const(partial(_check, unwrap(kind), text))
    call = jit_ext.record_source_loc_in_symbol_header(_check_symbol)
    return interpreter_needs_wrap(call)(check, condition)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=(_ALL,))
