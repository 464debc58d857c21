"""Record of one run of the fusion pass: fusions and refusals, kept for reports.

Thunder keeps no record of fusion passes, and its last traces no longer say why a symbol stayed with
torch.  Traces derived from one another share one `SigInfo` object: records are stored by weak
reference to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from thunder.core.codeutils import SigInfo
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.table import refuse
from thunder_fuser.frontends.thunder.trace.origin import Recorded
from thunder_fuser.segment.regions.budget import Traded


@dataclass(frozen=True, slots=True)
class Record:
    """Fusions and refusals of one fusion pass, by positions in the trace before executors claimed.

    fusions   by name, the range of positions of their symbols
    refusals  by position
    traded    effect of the memory budget, if there was one
    """

    fusions: Mapping[str, range]
    refusals: Mapping[int, tuple[Refusal, ...]]
    traded: Traded | None = None

    def all_refusals(self) -> tuple[Refusal, ...]:
        """Return all refusals in trace order."""
        return tuple(r for k in sorted(self.refusals) for r in self.refusals[k])

    def around(self, name: str) -> tuple[Refusal, ...]:
        """Return the refusals that bound a fusion: right before it, then right after it."""
        places = self.fusions.get(name)
        neighbours = (places.start - 1, places.stop) if places else ()
        return tuple(r for k in neighbours for r in self.refusals.get(k, ()))


_records: WeakKeyDictionary[SigInfo, list[Record]] = WeakKeyDictionary()


def records_of(trace: TraceCtx) -> Sequence[Record]:
    """Return one record for each fuser whose fusion pass a trace went through; none for a backward
    trace.
    """
    return _records.get(trace.siginfo(), [])


class FusionRecord:
    """Builder of a `Record`."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._fusions: dict[str, range] = {}
        self._refusals: dict[int, tuple[Refusal, ...]] = {}
        for k, bsym in enumerate(recorded.symbols):
            if any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs):
                self._refuse(k, bsym, list(refuse(bsym)))

    def fused(self, name: str, symbols: Sequence[BoundSymbol]) -> None:
        """Note that these symbols became the fusion `name`."""
        places = list(self._recorded.positions(symbols))
        self._fusions[name] = range(min(places), max(places) + 1) if places else range(0)

    def refused(self, symbols: Sequence[BoundSymbol], refusals: Sequence[Refusal]) -> None:
        """Note that these symbols, which could have been fused, stay with torch."""
        first = min(self._recorded.positions(symbols), default=None)
        if first is not None and refusals:
            self._refuse(first, symbols[0], refusals)

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
            # One subsymbol of a call may be refused by its claim, another as part of a region.
            told = (*self._refusals.get(k, ()), *(replace(r, origin=where) for r in named))
            self._refusals[k] = tuple(dict.fromkeys(told))

    def finish(self, trace: TraceCtx, traded: Traded | None = None) -> Record:
        """Return the record, and store it for `records_of` of this trace and derived ones."""
        record = Record(self._fusions, self._refusals, traded)
        if trace.fn is not None or trace._siginfo is not None:
            _records.setdefault(trace.siginfo(), []).append(record)
        return record
