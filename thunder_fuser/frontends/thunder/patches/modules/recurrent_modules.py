"""Weights of `nn.LSTM`, `nn.GRU` and `nn.RNN`, read from the parameters of the module.

These modules keep a list of their parameters, and weak references that tell whether one was
replaced. While a function is traced, parameters are proxies, which no reference finds: Thunder
raised `KeyError: None`. Here each trace makes the list from the parameters by name, as torch does
when one was replaced, so that a parameter has one proxy however it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap, wrap_const
from torch.nn.modules.rnn import RNNBase

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_UPDATE: Callable[..., Any] = RNNBase._update_flat_weights
_LIST = "_flat_weights"


def _weights(module: Any) -> list[Any]:
    return [getattr(module, name, None) for name in module._flat_weights_names]


def _as_torch(module: Any) -> None:
    if module._weights_have_changed():
        module._init_flat_weights()


def _update(module: WrappedValue) -> Any:
    """Make the wrapped module's list of weights; return None, wrapped, or the interpreter's
    signal.
    """
    if not is_patched():
        return interpreter._interpret_call(_as_torch, module)
    found = interpreter._interpret_call(_weights, module)
    if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return found
    # The interpreter checks that what it keeps for an attribute was made from its value.
    found.original_value = getattr(unwrap(module), _LIST)
    module.attribute_wrappers[_LIST] = found
    return wrap_const(None)


def register() -> None:
    """Patch Thunder's interpreter to use `_update`."""
    _LOOKASIDES[_UPDATE] = _update
