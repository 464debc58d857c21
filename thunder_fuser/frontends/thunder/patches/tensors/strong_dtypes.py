"""Dtypes of tensors with dimensions, which promote others as in torch.

Thunder gives a tensor without dimensions a weak dtype, which like that of a number does not promote
a tensor of the same category. What it made of numbers or of such a tensor was weak, too:
`torch.tensor([0.5, 2.0])`, `torch.arange(8) / 8`, `x.mean().view(1, 1)`. The product of one and of
a bf16 tensor had bf16, where torch's has fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import proxies
from thunder.torch.experimental import dtensor_proxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[..., tuple[Any, ...]] = proxies._infer_tensor_properties


def _properties(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the properties of a tensor proxy: shape, device, dtype, the dtype that tells weak from
    strong, and others.
    """
    shape, device, dtype, _, *others = found = _original(*args, **kwargs)
    return (shape, device, dtype, dtype, *others) if shape and is_patched() else found


def register() -> None:
    """Patch how Thunder finds out the dtype of a new proxy."""
    proxies._infer_tensor_properties = _properties
    dtensor_proxy._infer_tensor_properties = _properties
