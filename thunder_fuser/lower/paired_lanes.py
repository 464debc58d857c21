"""Whether the lanes of a vector may stand in registers as words of memory have them.

A core that widens bf16 in SIMD registers has those of even places after a shift of the words, and
those of odd places after a mask. To have them in the order of memory takes three times as many
instructions, and half as many again on the way back. Where nothing asks which lane it is, any order
does, if it is the same for all that a loop reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.lane_windows import VectorAccess
from thunder_fuser.lower.lanes import LaneForms
from thunder_fuser.lower.scalar_graph import Load, ValueGraph, forms
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectorize import ALWAYS, RegisterArray


def can_pair(
    graph: ValueGraph,
    accesses: Sequence[RegisterArray],
    stores: Sequence[Store],
    lanes: LaneForms,
) -> bool:
    """Whether all lanes of memory are whole vectors of bf16, and no value depends on a lane's
    number.

    stores  those of vectors
    """
    vectors = [access for access in accesses if not access.is_uniform]
    return (
        bool(vectors)
        and lanes.vector % 2 == 0
        and all(_is_whole(access, lanes) for access in vectors)
        and all(_is_paired(s.tensor.dtype, s.windows, lanes) for s in stores)
        and not graph.checks
        and not any(
            lanes.varies(form)
            for node in graph
            if not isinstance(node, Load)
            for form in forms(node)
        )
    )


def _is_whole(access: RegisterArray, lanes: LaneForms) -> bool:
    if len(access.variants) != 1 or access.variants[0].conditions != ALWAYS:
        return False
    return _is_paired(access.loads[0].dtype, access.variants[0].windows, lanes)


def _is_paired(dtype: DataType, windows: Sequence[VectorAccess], lanes: LaneForms) -> bool:
    if dtype is not DataType.BFloat16 or len(windows) != 1:
        return False
    (window,) = windows
    return window.is_in_order and window.is_aligned and window.width == lanes.vector
