"""Copies of compiled modules by `copy.deepcopy`, `pickle` and `torch.save`.

A compiled module holds closures and traces, which cannot be copied. Its copy is a copy of the
module that it was made from, and is compiled with the same executors and options at its first call.
Averages of weights (`torch.optim.swa_utils.AveragedModel`) and multiprocessing make such copies.
For modules compiled without this executor Thunder raises its own errors.
"""

from __future__ import annotations

from typing import Any

import thunder
import torch
from thunder.core.module import ThunderModule
from thunder.extend import TemporaryExecutor

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.thunder.patches.patched import has_patches


def _reduce(self: ThunderModule, protocol: Any) -> Any:
    """Return the call that makes a copy; raise FuserTypeError for a transformed module."""
    data = thunder.compile_data(self)
    if not has_patches(data):
        return torch.nn.Module.__reduce_ex__(self, protocol)
    if self._lc_transforms or data.process_group_for_ddp is not None:
        raise FuserTypeError(
            f"{type(self._model).__name__}: a compiled module with transforms (such as DDP, FSDP "
            "or quantization) cannot be copied; copy the module before thunder.jit, or save its "
            "state_dict()"
        )
    options = {
        **data.compile_options,
        "executors": tuple(
            e.name for e in data.executors_list if not isinstance(e, TemporaryExecutor)
        ),
        "cache": data.cache_option,
        "sharp_edges": data.sharp_edges,
        "disable_torch_autograd": data.disable_torch_autograd_support,
    }
    return _compiled, (self._model, options)


def _compiled(module: torch.nn.Module, options: dict[str, Any]) -> ThunderModule:
    return thunder.jit(module, **options)


def register() -> None:
    """Add how a compiled module is copied."""
    ThunderModule.__reduce_ex__ = _reduce
