"""`torch.randn_like(x)`, `rand_like` and `empty_like` that are fused with nothing: torch's calls.

Thunder calls `torch.randn` with the sizes of `x`, whose result is row-major; torch's has the
strides of `x`. For functions compiled with this executor.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
from thunder.executors.torchex import ex, to_torch_device, to_torch_dtype

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_CALLS = {
    ltorch.rand_like: torch.rand_like,
    ltorch.randn_like: torch.randn_like,
    ltorch.empty_like: torch.empty_like,
}


def _is_taken(*args: Any, **kwargs: Any) -> bool:
    return is_patched()


def register() -> None:
    """Let Thunder's executor of torch run these calls."""
    for symbol, function in _CALLS.items():
        operator = ex.register_operator(symbol.name, like=symbol, fn=function)

        def run(
            a: Any,
            *,
            operator: Any = operator,
            dtype: Any = None,
            device: Any = None,
            **options: Any,
        ) -> Any:
            return operator(a, dtype=to_torch_dtype(dtype), device=to_torch_device(device))

        ex.register_implementation(symbol, checker=_is_taken, execution_transform=run)
