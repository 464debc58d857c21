"""Paired lanes: lanes of a vector in registers in the order of even and odd halves of words.

A CPU core that widens bf16 in SIMD registers gets elements of even positions by a shift of the
words, and those of odd positions by a mask. Restoring the order of memory takes three times as many
instructions, and half as many again for a store. If no value depends on the lane index, any order
works that all loads and stores of a loop share. fp32 costs as many instructions in that order as it
saves, so that only arrays that are reordered once for many vectors may be fp32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.scalar_graph import Load, ScalarGraph, forms
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lane_windows import VectorAccess
from thunder_fuser.lower.vectors.lanes import LaneForms
from thunder_fuser.lower.vectors.vectorize import ALWAYS, RegisterArray


def can_pair(
    graph: ScalarGraph,
    accesses: Sequence[RegisterArray],
    stores: Sequence[Store],
    lanes: LaneForms,
    kept: Collection[int] = (),
) -> bool:
    """True if all non-uniform loads and all stores are whole vectors of bf16, and no value depends
    on the lane index.

    stores  vector stores
    kept    numbers of accesses that are loaded once for many vectors: they may be fp32
    """
    vectors = [k for k, access in enumerate(accesses) if not access.is_uniform]
    return (
        bool(vectors)
        and lanes.vector % 2 == 0
        and all(_is_whole(accesses[k], lanes, k in kept) for k in vectors)
        and all(s.tensor.dtype is DataType.BFloat16 and _in_order(s.windows, lanes) for s in stores)
        and not graph.checks
        and not any(
            lanes.varies(form)
            for node in graph
            if not isinstance(node, Load)
            for form in forms(node)
        )
    )


def _is_whole(access: RegisterArray, lanes: LaneForms, is_kept: bool) -> bool:
    if len(access.variants) != 1 or access.variants[0].conditions != ALWAYS:
        return False
    dtype = access.loads[0].dtype
    may_pair = dtype is DataType.BFloat16 or (is_kept and dtype is DataType.Float)
    return may_pair and _in_order(access.variants[0].windows, lanes)


def _in_order(windows: Sequence[VectorAccess], lanes: LaneForms) -> bool:
    if len(windows) != 1:
        return False
    (window,) = windows
    return window.is_in_order and window.is_aligned and window.width == lanes.vector
