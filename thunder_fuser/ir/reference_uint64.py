"""Reference semantics of operations on uint64, whose values torch holds as int64 of the same bits.

Two's complement makes most arithmetic the same on both; this is what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from thunder_fuser.ir.tables import pointwise

TOP_BIT = -(2**63)
"""Flipped, carriers are in the order of the unsigned integers."""


def _numpy(function: Callable[..., np.ndarray]) -> Callable[..., torch.Tensor]:
    """A numpy function on uint64 as one on carriers."""

    def on_carriers(*operands: torch.Tensor) -> torch.Tensor:
        arrays = [x.cpu().numpy().view(np.uint64) for x in operands]
        with np.errstate(divide="ignore"):
            found = np.asarray(function(*arrays))
        signed = found if found.dtype == np.bool_ else found.astype(np.uint64).view(np.int64)
        return torch.from_numpy(signed.copy(order="C")).to(operands[0].device)

    return on_carriers


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


ON_UINT64: Mapping[str, Callable[..., torch.Tensor]] = {
    "div": _numpy(np.floor_divide),
    "mod": _numpy(np.fmod),
    "fmod": _numpy(np.fmod),
    "remainder": _numpy(np.remainder),
    "gcd": _numpy(np.gcd),
    "pow": _numpy(np.power),
    "minimum": _numpy(np.minimum),
    "maximum": _numpy(np.maximum),
    "clamp": _numpy(lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "threshold": _numpy(lambda x, bound, value: np.asarray(np.where(x <= bound, value, x))),
    "lt": _numpy(np.less),
    "le": _numpy(np.less_equal),
    "gt": _numpy(np.greater),
    "ge": _numpy(np.greater_equal),
    "sign": _numpy(np.sign),
    "signbit": torch.zeros_like,
    "abs": _unchanged,
    "relu": _unchanged,
    "bitwise_right_shift": pointwise.lookup("logical_right_shift").reference,
}
"""Operations that depend on the order of unsigned integers, or that divide."""
