"""Where `x[index] = value` writes, as integers: boxes of evenly spaced positions.

Ints, slices and inserted axes make one box. A list names points, and each run of evenly spaced ones
along a dimension is one box; where two boxes meet, the later one is written last. A mask of
consecutive dimensions, or of none, selects from its box. Index tensors are not regions: their
positions are data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, TypeVar

MOST_BOXES = 8
"""Boxes that a kernel selects between; a list of more is a table, which a kernel does not hold."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """`count` positions of a dimension of `size`: `start`, `start + step` and so on."""

    size: int
    start: int
    step: int = 1
    count: int = 1

    @property
    def end(self) -> int:
        """One more than the last position."""
        return self.start + (self.count - 1) * self.step + 1

    @property
    def padding(self) -> tuple[int, int, int]:
        """Widths before, after and between `count` elements that put each at its position."""
        return self.start, self.size - self.end, self.step - 1


@dataclass(frozen=True, slots=True)
class Box:
    """The points of a run in each dimension of `x`, none empty.

    points  which of the listed points these are
    dims    for each axis of `x[index]` its dimension of `x`; None for one that has a single place
    """

    runs: tuple[Run, ...]
    points: range
    dims: tuple[int | None, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(run.count for run in self.runs)

    @property
    def is_whole(self) -> bool:
        """True if these are all points of `x`."""
        return all(run.count == run.size for run in self.runs)

    @property
    def order(self) -> tuple[int, ...]:
        """The axes that have a dimension, numbered without the others, in order of dimensions."""
        dims = [d for d in self.dims if d is not None]
        return tuple(sorted(range(len(dims)), key=dims.__getitem__))


@dataclass(frozen=True, slots=True)
class Region:
    """Where an index writes.

    sizes   those of `x[index]`, with 1 for the number of places that a mask selects
    points  the axis of `x[index]` for listed or selected points, or None
    mask    the first dimension of `x` that a mask is for, or None
    """

    sizes: tuple[int, ...]
    points: int | None
    boxes: tuple[Box, ...]
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """An entry of an index that is a tensor of bools."""

    shape: tuple[int, ...]


def entries(index: object) -> list[Any]:
    """Return the entries of an index."""
    return list(index) if isinstance(index, tuple) else [index]


def region(shape: Sequence[int], index: Sequence[object]) -> Region | None:
    """Return where an index of these entries writes into a tensor of this shape; None for one that
    is no region, or is torch's error.
    """
    given = _without_ellipsis(shape, index)
    axes = None if given is None else _axes(shape, given)
    if axes is None:
        return None
    listed = [axis for axis in axes if isinstance(axis, _Listed)]
    masks = [axis for axis in axes if isinstance(axis, _Selected)]
    lengths = {len(axis.positions) for axis in listed}
    if len(masks) + bool(listed) > 1 or len(lengths) > 1:
        return None
    made = _Windows(shape, axes)
    mask = next((axis.dims.start for axis in masks), None)
    return Region(made.sizes, made.points, tuple(made.boxes()), mask)


# ---- one axis for each entry


@dataclass(frozen=True, slots=True)
class _Kept:
    run: Run
    dim: int


@dataclass(frozen=True, slots=True)
class _Fixed:
    position: int
    dim: int


@dataclass(frozen=True, slots=True)
class _Inserted:
    pass


@dataclass(frozen=True, slots=True)
class _Listed:
    positions: tuple[int, ...]
    dim: int


@dataclass(frozen=True, slots=True)
class _Selected:
    dims: range


_Axis = _Kept | _Fixed | _Inserted | _Listed | _Selected


def _rank(entry: object) -> int:
    """Return how many dimensions an entry is for."""
    if isinstance(entry, Mask):
        return len(entry.shape)
    return 0 if entry is None else 1


def _without_ellipsis(shape: Sequence[int], given: Sequence[object]) -> list[object] | None:
    """Return the entries for all dimensions, or None if there are too many."""
    places = [k for k, entry in enumerate(given) if entry is Ellipsis]
    missing = len(shape) - sum(_rank(entry) for entry in given if entry is not Ellipsis)
    if missing < 0 or len(places) > 1:
        return None
    place = places[0] if places else len(given)
    return [*given[:place], *[slice(None)] * missing, *given[place + 1 :]]


def _axes(shape: Sequence[int], given: Sequence[object]) -> list[_Axis] | None:
    found: list[_Axis] = []
    dim = 0
    for entry in given:
        axis = _axis(shape, dim, entry)
        if axis is None:
            return None
        found.append(axis)
        dim += _rank(entry)
    return found


def _axis(shape: Sequence[int], dim: int, entry: object) -> _Axis | None:
    if entry is None:
        return _Inserted()
    if isinstance(entry, Mask):
        dims = range(dim, dim + len(entry.shape))
        fits = entry.shape == tuple(shape[dims.start : dims.stop])
        return _Selected(dims) if fits else None
    size = shape[dim]
    if isinstance(entry, slice):
        if entry.step is not None and entry.step < 1:
            return None
        places = range(*entry.indices(size))
        return _Kept(Run(size, places.start, places.step, len(places)), dim)
    if isinstance(entry, list):
        if all(type(n) is bool for n in entry) and len(entry) == size:
            return _Listed(tuple(n for n, is_chosen in enumerate(entry) if is_chosen), dim)
        if all(type(n) is int and -size <= n < size for n in entry):
            return _Listed(tuple(n % size for n in entry), dim)
        return None
    return _Fixed(entry % size, dim) if type(entry) is int and -size <= entry < size else None


# ---- boxes


class _Windows:
    """The axes of `x[index]`, and its boxes. The points of lists, or a mask, are one axis: in the
    place of the first entry if these are neighbours but for ints, else the first of all.
    """

    def __init__(self, shape: Sequence[int], axes: Sequence[_Axis]) -> None:
        self._axes = axes
        shown = [axis for axis in axes if not isinstance(axis, _Fixed)]
        places = [k for k, axis in enumerate(shown) if isinstance(axis, _Listed | _Selected)]
        apart = len(places) > 1 and places[-1] - places[0] >= len(places)
        self.points = None if not places else 0 if apart else places[0]
        others = [axis for axis in shown if isinstance(axis, _Kept | _Inserted)]
        self._dims = [axis.dim if isinstance(axis, _Kept) else None for axis in others]
        sizes = [axis.run.count if isinstance(axis, _Kept) else 1 for axis in others]
        self._listed = [axis for axis in axes if isinstance(axis, _Listed)]
        count = len(self._listed[0].positions) if self._listed else 1
        self.sizes = tuple(self._with_points(sizes, count))
        self._whole = [*starmap(self._run, enumerate(shape))]

    def _with_points(self, values: Sequence[T], of_points: T) -> list[T]:
        if self.points is None:
            return [*values]
        return [*values[: self.points], of_points, *values[self.points :]]

    def _run(self, dim: int, size: int) -> Run:
        """Return the positions in one dimension, all of them for one that is listed."""
        for axis in self._axes:
            if isinstance(axis, _Kept) and axis.dim == dim:
                return axis.run
            if isinstance(axis, _Fixed) and axis.dim == dim:
                return Run(size, axis.position)
        return Run(size, 0, 1, size)

    def boxes(self) -> Iterator[Box]:
        if not all(self.sizes) or not all(run.count for run in self._whole):
            return
        if not self._listed:
            yield Box(tuple(self._whole), range(1), tuple(self._with_points(self._dims, None)))
            return
        points = [*zip(*(axis.positions for axis in self._listed), strict=True)]
        for taken, moving, step in _progressions(points):
            runs = [*self._whole]
            for k, axis in enumerate(self._listed):
                one = Run(runs[axis.dim].size, points[taken.start][k])
                runs[axis.dim] = replace(one, step=step, count=len(taken)) if k == moving else one
            dim = None if moving is None else self._listed[moving].dim
            yield Box(tuple(runs), taken, tuple(self._with_points(self._dims, dim)))


def _progressions(points: Sequence[tuple[int, ...]]) -> Iterator[tuple[range, int | None, int]]:
    """Split points, in order, into runs along one coordinate: which points, the coordinate (None
    for a single point), and its step.
    """
    start = 0
    while start < len(points):
        end, moving, step = start + 1, None, 1
        if end < len(points) and (found := _step(*points[start : end + 1])) is not None:
            moving, step = found
            while end < len(points) and _step(*points[end - 1 : end + 1]) == found:
                end += 1
        yield range(start, end), moving, step
        start = end


def _step(point: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the coordinate in which the second of two points is further, and how far; None if
    there is no such one, or it is not the only one that differs.
    """
    differing = [(k, b - a) for k, (a, b) in enumerate(zip(point, other, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and differing[0][1] > 0 else None
