"""Changes of placement: their order along several mesh axes, and the communication of each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from thunder_fuser.ir.tables.collectives import sent, sent_of_call
from thunder_fuser.sharding.exchange import Exchange, exchange
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


class Change(NamedTuple):
    """A change of a tensor's sharding along one mesh axis."""

    axis: int
    before: Sharding
    after: Sharding

    @property
    def source(self) -> Placement:
        return self.before[self.axis]

    @property
    def target(self) -> Placement:
        return self.after[self.axis]


def changes(
    sizes: Sequence[int],
    now: Sharding,
    target: Sharding,
    is_known: Callable[[Sharding], bool] = lambda _: False,
) -> Iterator[Change]:
    """Yield the changes from one sharding to another, in order, but for those to shardings in which
    the tensor is known already.
    """
    if is_known(target):
        return
    while now != target:
        axis, placement = next_change(sizes, now, target)
        after = replaced(now, axis, placement)
        if not is_known(after):
            yield Change(axis, now, after)
        now = after


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


def replaced(sharding: Sharding, axis: int, placement: Placement) -> Sharding:
    """Return a sharding with another placement along one axis."""
    return (*sharding[:axis], placement, *sharding[axis + 1 :])


def _may_change(sizes: Sequence[int], now: Sharding, axis: int, target: Placement) -> bool:
    """True if an axis can change while the others are as they are: digits do not overlap, and all
    partial results are of one reduction.
    """
    after = replaced(now, axis, target)
    is_direct = (type(now[axis]), type(target)) in _CHANGES
    if not (is_direct and fits(sizes, after) and len(reductions_of(after)) < 2):
        return False
    change = Change(axis, now, after)
    is_exchange = isinstance(change.source, Shard) and isinstance(target, Shard)
    return not is_exchange or exchange_of(sizes, change) is not None


def exchange_of(sizes: Sequence[int], change: Change) -> Exchange | None:
    """Return the exchange that changes one shard to another; None if there is none, given the
    digits of the other axes.
    """
    source, target = change.source, change.target
    assert isinstance(source, Shard)
    assert isinstance(target, Shard)
    found = exchange(source, target)
    if found is None:
        return None
    even = fits(sizes, (*change.before, found.sent)) and fits(sizes, (*change.after, found.joined))
    return found if even else None


def communication(source: Placement, target: Placement, held: int, size: int) -> tuple[str, int]:
    """Return the collective between two placements along an axis of `size` devices, and the bytes
    that a device sends, at most, if it has `held` bytes before. "slice" sends nothing. Shards that
    cannot be exchanged are gathered.
    """
    match source, target:
        case (Shard(), Replicate()):
            kind = "all_gather"
        case (Shard(), Shard()):
            found = exchange(source, target)
            if found is not None:
                return "all_to_all", sent_of_call("all_to_all", held, found.attributes(0))
            kind = "all_gather"
        case (Partial(), Shard()):
            kind = "reduce_scatter"
        case (Partial(), _):
            kind = "all_reduce"
        case _:
            return "slice", 0
    return kind, sent(kind, held * size if kind == "all_gather" else held, size)
