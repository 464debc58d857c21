"""Strides of what is computed of a call's result in a program with gradients.

Gradient rules record a call again, as other prims than Thunder's; where its result lies is known
all the same, also where it is not returned itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.frontends.thunder.aliasing import interpreted
from tests.frontends.thunder.programs import jit
from tests.support.shares import each_pair

CALLS: dict[str, Callable[..., Any]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w, w),
    "layer_norm in fp32": lambda x, w: F.layer_norm(x.float(), (8,), w.float()).to(x.dtype),
    "rms_norm": lambda x, w: F.rms_norm(x, (8,), w),
    "group_norm": lambda x, w: F.group_norm(x, 2),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w, w, training=True),
    "softmax": lambda x, w: F.softmax(x * w, 1),
    "logsigmoid": lambda x, w: F.logsigmoid(x),
    "masked_fill": lambda x, w: (x * w).masked_fill(x > 0, 1.0),
    "interpolate": lambda x, w: F.interpolate(x * w, scale_factor=2.0, mode="bilinear"),
    "adaptive_avg_pool2d": lambda x, w: F.adaptive_avg_pool2d(x, (2, 3)),
    "normalize": lambda x, w: F.normalize(x * w, dim=1),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda y: y,
    "moved": lambda y: y.permute(0, 3, 1, 2),
    "computed": lambda y: torch.relu(y),
    "a moved product": lambda y: (y * 2).transpose(-1, -2),
}
LAYOUTS = {
    "channels first": (512, 64, 8, 1),
    "channels last": (512, 1, 64, 8),
    "moved": (512, 8, 1, 64),
}


@each_pair(
    call=list(CALLS),
    dtype=[torch.float32, torch.bfloat16],
    reader=list(READERS),
    layout=list(LAYOUTS),
)
def test_readers_of_a_call_lie_as_in_eager(
    call: str, dtype: torch.dtype, reader: str, layout: str
) -> None:
    def program(x: Any, w: Any) -> Any:
        return READERS[reader](CALLS[call](x, w))

    w = torch.ones(8, dtype=dtype, requires_grad=True)
    x = torch.empty_strided((2, 8, 8, 8), LAYOUTS[layout], dtype=dtype).normal_()
    x.requires_grad_()
    with interpreted():
        ours, eager = jit(program)(x, w), program(x, w)
        assert ours.stride() == eager.stride()
