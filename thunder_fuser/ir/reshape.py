"""Reshapes as domain transforms: merge each minimal group of dimensions, then split it again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.domain import (
    Assume,
    Extent,
    IterDomain,
    Merge,
    NewBroadcast,
    Split,
    Squeeze,
    Transform,
    constant_if_known,
)


def product(extents: Sequence[Extent]) -> Extent:
    """Product of extents; 1 for none."""
    result: Extent = 1
    for extent in extents:
        result = extent if _is(result, 1) else result * extent
    return constant_if_known(result)


def infer_shape(sizes: Sequence[Extent], new_shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """`new_shape` with its one -1 replaced by the size that keeps the number of elements.

    FuserValueError for several -1, a -1 with a size of 0, or a size that does not divide.
    """
    holes = [k for k, size in enumerate(new_shape) if _is(size, -1)]
    if len(holes) > 1:
        raise FuserValueError(f"reshape to {list(new_shape)}: only one dimension can be -1")
    if not holes:
        return tuple(new_shape)
    known = product([size for size in new_shape if not _is(size, -1)])
    total = product(sizes)
    if _is(known, 0):
        raise FuserValueError(
            f"reshape to {list(map(str, new_shape))}: with a size of 0, -1 could be anything"
        )
    if isinstance(known, int) and isinstance(total, int):
        if known == 0 or total % known:
            raise FuserValueError(
                f"reshape of {list(sizes)} to {list(new_shape)}: {total} elements do not divide "
                f"into groups of {known}"
            )
        missing: Extent = total // known
    else:
        missing = total // known
    return tuple(missing if _is(size, -1) else size for size in new_shape)


def reshape_program(dims: Sequence[IterDomain], new_shape: Sequence[Extent]) -> list[Transform]:
    """Transforms from `dims` to `new_shape`, which must have as many elements.

    Dimensions of size 1 are squeezed and inserted; the others are grouped greedily from the left
    into minimal groups of equal products, so that unrelated dimensions stay unrelated.
    """
    program: list[Transform] = [
        Squeeze(k) for k in reversed(range(len(dims))) if _is(dims[k].size, 1)
    ]
    old = [d.size for d in dims if not _is(d.size, 1)]
    new = [size for size in new_shape if not _is(size, 1)]
    axis = 0
    for before, after in _groups(old, new):
        program += _regrouped(axis, before, after)
        axis += len(after)
    program += [NewBroadcast(k) for k, size in enumerate(new_shape) if _is(size, 1)]
    return program


def _regrouped(axis: int, before: list[Extent], after: list[Extent]) -> list[Transform]:
    """Transforms of the dimensions `before`, from position `axis` on, into `after`."""
    steps: list[Transform] = [Merge(axis) for _ in before[1:]]
    if not before:
        steps.append(NewBroadcast(axis))
    steps += [Split(axis + k, n, product(after[k + 1 :])) for k, n in enumerate(after[:-1])]
    if len(after) <= 1 and not _is(product(before), product(after)):
        steps.append(Assume(axis, product(after)))
    if not after:
        steps.append(Squeeze(axis))
    return steps


def _groups(
    old: Sequence[Extent], new: Sequence[Extent]
) -> list[tuple[list[Extent], list[Extent]]]:
    if any(_is(size, 0) for size in (*old, *new)):
        return [(list(old), list(new))] if old != new else [([size], [size]) for size in old]
    if not _known([*old, *new]):
        return _equal_ends(list(old), list(new))
    groups: list[tuple[list[Extent], list[Extent]]] = []
    left, right = ([n for n in sizes if isinstance(n, int)] for sizes in (old, new))
    while left or right:
        before, after = left[:1], right[:1]
        del left[:1], right[:1]
        while math.prod(before) != math.prod(after):
            if math.prod(before) < math.prod(after) and left:
                before.append(left.pop(0))
            elif right:
                after.append(right.pop(0))
            else:
                raise FuserValueError(
                    f"reshape of {list(old)} to {list(new)}: "
                    f"{math.prod(map(int, old))} elements become {math.prod(map(int, new))}"
                )
        groups.append((list(before), list(after)))
    return groups


def _equal_ends(old: list[Extent], new: list[Extent]) -> list[tuple[list[Extent], list[Extent]]]:
    """Groups of symbolic shapes: equal dimensions at both ends are kept, the middle is one."""
    head: list[tuple[list[Extent], list[Extent]]] = []
    tail: list[tuple[list[Extent], list[Extent]]] = []
    while old and new and _is(old[0], new[0]) and (len(old) == 1) == (len(new) == 1):
        head.append(([old.pop(0)], [new.pop(0)]))
    while old and new and _is(old[-1], new[-1]) and (len(old) == 1) == (len(new) == 1):
        tail.insert(0, ([old.pop()], [new.pop()]))
    middle = [(old, new)] if old or new else []
    return head + middle + tail


def _known(sizes: Sequence[Extent]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _is(a: Extent, b: Extent) -> bool:
    """True if provably equal: forms are interned, so identity is equality."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)
