"""DeviceMesh and placements: the elements of a tensor that each device holds.

Along each mesh axis a tensor is sharded, replicated, or a partial result. A shard is a digit of an
index: the devices along an axis of size `d` hold the elements with `(i // width) % d` equal to
their coordinate, where `i` is the index along one dimension. A width of `extent / d` is an outer
split (contiguous chunks), a width of 1 an inner one (cyclic), and widths between are strided.
Digits of several axes may share a dimension as long as they do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dtypes import from_torch
from thunder_fuser.ir.tables.collectives import folded, identity


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """Devices in an n-dimensional grid, numbered row-major.

    Raises FuserTypeError for anything but ints and names, FuserValueError for an axis without
    devices, and unless each axis has its own name.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for value, kind in ((self.shape, int), (self.names, str)):
            if not isinstance(value, (list, tuple)) or not all(type(v) is kind for v in value):
                raise FuserTypeError(
                    "DeviceMesh: expected the size and the name of each axis, as in "
                    f'DeviceMesh((2, 4), ("dp", "tp")), got {value!r}'
                )
        names = tuple(self.names) or tuple(f"axis{k}" for k in range(len(self.shape)))
        object.__setattr__(self, "shape", tuple(self.shape))
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
        """Number of devices."""
        return math.prod(self.shape)

    def axis(self, name: str) -> int:
        """Return the position of an axis. Raises FuserValueError if there is none of that name."""
        if name not in self.names:
            raise FuserValueError(f"the mesh has no axis {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)

    def span(self, axis: int) -> int:
        """Return the size of the range of consecutive ranks that contains an axis' devices."""
        return math.prod(self.shape[axis:])

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a device."""
        found = []
        for size in reversed(self.shape):
            rank, at = divmod(rank, size)
            found.append(at)
        return tuple(reversed(found))

    def ranks(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield all ranks, with their coordinates."""
        yield from enumerate(product(*map(range, self.shape)))

    def __str__(self) -> str:
        return " x ".join(f"{n} {s}" for n, s in zip(self.names, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard by a digit of the index along `dim`: a device holds the elements `i` with `(i // width)
    % size` equal to its coordinate.
    """

    dim: int
    width: int
    size: int

    def __str__(self) -> str:
        return f"Shard({self.dim}, width={self.width})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Replication: every device along the axis holds the same elements."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True, slots=True)
class Partial:
    """Partial results: the element is the reduction `op` (sum, max, min or prod) over the devices
    along the axis.
    """

    op: str = "sum"

    def __str__(self) -> str:
        return f"Partial({self.op})"


Placement = Shard | Replicate | Partial
Sharding = tuple[Placement, ...]
"""A placement for each axis of a mesh."""
REPLICATE = Replicate()


def outer(dim: int, extent: int, size: int) -> Shard:
    """Return the shard into contiguous chunks. Raises FuserValueError for unequal chunks."""
    check_shard(Shard(dim, max(extent // size, 1), size), extent)
    return Shard(dim, extent // size, size)


class Factor(NamedTuple):
    """A factor of an extent; `axis` is the mesh axis that shards it, or None."""

    extent: int
    axis: int | None


def check_shard(shard: Shard, extent: int) -> None:
    """Raise FuserValueError if devices would hold different numbers of elements."""
    if extent % (shard.width * shard.size):
        raise FuserValueError(
            f"dimension {shard.dim} of {extent} elements is sharded over {shard.size} devices "
            f"with width {shard.width}: {extent} is no multiple of {shard.width * shard.size}; "
            "pad it, or shard another dimension"
        )


def reductions_of(sharding: Sequence[Placement]) -> dict[str, int]:
    """Return the reductions of partial results, with a mesh axis of each."""
    return {p.op: axis for axis, p in enumerate(sharding) if isinstance(p, Partial)}


def check_partial(sharding: Sequence[Placement], name: str) -> None:
    """Raise FuserValueError for different reductions along different axes, whose order counts."""
    ops = reductions_of(sharding)
    if len(ops) > 1:
        told = ", ".join(f"{op} along mesh axis {axis}" for op, axis in ops.items())
        raise FuserValueError(
            f"{name}: partial results of several kinds ({told}) have no one value; reduce along "
            "all axes but one before"
        )


def factors(extent: int, dim: int, sharding: Sharding) -> list[Factor]:
    """Return the factors of a dimension, outermost first. Raises FuserValueError for overlapping or
    uneven shards.
    """
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
    """True if a tensor of these sizes can have this sharding."""
    if any(isinstance(p, Shard) and p.dim >= len(sizes) for p in sharding):
        return False
    try:
        for dim, extent in enumerate(sizes):
            factors(extent, dim, sharding)
    except FuserValueError:
        return False
    return True


def local_sizes(sizes: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    """Return the sizes of one device's shard."""
    found = list(sizes)
    for placement in sharding:
        if isinstance(placement, Shard):
            found[placement.dim] //= placement.size
    return tuple(found)


def shard_of(tensor: torch.Tensor, sharding: Sharding, at: Sequence[int]) -> torch.Tensor:
    """Return the shard of a whole tensor on the device at coordinates `at`. A partial result is all
    on the first device along the axis; the others have the identity of its reduction.
    """
    found = _held(tensor, sharding, at).reshape(local_sizes(tensor.shape, sharding))
    for axis, placement in enumerate(sharding):
        if isinstance(placement, Partial) and at[axis]:
            found = torch.full_like(found, identity(placement.op, from_torch(tensor.dtype)))
    return found.contiguous()


def whole_of(
    shards: Sequence[torch.Tensor], sizes: Sequence[int], sharding: Sharding, mesh: DeviceMesh
) -> torch.Tensor:
    """Assemble a tensor from the shards of all devices, given by rank, and reduce partial results
    along one mesh axis after the other, the last one first.
    """
    ops = {axis: p.op for axis, p in enumerate(sharding) if isinstance(p, Partial)}
    wholes: dict[tuple[int, ...], torch.Tensor] = {}
    for rank, at in mesh.ranks():
        part = tuple(at[axis] for axis in ops)
        if part not in wholes:
            wholes[part] = torch.empty(tuple(sizes), dtype=shards[rank].dtype)
        held = _held(wholes[part], sharding, at)
        held.copy_(shards[rank].reshape(held.shape))
    for op in reversed(ops.values()):
        parts: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for (*before, _), whole in wholes.items():
            parts.setdefault(tuple(before), []).append(whole)
        wholes = {before: folded(each, op) for before, each in parts.items()}
    return wholes[()]


def _held(whole: torch.Tensor, sharding: Sharding, at: Sequence[int]) -> torch.Tensor:
    """Return the view of what a device holds of a tensor, a dimension for each factor that no axis
    shards.
    """
    found, dim = whole, 0
    for whole_dim, extent in enumerate(whole.shape):
        parts = factors(extent, whole_dim, sharding)
        found = found.unflatten(dim, [p.extent for p in parts])
        for k in reversed(range(len(parts))):
            axis = parts[k].axis
            if axis is not None:
                found = found.select(dim + k, at[axis])
        dim += sum(p.axis is None for p in parts)
    return found
