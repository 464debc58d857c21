"""The communications of a sharded fusion: every change of placement that its ranks' programs make,
in their order (localise.py), with the bytes sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.sharding.changes import Change, changes, communication
from thunder_fuser.sharding.mesh import Sharding, local_sizes
from thunder_fuser.sharding.rules import tensors_of
from thunder_fuser.sharding.shardings import Communication, Shardings


def communications_of(shardings: Shardings) -> list[Communication]:
    """Return the communications of a fusion whose placements are known."""
    found: list[Communication] = []
    for tensor, change, last in _changes(shardings):
        axis, held = change.axis, math.prod(local_sizes(tensor.sizes, change.before))
        size = shardings.mesh.shape[axis]
        kind, sent = communication(change.source, change.target, held * tensor.dtype.itemsize, size)
        reason = shardings.reasons.get((tensor, axis, last[axis]), "")
        found.append(Communication(tensor, axis, change.source, change.target, kind, sent, reason))
    return found


def _changes(shardings: Shardings) -> Iterator[tuple[TensorView, Change, Sharding]]:
    """Yield tensors, their changes, and the shardings that these lead to."""
    known: dict[TensorView, set[Sharding]] = {}
    for tensor, source, target in _uses(shardings):
        found = known.setdefault(tensor, set())
        found.add(source)
        for change in changes(tensor.sizes, source, target, found.__contains__):
            found.add(change.after)
            yield tensor, change, target


def _uses(shardings: Shardings) -> Iterator[tuple[TensorView, Sharding, Sharding]]:
    """Yield tensors with a sharding that they have and one that they are used in: operands where
    they are read, and results where they are defined.
    """
    given, made = shardings.given, shardings.made
    for k, expr in enumerate(shardings.fusion.exprs):
        for n, tensor in enumerate(tensors_of(expr)):
            yield tensor, given[tensor], shardings.reads[k, n]
        if isinstance(expr.output, TensorView):
            yield expr.output, made[expr.output], given[expr.output]
