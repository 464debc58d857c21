"""Autograd functions with `setup_context`, or that ask `ctx.needs_input_grad`.

Thunder gives the context to `forward`. With `setup_context` torch gives it to that, together with
the inputs and the output. Nor has Thunder's context `needs_input_grad`; here every floating-point
or complex input needs its gradient, and what is not needed is removed as dead code. The choice is
patched where it is made, for functions compiled with this executor: the function is replaced by
one whose `forward` does all of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from thunder.core import jit_ext
from thunder.core.interpreter import WrappedValue, unwrap, wrap

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_APPLY: Callable[..., Any] = torch.autograd.Function.apply.__func__
_original: Callable[..., Any] = _LOOKASIDES[_APPLY]
_NO_CONTEXT = torch.autograd.Function.setup_context


def _apply(function: WrappedValue, *args: Any, **kwargs: Any) -> Any:
    """Return the wrapped result of a wrapped autograd function, or the interpreter's signal."""
    kind = unwrap(function)
    if is_patched():
        function = wrap(_with_context(kind), provenance=function.provenance)
    return _original(function, *args, **kwargs)


def _with_context(kind: type[torch.autograd.Function]) -> type:
    """A class with a `forward` that takes the context, and the `backward` of `kind`."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        ctx.needs_input_grad = tuple([_is_differentiable(x) for x in inputs])
        return kind.forward(ctx, *inputs)

    def forward_then_setup(ctx: Any, *inputs: Any) -> Any:
        ctx.needs_input_grad = tuple([_is_differentiable(x) for x in inputs])
        output = kind.forward(*inputs)
        kind.setup_context(ctx, inputs, output)
        return output

    has_setup = kind.setup_context is not _NO_CONTEXT

    methods = {
        "forward": staticmethod(forward_then_setup if has_setup else forward),
        "backward": staticmethod(kind.backward),
    }
    return type(kind.__name__, (), methods)


def _is_differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def register() -> None:
    """Patch Thunder's interpreter to use `_apply`."""
    _LOOKASIDES[_APPLY] = _apply
