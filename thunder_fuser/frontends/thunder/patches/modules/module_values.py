"""Parameters, buffers and strings of modules with `cache="symbolic values"`.

Thunder made the sizes of parameters and buffers symbolic, and then failed to read them before a
run, so that no module could be compiled. Here these sizes are constants, which the guards of the
tensors check. Strings of modules could not be compared by `!=` (`padding_mode != "zeros"`), which
raised an error; that is mended for all functions that Thunder compiles. Tensors in the place of
parameters are taken for such.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.core import proxies
from thunder.core.interpreter import ProvenanceRecord, PseudoInst
from thunder.core.proxies import ProxyTag, StringProxy, TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_TENSORS = ("_parameters", "_buffers")


def _tensor(
    original: Callable[..., TensorProxy],
    tensor: torch.Tensor,
    /,
    *,
    name: str | None,
    history: Any = None,
) -> TensorProxy:
    """Return the proxy of a tensor, with constant sizes if it belongs to a module."""
    found = original(tensor, name=name, history=history)
    if _is_of_module(history) and is_patched():
        found._shape = tuple(tensor.shape)
        # Thunder's prologue asks this of parameters, also of those that `functional_call` sets.
        found.tags.add(ProxyTag.STATIC_MEMORY_LOCATION)
    return found


def _is_of_module(history: Any) -> bool:
    """True if a value was read from the parameters or buffers of a module."""
    if not isinstance(history, ProvenanceRecord) or history.inst is not PseudoInst.BINARY_SUBSCR:
        return False
    home = history.inputs[0]
    return home.inst is PseudoInst.LOAD_ATTR and home.inputs[1].value in _TENSORS


def _differs(self: StringProxy, other: object) -> bool:
    return not StringProxy.__eq__(self, other)


def register() -> None:
    """Patch how Thunder makes proxies of tensors, and `!=` of its strings."""
    proxies.tensorproxy = partial(_tensor, proxies.tensorproxy)
    StringProxy.__ne__ = _differs
