"""Transforms of a view for the shard that one device holds of its operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from thunder_fuser.errors import InternalError
from thunder_fuser.ir.domain import (
    Expand,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    static,
)
from thunder_fuser.ir.fusion import MoveOp
from thunder_fuser.sharding.mesh import Shard, Sharding


def local_steps(expr: MoveOp, read: Sharding, sizes: Sequence[int]) -> list[Transform]:
    """Return the transforms of a view on one device. `read`: sharding of its operand; `sizes`:
    local sizes of its result, which slices and expansions are adapted to.
    """
    over = [1] * expr.input.rank
    for placement in read:
        if isinstance(placement, Shard):
            over[placement.dim] *= placement.size
    transforms = expr.output.domain.transforms
    # Labels of the dimensions, by which expansions are found in the result.
    axes: list[int] = list(range(expr.input.rank))
    new = count(-1, -1)
    shares = dict(enumerate(over))
    steps: list[Transform] = []
    expansions: dict[int, int] = {}
    for step in transforms:
        match step:
            case Resize(axis, left, right):
                share = shares.get(axes[axis], 1)
                steps.append(Resize(axis, static(left) // share, static(right) // share))
                continue
            case NewBroadcast(axis):
                axes.insert(axis, next(new))
            case Squeeze(axis):
                del axes[axis]
            case Reorder(order):
                axes = [axes[k] for k in order]
            case Expand(axis, _):
                expansions[len(steps)] = axes[axis]
            case _ if set(over) != {1}:
                raise InternalError(f"{expr.op} of a shard has a {type(step).__name__}")
            case Split(axis):
                axes[axis : axis + 1] = [next(new), next(new)]
            case Merge(axis):
                axes[axis : axis + 2] = [next(new)]
        steps.append(step)
    for n, label in expansions.items():
        step = steps[n]
        assert isinstance(step, Expand)
        if label in axes:
            steps[n] = replace(step, size=sizes[axes.index(label)])
    return steps
