"""DeviceMesh and placements: which elements of a tensor a device has.

Of each mesh axis a tensor is sharded, replicated, or a partial result. A shard is a digit of an
index: the devices along an axis of size `d` have the elements with `(i // width) % d` equal to
their coordinate, where `i` is the index along one dimension. A width of `extent / d` is an outer
split (contiguous chunks), a width of 1 an inner one (cyclic), what is between is strided. Digits of
several axes may share a dimension as long as they do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from thunder_fuser.errors import FuserValueError


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """Devices in an n-dimensional grid, numbered row-major.

    Raises FuserValueError for an axis without devices, and for names that are not one an axis.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.names or tuple(f"axis{k}" for k in range(len(self.shape)))
        object.__setattr__(self, "names", names)
        if min(self.shape, default=0) < 1:
            raise FuserValueError(f"DeviceMesh: sizes {list(self.shape)}; each must be at least 1")
        if len(set(names)) != len(self.shape):
            raise FuserValueError(
                f"DeviceMesh: {len(self.shape)} axes and the names {', '.join(names)}; give each "
                "axis one of its own"
            )

    @property
    def size(self) -> int:
        """How many devices there are."""
        return math.prod(self.shape)

    def axis(self, name: str) -> int:
        """The position of an axis. FuserValueError if there is none of that name."""
        if name not in self.names:
            raise FuserValueError(f"the mesh has no axis {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)

    def span(self, axis: int) -> int:
        """Within how many numbers the ranks along an axis lie."""
        return math.prod(self.shape[axis:])

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a device is."""
        found = []
        for size in reversed(self.shape):
            rank, at = divmod(rank, size)
            found.append(at)
        return tuple(reversed(found))

    def ranks(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """All devices, with their coordinates."""
        yield from enumerate(product(*map(range, self.shape)))

    def __str__(self) -> str:
        return " x ".join(f"{n} {s}" for n, s in zip(self.names, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Shard:
    """A digit of the index along `dim`: a device has what has its coordinate there."""

    dim: int
    width: int
    size: int

    def __str__(self) -> str:
        return f"Shard({self.dim}, width={self.width})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every device along the axis has the same elements."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every device along the axis has a part of each element; the element is their sum, largest,
    smallest or product.
    """

    op: str = "sum"

    def __str__(self) -> str:
        return f"Partial({self.op})"


Placement = Shard | Replicate | Partial
Sharding = tuple[Placement, ...]
"""A placement for each axis of a mesh."""
REPLICATE = Replicate()


def outer(dim: int, extent: int, size: int) -> Shard:
    """Contiguous chunks. FuserValueError where they would not be equal."""
    check_shard(Shard(dim, max(extent // size, 1), size), extent)
    return Shard(dim, extent // size, size)


class Factor(NamedTuple):
    """A factor of an extent; `axis` is the mesh axis that it is spread over, or None."""

    extent: int
    axis: int | None


def check_shard(shard: Shard, extent: int) -> None:
    """FuserValueError where devices would have different numbers of elements."""
    if extent % (shard.width * shard.size):
        raise FuserValueError(
            f"dimension {shard.dim} of {extent} elements is sharded over {shard.size} devices "
            f"with width {shard.width}: {extent} is no multiple of {shard.width * shard.size}; "
            "pad it, or shard another dimension"
        )


def factors(extent: int, dim: int, sharding: Sharding) -> list[Factor]:
    """The factors of a dimension, outermost first. FuserValueError where shards overlap."""
    shards = [
        (p.width, p.size, k)
        for k, p in enumerate(sharding)
        if isinstance(p, Shard) and p.dim == dim
    ]
    found: list[Factor] = []
    below = 1
    for width, size, axis in sorted(shards):
        check_shard(Shard(dim, width, size), extent)
        if width % below:
            raise FuserValueError(
                f"two mesh axes shard dimension {dim} with digits that overlap: one ends at "
                f"{below}, another begins at {width}"
            )
        found += [Factor(width // below, None), Factor(size, axis)]
        below = width * size
    return [Factor(extent // below, None), *reversed(found)]


def fits(sizes: Sequence[int], sharding: Sharding) -> bool:
    """Whether a tensor of these sizes can be sharded so."""
    if any(isinstance(p, Shard) and p.dim >= len(sizes) for p in sharding):
        return False
    try:
        for dim, extent in enumerate(sizes):
            factors(extent, dim, sharding)
    except FuserValueError:
        return False
    return True


def local_sizes(sizes: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    """Of what one device has."""
    found = list(sizes)
    for placement in sharding:
        if isinstance(placement, Shard):
            found[placement.dim] //= placement.size
    return tuple(found)


def shard_of(tensor: torch.Tensor, sharding: Sharding, at: Sequence[int]) -> torch.Tensor:
    """What the device at some coordinates has of a whole tensor; of a partial result, all of it on
    the first device along the axis, and nothing (the neutral element of a sum) on others.
    """
    found = tensor
    for dim in range(tensor.ndim):
        parts = factors(tensor.shape[dim], dim, sharding)
        found = found.unflatten(dim, [p.extent for p in parts])
        for k in reversed(range(len(parts))):
            axis = parts[k].axis
            if axis is not None:
                found = found.select(dim + k, at[axis])
        kept = sum(p.axis is None for p in parts)
        found = found.flatten(dim, dim + kept - 1)
    for axis, placement in enumerate(sharding):
        if isinstance(placement, Partial) and at[axis]:
            found = torch.zeros_like(found)
    return found.contiguous()


def whole_of(
    shards: Sequence[torch.Tensor], sizes: Sequence[int], sharding: Sharding, mesh: DeviceMesh
) -> torch.Tensor:
    """The tensor that devices have shards of, in the order of their ranks."""
    whole = torch.empty(tuple(sizes), dtype=shards[0].dtype)
    for rank, at in mesh.ranks():
        view = whole
        dim = 0
        for extent_dim, extent in enumerate(sizes):
            parts = factors(extent, extent_dim, sharding)
            view = view.unflatten(dim, [p.extent for p in parts])
            for k in reversed(range(len(parts))):
                axis = parts[k].axis
                if axis is not None:
                    view = view.select(dim + k, at[axis])
            dim += sum(p.axis is None for p in parts)
        view.copy_(shards[rank].reshape(view.shape))
    return whole
