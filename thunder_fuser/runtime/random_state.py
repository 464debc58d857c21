"""Random seeds in device memory, so that each replay of a CUDA graph draws new numbers.

A seed is a scalar kernel argument, and arguments are frozen when a graph is captured. During stream
capture, the seed is therefore a tensor (`generator.py`) that the graph fills at each replay, and
the fusion is rewritten to read its seed from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.ir.fusion import Fusion, RandomOp, Scalar, Val
from thunder_fuser.ir.rebuild import Rebuild


def with_seeds_in_memory(fusion: Fusion, inputs: Sequence[Any]) -> Fusion:
    """Return `fusion` with each scalar seed or offset for which `inputs` has a tensor replaced by a
    0-dimensional tensor input at the same position.
    """
    if not any(map(_is_seed, fusion.inputs, inputs)):
        return fusion
    states, others = set[Val](), set[Val]()
    for expr in fusion.exprs:
        state = {expr.seed, expr.offset} if isinstance(expr, RandomOp) else set[Val]()
        states |= state
        others |= set(expr.inputs) - state
    found = {
        v for v, x in zip(fusion.inputs, inputs, strict=False) if _is_seed(v, x) and v in states
    }
    if not found or found & others:
        return fusion
    new = _InMemory(fusion, found)
    for expr in fusion.exprs:
        new.copy(expr)
    return new.finish(fusion)


def _is_seed(formal: Val, actual: object) -> bool:
    """True if a tensor is given for a scalar, and has the type of a seed: int64, 0-dimensional."""
    is_tensor = isinstance(formal, Scalar) and isinstance(actual, torch.Tensor)
    return is_tensor and actual.dtype is torch.int64 and actual.dim() == 0  # type: ignore[attr-defined]


class _InMemory(Rebuild):
    def __init__(self, fusion: Fusion, states: set[Val]) -> None:
        self._states = states
        super().__init__(fusion)

    def _copy_input(self, value: Val) -> Val:
        if value in self._states:
            return self.builder.tensor([], value.dtype)
        return super()._copy_input(value)
