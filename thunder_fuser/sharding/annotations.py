"""User annotations of tensors on a mesh: names, axes and dimensions, as Python values or text."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.sharding.mesh import (
    REPLICATE,
    DeviceMesh,
    Placement,
    Shard,
    Sharding,
    check_shard,
)

Placed = Mapping[str, Mapping[str, int | Placement]]
"""By patterns of names (`*.up.weight`), then by names of mesh axes: the dimension that is sharded
into contiguous chunks, or a placement. If several patterns match, the last one counts; axes that
are not named replicate."""

_MESH = re.compile(r"([A-Za-z_]*)(\d+)")


def mesh_of(text: str) -> DeviceMesh:
    """Parse a mesh: `2x4`, or with names `dp2xtp4`. Raises FuserValueError for anything else."""
    parts = [_MESH.fullmatch(part) for part in text.split("x")]
    if not all(parts):
        raise FuserValueError(f"mesh {text!r}: expected sizes such as 2x4, or dp2xtp4 with names")
    found = [(m[1], int(m[2])) for m in parts if m is not None]
    names = [name or f"axis{k}" for k, (name, _) in enumerate(found)]
    return DeviceMesh(tuple(size for _, size in found), tuple(names))


def placed_of(texts: Sequence[str]) -> Placed:
    """Parse annotations `PATTERN=AXIS:DIMENSION`, with commas between several `AXIS:DIMENSION`.
    Raises FuserValueError for anything else.
    """
    found: dict[str, dict[str, int | Placement]] = {}
    for text in texts:
        pattern, _, axes = text.rpartition("=")
        parts = [re.fullmatch(r"(\w+):(\d+)", part) for part in axes.split(",")]
        if not pattern or not all(parts):
            raise FuserValueError(
                f"{text!r}: expected PATTERN=AXIS:DIMENSION, such as '*.up.weight=tp:0'"
            )
        found[pattern] = {m[1]: int(m[2]) for m in parts if m is not None}
    return found


def sharding_of(
    sizes: Sequence[int], mesh: DeviceMesh, axes: Mapping[str, int | Placement]
) -> Sharding:
    """Return the placements of a tensor of these sizes. Several axes shard a dimension one after
    the other, the first one outermost.

    Raises FuserValueError for unknown axes and dimensions, and for unequal chunks.
    """
    found: list[Placement] = [REPLICATE] * len(mesh.shape)
    left = list(sizes)
    for axis, size in sorted((mesh.axis(name), mesh.shape[mesh.axis(name)]) for name in axes):
        wanted = axes[mesh.names[axis]]
        if isinstance(wanted, int):
            if not -len(sizes) <= wanted < len(sizes):
                raise FuserValueError(f"dimension {wanted} of a tensor of sizes {list(sizes)}")
            dim = wanted % len(sizes)
            found[axis] = shard = Shard(dim, max(left[dim] // size, 1), size)
            check_shard(shard, sizes[dim])
            left[dim] //= size
        else:
            found[axis] = wanted
    return tuple(found)


def annotated(
    names: Mapping[str, TensorView], mesh: DeviceMesh, placed: Placed
) -> dict[TensorView, Sharding]:
    """Return the shardings of tensors whose names match. Raises FuserTypeError for anything but a
    mesh and placements by axis, FuserValueError for a pattern that no name matches, and for
    placements that do not fit a tensor.
    """
    if not isinstance(mesh, DeviceMesh):
        raise FuserTypeError(
            f"expected a thunder_fuser.sharding.DeviceMesh, got {reprlib.repr(mesh)}; write "
            'DeviceMesh((2, 4), ("dp", "tp"))'
        )
    if not isinstance(placed, Mapping) or not all(isinstance(v, Mapping) for v in placed.values()):
        raise FuserTypeError(
            'placements: expected the dimension that each mesh axis shards, by names, as in {"x": '
            f'{{"tp": 0}}}}, got {placed!r}'
        )
    found: dict[TensorView, Sharding] = {}
    for pattern, axes in placed.items():
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            near = difflib.get_close_matches(pattern, names, 3, 0.3)
            told = f"; near are {', '.join(near)}" if near else ""
            raise FuserValueError(f"no argument or parameter is named {pattern!r}{told}")
        for name in matching:
            try:
                found[names[name]] = sharding_of(names[name].sizes, mesh, axes)
            except FuserValueError as error:
                raise FuserValueError(f"{name}: {error}") from error
    return found
