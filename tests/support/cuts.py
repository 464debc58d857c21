"""Random programs with more cuts: the same results through more kernels and boundaries."""

from __future__ import annotations

import random

from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.rebuild import Rebuild


def with_cuts(fusion: Fusion, seed: int, probability: float = 0.3) -> Fusion:
    """The fusion with a segment_set behind a part of its tensors, what is read before it included.

    Inputs, outputs and updates keep their order, so the results are those of the fusion.
    """
    rng = random.Random(seed)
    new = Rebuild(fusion)
    for expr in fusion.exprs:
        made = new.copy(expr)
        if isinstance(made, TensorView) and rng.random() < probability:
            new.replace(expr.output, new.builder.segment_set(made))
    return new.finish(fusion)
