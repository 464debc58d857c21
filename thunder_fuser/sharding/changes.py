"""Order in which the placements of a tensor change along several mesh axes."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.sharding.mesh import (
    REPLICATE,
    Partial,
    Placement,
    Replicate,
    Shard,
    Sharding,
    fits,
    reductions_of,
)

_CHANGES: tuple[tuple[type[Placement], type[Placement]], ...] = (
    (Replicate, Shard),
    (Partial, Shard),
    (Shard, Shard),
    (Partial, Replicate),
    (Shard, Replicate),
    (Replicate, Partial),
    (Shard, Partial),
)
"""Direct changes along an axis, those first that leave a device the fewest elements: collectives
send less after them."""


def next_change(sizes: Sequence[int], now: Sharding, target: Sharding) -> tuple[int, Placement]:
    """Return the mesh axis that changes first, and its next placement. An axis whose digit another
    one still has waits for it; if all wait, one is gathered or reduced.
    """
    changed = [axis for axis in range(len(now)) if now[axis] != target[axis]]
    ready = [axis for axis in changed if _may_change(sizes, now, axis, target[axis])]
    if ready:
        axis = min(ready, key=lambda k: _CHANGES.index((type(now[k]), type(target[k]))))
        return axis, target[axis]
    return next(k for k in changed if not isinstance(now[k], Replicate)), REPLICATE


def _may_change(sizes: Sequence[int], now: Sharding, axis: int, target: Placement) -> bool:
    """True if an axis can change while the others are as they are: digits do not overlap, and all
    partial results are of one reduction.
    """
    after = (*now[:axis], target, *now[axis + 1 :])
    is_direct = (type(now[axis]), type(target)) in _CHANGES
    return is_direct and fits(sizes, after) and len(reductions_of(after)) < 2
