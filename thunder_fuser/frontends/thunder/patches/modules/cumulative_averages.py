"""Batch norm with `momentum=None`, whose running statistics are averages of all batches.

The weight of a batch is the reciprocal of a tensor that counts them, of which torch makes a float:
a number that a trace does not have. Here it is a tensor. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import WrappedValue, unwrap
from torch.nn.modules.batchnorm import _BatchNorm

from thunder_fuser.frontends.thunder.patches.patched import ask_first


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if args and unwrap(args[0]).momentum is None:
        return _forward
    return original(fn, *args, **kwargs)


def _forward(module: WrappedValue, input: WrappedValue) -> Any:
    return interpreter._interpret_call(_averaging, module, input)


def _averaging(module: Any, input: Any) -> Any:
    """Compute what `_BatchNorm.forward` does of a module without momentum."""
    module._check_input_dim(input)
    is_tracked = module.training and module.track_running_stats
    weight = 0.0 if module.momentum is None else module.momentum
    if is_tracked and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        weight = 1 / module.num_batches_tracked.double()
    is_of_batch = module.running_mean is None and module.running_var is None
    is_given = is_tracked or not module.training
    return torch.nn.functional.batch_norm(
        input,
        module.running_mean if is_given else None,
        module.running_var if is_given else None,
        module.weight,
        module.bias,
        module.training or is_of_batch,
        weight,
        module.eps,
    )


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=(_BatchNorm.forward,))
