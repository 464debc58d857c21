"""Values of a trace before and after autodiff, matched by value numbering.

Autodiff and gradient rules record a program's calls again, with other names. Facts about a value,
such as how torch lays it out, are known of the call that the program made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.remembered import leaves_in


def same_values(first: Sequence[BoundSymbol], joint: Sequence[BoundSymbol]) -> dict[str, str]:
    """Map names in `joint`, a forward after autodiff, to those of the same values in `first`:
    results of equal prims on equal operands, in order of occurrence. A value that ends a call has
    the name of the call's result, which a conversion that converts nothing may have renamed.
    """
    numbers = _Numbers()
    known: dict[tuple[object, ...], deque[BoundSymbol]] = {}
    for prim in _leaves(first):
        known.setdefault(numbers.of(prim), deque()).append(prim)
        numbers.name(prim)
    numbers.updates = 0
    same = numbers.same
    for prim in _leaves(joint):
        if queue := known.get(numbers.of(prim)):
            found = queue.popleft()
            pairs = zip(prim.flat_proxy_outs, found.flat_proxy_outs, strict=False)
            same.update((new.name, old.name) for new, old in pairs)
        numbers.name(prim)
    results_of = _results_by_value(first)
    return {new: results_of.get(old, old) for new, old in same.items()}


class _Numbers:
    """Value numbers: a prim and the first names of its operands.

    same     names in the joint trace, and those in the first
    updates  in-place updates so far
    """

    def __init__(self) -> None:
        self.same: dict[str, str] = {}
        self.updates = 0
        # Other names of one value: a tensor around its updates (the first trace has none of
        # these), renamed, or converted again.
        self._first: dict[str, str] = {}
        self._converted: dict[tuple[object, ...], str] = {}

    def of(self, prim: BoundSymbol) -> tuple[object, ...]:
        operands = (
            self._operand(x.name) if isinstance(x, Proxy) else repr(x)
            for x in leaves_in((prim.args, prim.kwargs))
        )
        return prim.sym.id, *operands

    def name(self, prim: BoundSymbol) -> None:
        """Note that results of the prim are other names of values that are known."""
        if prim.sym.id in (PrimIDs.UPDATE_ALIASES, PrimIDs.SHALLOW_COPY):
            pairs = zip(prim.flat_proxy_outs, prim.flat_proxy_args, strict=True)
            self._first.update({new.name: self._operand(old.name) for new, old in pairs})
        elif prim.sym.id is PrimIDs.COPY_:
            self._first[prim.output.name] = self._operand(prim.args[1].name)
            self.updates += 1
        elif prim.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE:
            # Thunder converts an operand for each prim of a call, a gradient rule once.
            number = (*self.of(prim), self.updates)
            for out in prim.flat_proxy_outs:
                own = self._operand(out.name)
                self._first[out.name] = self._converted.setdefault(number, own)

    def _operand(self, name: str) -> str:
        return self._first.get(name) or self.same.get(name, name)


def _results_by_value(symbols: Sequence[BoundSymbol]) -> dict[str, str]:
    """Map values that calls compute and then rename to the calls' results."""
    found: dict[str, str] = {}
    results = {p.name for bsym in symbols for p in bsym.flat_proxy_outs}
    for bsym in symbols:
        names = {p.name: p.name for p in bsym.flat_proxy_outs}
        for prim in reversed(list(_leaves(bsym.subsymbols))):
            renamed = prim.flat_proxy_args if prim.sym.id is PrimIDs.SHALLOW_COPY else ()
            for source, out in zip(renamed, prim.flat_proxy_outs, strict=False):
                if out.name in names:
                    names[source.name] = names[out.name]
        found.update({value: name for value, name in names.items() if value not in results})
    return found


def _leaves(symbols: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the symbols without subsymbols, in order."""
    for bsym in symbols:
        if bsym.subsymbols:
            yield from _leaves(bsym.subsymbols)
        else:
            yield bsym
