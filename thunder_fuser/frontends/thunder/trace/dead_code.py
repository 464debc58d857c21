"""Dead code elimination of a trace: symbols without readers and without side effects are removed.

Thunder's own pass runs on the result of the fusion pass, too. But for each symbol it collects tags
of all subsymbols again, which takes time quadratic in the length of a fusion.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.prims import OpTags
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.remembered import look_through


def live(symbols: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Return the symbols that the last one depends on, and those with side effects.

    If several symbols return a name, the first defines it; the others pass it through.
    """
    look_through(symbols, in_parts=False)
    made: set[str] = set()
    fresh: list[set[str]] = []
    for bsym in symbols:
        fresh.append({p.name for p in bsym.flat_proxy_outs} - made)
        made |= fresh[-1]
    needed: set[str] = set()
    kept: list[BoundSymbol] = []
    for bsym, names in zip(reversed(symbols), reversed(fresh), strict=True):
        if must_run(bsym) or not needed.isdisjoint(names):
            needed.update([p.name for p in bsym.flat_proxy_args])
            kept.append(bsym)
    return kept[::-1]


def must_run(bsym: BoundSymbol) -> bool:
    """True if a symbol, or a subsymbol, is tagged DONT_DCE, as in-place updates are."""
    is_tagged = OpTags.DONT_DCE in (bsym.sym.tags or ()) or OpTags.DONT_DCE in bsym.tags
    return is_tagged or any(map(must_run, bsym.subsymbols))
