"""What one run of the fusion pass decided: kept for reports.

Thunder keeps no record of fusion passes, and its last traces no longer say why a symbol stayed with
torch.  Traces that descend from one another share their tuple of arguments, which finds the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from thunder.core.compile_data import _compile_data
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import Refusal
from thunder_fuser.executor.claims.table import refuse
from thunder_fuser.executor.origin import Recorded


class Compilation:
    """Fusions and refusals, by position of their symbols in the trace before any claims."""

    def __init__(self, trace: TraceCtx, recorded: Recorded) -> None:
        self._args = trace.args
        self._recorded = recorded
        self._fusions: dict[str, range] = {}
        self._refusals: dict[int, tuple[Refusal, ...]] = {}
        for k, bsym in enumerate(recorded.symbols):
            if any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs):
                self._refuse(k, bsym, list(refuse(bsym)))
        _, stats = _compile_data.get()
        if stats is not None:
            _records.setdefault(stats, []).append(self)

    def fused(self, name: str, symbols: Sequence[BoundSymbol]) -> None:
        """These symbols became a fusion."""
        places = list(self._positions(symbols))
        self._fusions[name] = range(min(places), max(places) + 1) if places else range(0)

    def refused(self, symbols: Sequence[BoundSymbol], refusals: Sequence[Refusal]) -> None:
        """These symbols, which could have been fused, stay with torch."""
        first = min(self._positions(symbols), default=None)
        if first is not None and refusals:
            self._refuse(first, symbols[0], refusals)

    def _positions(self, symbols: Sequence[BoundSymbol]) -> Iterator[int]:
        known = self._recorded.positions
        return (known[p.name] for b in symbols for p in b.flat_proxy_outs if p.name in known)

    def _refuse(self, k: int, bsym: BoundSymbol, refusals: Sequence[Refusal]) -> None:
        line = self._recorded.line_of(bsym)
        where = f"{line.filename}:{line.positions.lineno}" if line.filename else ""
        whole = bsym.sym.name
        found = {r.subject: r for r in refusals}
        named = [
            replace(r, subject=f"{whole} ({part})" if part not in ("", whole) else whole)
            for part, r in found.items()
        ]
        if named:
            self._refusals[k] = tuple(replace(r, origin=where) for r in named)

    @property
    def fusion_count(self) -> int:
        return len(self._fusions)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All of them, in the order of the trace."""
        return tuple(r for k in sorted(self._refusals) for r in self._refusals[k])

    def around(self, name: str) -> tuple[Refusal, ...]:
        """What kept a fusion from reaching further back, then what ended it."""
        places = self._fusions.get(name, range(0))
        neighbours = (places.start - 1, places.stop) if places else ()
        return tuple(r for k in neighbours for r in self._refusals.get(k, ()))


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
