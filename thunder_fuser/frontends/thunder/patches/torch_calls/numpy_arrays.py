"""Tensors of NumPy's arrays: `torch.from_numpy(table)`, `torch.as_tensor(self.scale)`.

Thunder knows no `torch.from_numpy`, and an array was a constant, so that `torch.tensor(table)` had
the numbers of the first call after the caller had filled the array anew. Here the prologue makes
the tensor of an array of the caller, which shares its memory as in torch. One that the program
computes is a constant, and the tensor a copy. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import torch
from thunder.core import interpreter
from thunder.core.interpreter import WrappedValue, unwrap, wrap

from thunder_fuser.frontends.thunder.patches.guards.own_classes import Reading
from thunder_fuser.frontends.thunder.patches.guards.value_guards import path_of
from thunder_fuser.frontends.thunder.patches.interpreter.dictionary_keys import place_read
from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]


class _AsTensor(Reading):
    """The tensor of an array, with its memory."""

    def of(self, held: Any) -> Any:
        return torch.as_tensor(held)


def _copied(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: Any = False) -> Any:
    if requires_grad:
        return torch.tensor(0.0, requires_grad=True)  # which is refused
    return data.detach().clone().to(device=device or data.device, dtype=dtype or data.dtype)


def _shared(data: Any, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    if copy:
        return _copied(data, dtype=dtype, device=device)
    return data.to(device=device or data.device, dtype=dtype or data.dtype)


def _copy_of_constant(data: Any, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    return torch.tensor(data, dtype=dtype, device=device)


_MAKING = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if not args or not isinstance(unwrap(args[0]), numpy.ndarray):
        return original(fn, *args, **kwargs)
    if path_of(args[0].provenance) is not None:
        return partial(_of_array, _copied if fn is torch.tensor else _shared)
    if fn is torch.tensor:
        return original(fn, *args, **kwargs)
    return partial(interpreter._interpret_call, _copy_of_constant)


def _of_array(make: Function, /, data: WrappedValue, *args: Any, **kwargs: Any) -> Any:
    """Return the wrapped tensor of a wrapped array, or the interpreter's signal."""
    reading = _AsTensor()
    try:
        tensor = reading.of(unwrap(data))
    except Exception as error:
        return interpreter.do_raise(error)
    place = place_read(data.provenance, reading)
    return interpreter._interpret_call(make, wrap(tensor, provenance=place), *args, **kwargs)


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_lookaside, of=_MAKING)
