"""Whether the lanes of a vector may stand in registers as words of memory have them.

A core that widens bf16 in SIMD registers has those of even places after a shift of the words, and
those of odd places after a mask. To have them in the order of memory takes three times as many
instructions, and half as many again on the way back. Where nothing asks which lane it is, any order
does, if it is the same for all that a loop reads and writes. fp32 in that order takes as many
instructions as it saves, so that only what is put in order once for many vectors may be fp32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.lane_windows import VectorAccess
from thunder_fuser.lower.lanes import LaneForms
from thunder_fuser.lower.scalar_graph import Load, ScalarGraph, forms
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectorize import ALWAYS, RegisterArray


def can_pair(
    graph: ScalarGraph,
    accesses: Sequence[RegisterArray],
    stores: Sequence[Store],
    lanes: LaneForms,
    kept: Collection[int] = (),
) -> bool:
    """Whether all lanes of memory are whole vectors of bf16, and no value depends on a lane's
    number.

    stores  those of vectors
    kept    the accesses, by number, that are loaded once for many vectors: they may be fp32
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
