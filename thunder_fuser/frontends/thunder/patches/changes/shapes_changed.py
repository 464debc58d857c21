"""Which tensors of a trace got another shape in place (`updates/shapes_in_place.py`).

What a trace has recorded since some point can be dropped only if no tensor from before was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from thunder.core.trace import TraceCtx

_places: WeakKeyDictionary[TraceCtx, list[int]] = WeakKeyDictionary()


def note_changed_shape(trace: TraceCtx, place: int) -> None:
    """Note a change of a tensor that the symbol at this position of the trace made."""
    _places.setdefault(trace, []).append(place)


def places_of_changed_shapes(trace: TraceCtx) -> Sequence[int]:
    """Return, for each change, the position of the symbol that made the tensor."""
    return _places.get(trace, ())
