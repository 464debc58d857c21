"""Calls that a traced function cannot make: transforms of `torch.func`, gradients, hooks, reads of
tensors into Python, seeds, changes of a tensor's memory, and first calls of lazy modules.

They failed somewhere inside of torch, those of `torch.func` with its transform still active for
whatever the caller did next. Here each raises before it begins, with the reason and what to do
instead. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from thunder.core import interpreter
from torch._functorch import apis, eager_transforms
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils.hooks import BackwardHook

from thunder_fuser.frontends.thunder.patches.patched import (
    UnknownNumbersError,
    UntraceableError,
    ask_first,
)
from thunder_fuser.frontends.thunder.patches.tensors.known_tensors import at_once, value_of
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known

Function = Callable[..., Any]

_TRANSFORM = "transforms of torch.func run torch's operations; transform outside of the function"
_GRADIENT = "gradients are computed of the whole function; compute them outside, of what it returns"
_HOOK = "hooks of gradients belong to torch's autograd; register them on arguments or results"
_VALUES = (
    "values of tensors are known only as the program runs; compute with tensors (torch.where), or "
    "read them outside of the compiled function"
)

_LAZY = (
    "a lazy module takes the sizes of its parameters from its first input; call the module once, "
    "such as under torch.no_grad(), before the compiled one"
)

_SEED = (
    "the state of torch's generators is that of the whole program, which draws its numbers as it "
    "runs; read and set it outside of the compiled function"
)

_SHAPE = (
    "it gives a tensor other memory in place; write the call that returns a view, x = x.{view}(..)"
)

_PARAMETER = (
    "it trains the parameters that it is given, and makes none; make the parameter, or the module "
    "that has it (nn.Linear, nn.LayerNorm), outside of the compiled function, as in __init__"
)

_REASONS: Mapping[Any, str] = {
    **dict.fromkeys(
        (
            *(apis.grad, apis.grad_and_value),
            *(eager_transforms.grad_impl, eager_transforms.grad_and_value_impl),
            *(eager_transforms.vjp, eager_transforms.jvp, eager_transforms.jacrev),
            *(eager_transforms.jacfwd, eager_transforms.hessian, eager_transforms.linearize),
        ),
        _TRANSFORM,
    ),
    **dict.fromkeys(
        (
            *(torch.autograd.grad, torch.autograd.backward, torch.autograd.functional.jacobian),
            *(torch.autograd.functional.vjp, torch.autograd.functional.jvp),
            *(torch.autograd.functional.hvp, torch.autograd.functional.vhp),
            torch.autograd.functional.hessian,
        ),
        _GRADIENT,
    ),
    **dict.fromkeys(
        (
            *(torch.seed, torch.manual_seed, torch.initial_seed),
            *(torch.get_rng_state, torch.set_rng_state, torch.random.fork_rng),
            *(torch.cuda.seed, torch.cuda.seed_all, torch.cuda.manual_seed),
            *(torch.cuda.manual_seed_all, torch.cuda.initial_seed),
            *(torch.cuda.get_rng_state, torch.cuda.set_rng_state),
        ),
        _SEED,
    ),
    **dict.fromkeys((torch.equal, torch.allclose, torch.is_nonzero), _VALUES),
    **dict.fromkeys((torch.Tensor.equal, torch.Tensor.allclose), _VALUES),
    BackwardHook: _HOOK,
    LazyModuleMixin._infer_parameters: _LAZY,
    torch.nn.Parameter.__new__: _PARAMETER,
}
_OF_TENSORS = {
    "backward": _GRADIENT,
    "register_hook": _HOOK,
    "register_post_accumulate_grad_hook": _HOOK,
    "retain_grad": _HOOK,
    **dict.fromkeys(("as_strided_", "resize_", "resize_as_", "set_"), _SHAPE),
    **dict.fromkeys(("equal", "allclose", "is_nonzero", "numpy", "__array__"), _VALUES),
}


def _error(name: str, reason: str) -> NotImplementedError:
    kinds = {_VALUES: UnknownNumbersError, _SHAPE: UntraceableError}
    kind = kinds.get(reason, NotImplementedError)
    view = "reshape" if name in ("resize_", "resize_as_", "set_") else name.removesuffix("_")
    reason = reason.format(view=view) if reason is _SHAPE else reason
    return kind(f"{name} in a compiled function: {reason}")


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return what replaces a call on wrapped values: what raises."""
    name = "torch.nn.Parameter" if fn is torch.nn.Parameter.__new__ else fn.__name__
    error = _error(name, _REASONS[fn])
    return lambda *args, **kwargs: interpreter.do_raise(error)


def _method(name: str, reason: str) -> Function:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        known(name)
        raise _error(name, reason)

    return refuse


def _list(self: Any) -> Any:
    known("tolist")
    value = value_of(self)
    if value is None:
        raise _error("tolist", _VALUES)
    return value.tolist()


def register() -> None:
    """Patch how Thunder looks for replacements, and add methods of tensors that raise."""
    ask_first(_lookaside, of=_REASONS)
    METHODS.update({name: _method(name, reason) for name, reason in _OF_TENSORS.items()})
    METHODS["tolist"] = at_once(_list)
