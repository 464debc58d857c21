"""Second derivatives: gradients of a compiled function's gradients are refused.

A backward trace computes numbers that autograd does not follow. Thunder declares so with
`once_differentiable`, which compares only the gradients that come in: where these are constants,
as of `y.sum()`, the gradients of `torch.autograd.grad(.., create_graph=True)` looked like constants
themselves. A penalty on them (WGAN-GP), or a product with the Hessian, was left out, silently.

Gradients that are asked for with `create_graph=True` and not differentiated again are as before.
They depend on whatever the function depends on, by way of the meta tensor that links the two
autograd functions of a call; without that link (thunderfx), asking for them is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.executors.torch_autograd import ThunderFunction, ThunderOutputFunction

from thunder_fuser.errors import FuserError

_LINK = "link"
"""Key of the linking tensor in the dictionary that the two functions of a call share."""
_TWICE = (
    "the gradients of a compiled function are to be differentiated again (create_graph=True), and "
    "it has no program for that. Where you need such gradients, call the function or module that "
    "was given to thunder.jit or torch.compile"
)


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """The gradients themselves, which depend on `link` and have no derivative."""

    @staticmethod
    def forward(ctx: Any, link: torch.Tensor, *gradients: torch.Tensor) -> Any:
        return tuple(x.detach() for x in gradients)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise FuserError(_TWICE)


def _forward_of_results(original: Callable[..., Any], ctx: Any, link: Any, *rest: Any) -> Any:
    """Keep the link.  It refers to the other function of the call, so that nothing is cyclic."""
    ctx.link = link
    return original(ctx, link, *rest)


def _backward_of_results(original: Callable[..., Any], ctx: Any, *gradients: Any) -> Any:
    found = original(ctx, *gradients)
    if torch.is_grad_enabled():
        ctx.side_channel[_LINK] = ctx.link
    return found


def _backward(original: Callable[..., Any], ctx: Any, *args: Any) -> Any:
    """Run Thunder's backward; grad mode is that of the gradients: on with `create_graph=True`."""
    if not torch.is_grad_enabled():
        return original(ctx, *args)
    if ctx.side_channel is None:
        raise FuserError(_TWICE)
    link = ctx.side_channel.pop(_LINK)
    found = original(ctx, *args)
    tensors = iter(_Once.apply(link, *(x for x in found if isinstance(x, torch.Tensor))))
    return tuple(next(tensors) if isinstance(x, torch.Tensor) else x for x in found)


def register() -> None:
    """Patch Thunder's two autograd functions of a call."""
    results = ThunderOutputFunction
    results.forward = staticmethod(partial(_forward_of_results, results.forward))
    results.backward = staticmethod(partial(_backward_of_results, results.backward))
    ThunderFunction.backward = staticmethod(partial(_backward, ThunderFunction.backward))
