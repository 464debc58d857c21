"""What one run of the fusion pass decided: kept for reports.

Thunder keeps no record of fusion passes, and its last traces no longer say why a symbol stayed with
torch.  Traces that descend from one another share their tuple of arguments, which finds the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from thunder.core.compile_data import _compile_data
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import Refusal

_Event = str | tuple[Refusal, ...]


class Compilation:
    """Fusions, by name, and refusals in the order of the trace."""

    def __init__(self, trace: TraceCtx) -> None:
        self._args = trace.args
        self._events: list[_Event] = []
        _, stats = _compile_data.get()
        if stats is not None:
            _records.setdefault(stats, []).append(self)

    def fused(self, name: str) -> None:
        """The next region became a fusion."""
        self._events.append(name)

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """The next symbols stay with torch."""
        if refusals:
            self._events.append(tuple(refusals))

    @property
    def fusion_count(self) -> int:
        return sum(isinstance(event, str) for event in self._events)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All of them, in the order of the trace."""
        return tuple(r for event in self._events if not isinstance(event, str) for r in event)

    def around(self, name: str) -> tuple[Refusal, ...]:
        """What kept a fusion from reaching further back, then what ended it."""
        if name not in self._events:
            return ()
        k = self._events.index(name)
        neighbours = [*self._events[max(k - 1, 0) : k], *self._events[k + 1 : k + 2]]
        return tuple(r for event in neighbours if not isinstance(event, str) for r in event)


# Records live as long as Thunder's statistics of the function.
_records: WeakKeyDictionary[object, list[Compilation]] = WeakKeyDictionary()


def compilation_of(trace: TraceCtx) -> Compilation | None:
    """The record of the fusion pass that a trace, not a backward one, went through last."""
    found = None
    for compilations in _records.values():
        for compilation in compilations:
            if compilation._args is trace.args:
                found = compilation
    return found
