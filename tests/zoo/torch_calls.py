"""Calls that have kernels of their own in torch, and the shapes of their operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS, COLUMNS = (64, 96), (96,)


IMAGE, CHANNELS = (4, 8, 6, 6), (8,)


CALLS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    **{
        name: (getattr(F, name), (ROWS,))
        for name in (
            *("relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "softplus"),
            *("hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "softshrink"),
            *("hardshrink", "glu"),
        )
    },
    **{name: (getattr(torch, name), (ROWS,)) for name in ("tanh", "sigmoid", "exp", "sin")},
    "gelu, tanh": (partial(F.gelu, approximate="tanh"), (ROWS,)),
    "elu, alpha": (partial(F.elu, alpha=1.5), (ROWS,)),
    "celu, alpha": (partial(F.celu, alpha=1.3), (ROWS,)),
    "softplus, beta": (partial(F.softplus, beta=2.0, threshold=3.0), (ROWS,)),
    "glu of rows": (partial(F.glu, dim=0), (ROWS,)),
    "softmax": (partial(torch.softmax, dim=-1), (ROWS,)),
    "softmax of columns": (partial(torch.softmax, dim=0), (ROWS,)),
    "softmin": (partial(F.softmin, dim=-1), (ROWS,)),
    "log_softmax": (partial(torch.log_softmax, dim=-1), (ROWS,)),
    "logsumexp": (partial(torch.logsumexp, dim=-1), (ROWS,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), (ROWS, COLUMNS, COLUMNS)),
    "layer_norm, bias": (lambda x, b: F.layer_norm(x, b.shape, None, b), (ROWS, COLUMNS)),
    "layer_norm, bare": (lambda x: F.layer_norm(x, x.shape[1:]), (ROWS,)),
    "layer_norm of two": (
        lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        (IMAGE, IMAGE[2:], IMAGE[2:]),
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), (ROWS, COLUMNS)),
    "rms_norm, bare": (lambda x: F.rms_norm(x, x.shape[1:]), (ROWS,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, CHANNELS, CHANNELS)),
    "group_norm, one each": (lambda x, w, b: F.group_norm(x, 8, w, b), (IMAGE, CHANNELS, CHANNELS)),
    "instance_norm": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        (IMAGE, CHANNELS, CHANNELS),
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (IMAGE, CHANNELS, CHANNELS),
    ),
    "batch_norm of rows": (lambda x: F.batch_norm(x, None, None, training=True), (ROWS,)),
    "mse_loss": (partial(F.mse_loss, reduction="none"), (ROWS, ROWS)),
    "huber_loss": (F.huber_loss, (ROWS, ROWS)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(len(x), device=x.device)), (ROWS,)),
}
