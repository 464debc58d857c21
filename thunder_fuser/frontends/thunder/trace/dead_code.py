"""Dead code elimination of a trace: what nobody reads, and what has no effect, goes.

Thunder has such a pass, and runs it on what ours makes. It also gathers the tags of all parts of a
symbol again for each of them, which takes as long as the square of a fusion's length.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.prims import OpTags
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.remembered import look_through


def live(symbols: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """The symbols that the last one needs, or that must run whoever reads their results.

    Of several that give one name the first gives it; the others pass it on.
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
        if _must_run(bsym) or not needed.isdisjoint(names):
            needed.update([p.name for p in bsym.flat_proxy_args])
            kept.append(bsym)
    return kept[::-1]


def _must_run(bsym: BoundSymbol) -> bool:
    """Whether a symbol, or a part of it, says so."""
    is_tagged = OpTags.DONT_DCE in (bsym.sym.tags or ()) or OpTags.DONT_DCE in bsym.tags
    return is_tagged or any(map(_must_run, bsym.subsymbols))
