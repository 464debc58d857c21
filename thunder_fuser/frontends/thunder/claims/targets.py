"""What a symbol updates in place: a claimed copy, one of Thunder's, or a method of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core import prims
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.table import TABLE
from thunder_fuser.segment.regions.joint_graph import Role

_IN_NEW_MEMORY = (Role.COMPUTE, Role.JOIN, Role.REDUCE, Role.SCAN, Role.CREATE)


def updates(bsym: BoundSymbol) -> bool:
    """True if a symbol, or a subsymbol, writes to an existing tensor."""
    return any(True for _ in targets(bsym))


def targets(bsym: BoundSymbol) -> Iterator[str]:
    """Yield names of the tensors that a symbol, or a subsymbol, updates in place."""
    claim = TABLE.get(bsym.sym.id)
    if is_copy_of_torch(bsym) or (claim is not None and claim.role is Role.UPDATE):
        yield bsym.args[1].name
    elif claim is None and is_method(bsym):
        yield from (p.name for p in bsym.flat_proxy_args[:1])
    for part in bsym.subsymbols:
        yield from targets(part)


def is_copy_of_torch(bsym: BoundSymbol) -> bool:
    """True for an in-place copy that is not claimed. It then is an operator of Thunder's torch
    executor, with a name and neither a primitive's id nor subsymbols.
    """
    return bool(bsym.sym.id == prims.copy_.name)


def is_method(bsym: BoundSymbol) -> bool:
    """True for a call that updates its first argument, and returns it if anything."""
    return not bsym.subsymbols and OpTags.IN_PLACE in (bsym.sym.tags or ())


def primitives(symbols: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the symbols that calls are made of, in order."""
    for symbol in symbols:
        if symbol.subsymbols:
            yield from primitives(symbol.subsymbols)
        else:
            yield symbol


def updated_names(symbols: Sequence[BoundSymbol]) -> set[str]:
    """Return the names of proxies whose memory a symbol may write to."""
    memories: dict[str, set[str]] = {}
    for prim in primitives(symbols):
        for out in prim.flat_proxy_outs:
            names = memories.setdefault(out.name, {out.name})
            for name in _shown(prim):
                for other in memories.setdefault(name, {name}) - names:
                    names.add(other)
                    memories[other] = names
    return set().union(*(memories[name] for s in symbols for name in targets(s)))


def _shown(prim: BoundSymbol) -> list[str]:
    """Return the names of the operands whose memory the result of a primitive may lie in."""
    claim = TABLE.get(prim.sym.id)
    if claim is not None and claim.role in _IN_NEW_MEMORY:
        return []
    operands = prim.args[1:2] if prim.sym.id is PrimIDs.COPY_ else prim.flat_proxy_args
    return [operand.name for operand in operands]
