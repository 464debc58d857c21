"""Static single assignment for a trace: a unique name for each definition, in subsymbols too.

A symbol that Thunder recomputes in the backward (`torch.utils.checkpoint`) is a copy of the
forward's with renamed results, but its subsymbols keep the names of the forward's. Regions consist
of subsymbols, so before names identify values, every later definition of a name is renamed: inside
its symbol, and, if the symbol returns it, in all later symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx


def single_assignment(trace: TraceCtx) -> tuple[TraceCtx, Mapping[str, str]]:
    """Return the trace itself if it defines each name once, else a renamed copy; and the map from
    new names to original ones.
    """
    names = _Names(trace)
    symbols = [names.renamed(bsym) for bsym in trace.bound_symbols]
    if not names.originals:
        return trace, {}
    renamed = from_trace(trace)
    renamed.bound_symbols = symbols
    return renamed, names.originals


class _Names:
    """Names that are defined so far in a trace.

    originals  map from new names to original ones
    """

    def __init__(self, trace: TraceCtx) -> None:
        self.originals: dict[str, str] = {}
        self._trace = trace
        # Results of whole symbols keep their names, in preference to those of subsymbols.
        self._of_symbols = {p.name for bsym in trace.bound_symbols for p in _results(bsym)}
        self._defined: set[str] = set()
        # Replacements of names in later symbols.
        self._now: dict[Variable, Proxy] = {}

    def renamed(self, bsym: BoundSymbol) -> BoundSymbol:
        """Return the next symbol of the trace, renamed."""
        results = {p.name for p in _results(bsym)}
        given = {p.name for p in bsym.flat_proxy_args}
        new = {p.name: p for p in _definitions(bsym) if p.name not in given}
        swaps = dict(self._now)
        for name, proxy in new.items():
            is_taken = name in self._defined or (name in self._of_symbols and name not in results)
            swaps.pop(variableify(proxy), None)
            if is_taken:
                fresh = swaps[variableify(proxy)] = self._fresh(proxy)
                self.originals[fresh.name] = name
            else:
                self._defined.add(name)
        for proxy in (new[name] for name in results):
            self._now.pop(variableify(proxy), None)
            if variableify(proxy) in swaps:
                self._now[variableify(proxy)] = swaps[variableify(proxy)]
        return bsym.from_bsym_swap_proxies(swaps) if swaps else bsym

    def _fresh(self, proxy: Proxy) -> Proxy:
        with tracectx(self._trace):
            return proxy.replace_name(proxy.name, disambiguate=True)


def _results(bsym: BoundSymbol) -> list[Proxy]:
    """Return the results of a symbol that are none of its arguments."""
    given = {p.name for p in bsym.flat_proxy_args}
    return [p for p in bsym.flat_proxy_outs if p.name not in given]


def _definitions(bsym: BoundSymbol) -> Iterator[Proxy]:
    """Yield the results of a symbol, then those of its subsymbols, recursively."""
    yield from _results(bsym)
    for part in bsym.subsymbols:
        yield from _definitions(part)
