"""Functions of torch that are interpreted, as the user's code is, or of which parts are left out.

Thunder has an operation for `interpolate`, which raises for the modes "area" and "bicubic", and
with antialiasing; torch's function calls pools and operations that are fused or run in torch.
`triplet_margin_with_distance_loss` calls the distance that it is given, which may be a module.
`torch.batch_norm` is `nn.functional.batch_norm`, which updates the running statistics visibly.

Left out are the ranges of `torch.profiler.record_function`, and branches on values of tensors:
`nn.Transformer` looks whether a mask is causal where the caller does not say so, which is a hint,
and the mask does the same without; `torch.distributions` raises for parameters and samples that are
not valid. The table in which `kl_divergence` remembers functions is not changed, nor is the one in
which `nn.Module.__init__` notes each new module once `torch.compile` has run: it changes by itself
when a module goes, also while it is traced.

For functions compiled with this executor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import unwrap, wrap_const
from torch._dynamo.mutation_guard import GenerationTracker
from torch.autograd.profiler import record_function
from torch.distributions import kl
from torch.nn import functional
from torch.nn.modules import transformer

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_SIGNATURE = inspect.signature(functional.interpolate)
_TRIPLETS = functional.triplet_margin_with_distance_loss
_MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear")

_kl_function = interpreter.make_opaque(kl._dispatch_kl)


def _is_said_to_be_causal(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
    return is_causal is True


def _kl_divergence(p: Any, q: Any) -> Any:
    function = _kl_function(type(p), type(q))
    if function is NotImplemented:
        raise NotImplementedError(f"No KL(p || q) is implemented for {type(p)} and {type(q)}")
    return function(p, q)


def _batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, *options: Any
) -> Any:
    options = options[:-1]  # without `cudnn_enabled`
    return functional.batch_norm(input, running_mean, running_var, weight, bias, *options)


def _instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, *options: Any
) -> Any:
    options = options[:-1]  # without `cudnn_enabled`
    return functional.instance_norm(input, running_mean, running_var, weight, bias, *options)


_INTERPRETED: Mapping[Function, Function] = {
    torch.batch_norm: _batch_norm,
    torch.instance_norm: _instance_norm,
    transformer._detect_is_causal_mask: _is_said_to_be_causal,
    kl.kl_divergence: _kl_divergence,
}
_REPLACED: Mapping[Function, Function] = {
    GenerationTracker.tag.__func__: lambda kind, module: wrap_const(None),
    torch._is_all_true: lambda valid: wrap_const(True),
    record_function.__enter__: lambda held: held,
    record_function.__exit__: lambda *raised: wrap_const(None),
}


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None, which interprets it."""
    if fn is _TRIPLETS or (fn is functional.interpolate and _is_unknown(*args, **kwargs)):
        return None
    if fn in _INTERPRETED:
        return partial(interpreter._interpret_call, _INTERPRETED[fn])
    return _REPLACED.get(fn) or original(fn, *args, **kwargs)


def _is_unknown(*args: Any, **kwargs: Any) -> bool:
    """True for an interpolation that is none of Thunder's."""
    try:
        given = _SIGNATURE.bind(*args, **kwargs).arguments
    except TypeError:
        return False
    named = {name: unwrap(value) for name, value in given.items()}
    return named.get("mode", "nearest") not in _MODES or bool(named.get("antialias"))


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=(*_INTERPRETED, *_REPLACED, functional.interpolate, _TRIPLETS))
