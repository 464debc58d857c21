"""Static single assignment for a trace: one name for each definition, inside symbols too.

What Thunder computes again in the backward (`torch.utils.checkpoint`) is a copy of a symbol of the
forward under a new name, but the parts of the copy keep the names of the forward's parts. Regions
consist of parts, so before anything is decided by name, every later definition of a name gets one
of its own, for the symbol that it is a part of, and, if that symbol gives it, for all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx


def single_assignment(trace: TraceCtx) -> tuple[TraceCtx, Mapping[str, str]]:
    """The trace itself, if it gives each name once, or else a renamed copy; and, of the new names,
    what they were.
    """
    names = _Names(trace)
    symbols = [names.renamed(bsym) for bsym in trace.bound_symbols]
    if not names.originals:
        return trace, {}
    renamed = from_trace(trace)
    renamed.bound_symbols = symbols
    return renamed, names.originals


class _Names:
    """The definitions of a trace up to some symbol.

    originals  new names, and what they were
    """

    def __init__(self, trace: TraceCtx) -> None:
        self.originals: dict[str, str] = {}
        self._trace = trace
        # What whole symbols give keeps its name before what their parts give: others read it.
        self._of_symbols = {p.name for bsym in trace.bound_symbols for p in _results(bsym)}
        self._defined: set[str] = set()
        # What later symbols read instead of a name.
        self._now: dict[Variable, Proxy] = {}

    def renamed(self, bsym: BoundSymbol) -> BoundSymbol:
        """The next symbol of the trace."""
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
    """What a symbol gives and was not given."""
    given = {p.name for p in bsym.flat_proxy_args}
    return [p for p in bsym.flat_proxy_outs if p.name not in given]


def _definitions(bsym: BoundSymbol) -> Iterator[Proxy]:
    """What a symbol gives, then what its parts give, theirs among it."""
    yield from _results(bsym)
    for part in bsym.subsymbols:
        yield from _definitions(part)
