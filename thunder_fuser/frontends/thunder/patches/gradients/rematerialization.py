"""Thunder's rematerialization leaves fusions of this executor as they are.

The passes of other fusion executors, such as that of torch.compile, run it over the whole trace. It
moves primitives from a fusion of the forward into one of the backward, by the dtypes of tensors
alone, and recomputes from memory that an update has overwritten since: wrong gradients. What the
fusions of this executor save and recompute is decided when they are made
(`segment/regions/rematerialization.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from thunder.core import rematerialization
from thunder.core.symbol import BoundSymbol

Pairs = Sequence[tuple[BoundSymbol, BoundSymbol]]


def _others(original: Callable[..., Pairs], *args: Any, **kwargs: Any) -> Pairs:
    """Return the pairs of fusions, one of which reads results of the other, that may be changed."""
    return tuple(
        pair
        for pair in original(*args, **kwargs)
        if not any(getattr(fusion.sym.executor, "patches_thunder", False) for fusion in pair)
    )


def register() -> None:
    """Patch which fusions Thunder's rematerialization changes."""
    rematerialization.find_fusion_producer_consumer_pairs = partial(
        _others, rematerialization.find_fusion_producer_consumer_pairs
    )
