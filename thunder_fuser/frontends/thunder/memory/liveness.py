"""Liveness of a trace: how many bytes it holds while it runs, estimated before it is final.

Between symbols there are proxies, and no layouts: views share the memory that they show, what a
region keeps to itself takes none, and arguments are held by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from thunder.core.prims import PrimIDs
from thunder.core.proxies import FutureTensorProxy, Proxy, TensorProxy, unvariableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.claim import Role
from thunder_fuser.frontends.thunder.claims.operands import elements
from thunder_fuser.frontends.thunder.claims.table import TABLE, renamed
from thunder_fuser.frontends.thunder.regions.formation import Region, RegionCandidate, TraceInfo
from thunder_fuser.frontends.thunder.trace.aliases import updates
from thunder_fuser.frontends.thunder.trace.canonical_names import Prims
from thunder_fuser.segment.liveness import Liveness, Step

_SMALLEST = 512
"""Torch's allocator has no smaller blocks: less than that, such as a sum, is not worth a launch."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The storages of a trace, step by step; what the caller holds is not counted.

    parts     the part at each step
    backward  of each step, whether it runs in the backward
    """

    parts: tuple[int, ...]
    backward: tuple[bool, ...]
    memory: Liveness

    def peaks(self) -> tuple[int, int]:
        """Most bytes held in the forward, and in the backward."""
        peaks = [0, 0]
        for level, backward in zip(self.memory.levels(), self.backward, strict=True):
            peaks[backward] = max(peaks[backward], level.during)
        return peaks[0], peaks[1]


class _Crossing(NamedTuple):
    """What a part reads from memory, what it leaves there, and the symbols that do it."""

    symbols: Sequence[BoundSymbol]
    reads: Sequence[Proxy]
    makes: Sequence[Proxy]


def liveness(
    parts: Sequence[RegionCandidate],
    prims: Prims,
    regions: Mapping[int, Region],
    facts: TraceInfo,
    as_split: bool = True,
) -> Alive:
    """Of a trace of these parts, where `regions` stand for those that have `prims`.

    as_split  in the order in which they will run, and not in their own
    """
    crossings = [_crossing(part, regions.get(k), k in prims) for k, part in enumerate(parts)]
    order = _as_split(parts, crossings, facts) if as_split else list(range(len(parts)))
    storages = _Storages()
    steps: list[Step] = []
    given: set[int] = set()
    kept: set[int] = set()
    for k in order:
        symbols, reads, makes = crossings[k]
        read = {storages.read(p) for p in reads}
        made = set(storages.made(symbols, reads, makes)) - given - read
        given |= made
        if parts[k].symbols[0].sym.id is PrimIDs.UNPACK_TRIVIAL:
            kept |= made
        kept |= {storages.read(p) for p in (*reads, *makes) if p.name in facts.kept}
        steps.append(Step(frozenset(read), frozenset(made)))
    # What nothing here makes is the caller's.
    kept |= set(range(len(storages.sizes))) - given
    backward = accumulate((_begins_backward(parts[k]) for k in order), or_)
    memory = Liveness(tuple(steps), storages.sizes, frozenset(kept))
    return Alive(tuple(order), tuple(backward), memory)


def _crossing(part: RegionCandidate, region: Region | None, is_region: bool) -> _Crossing:
    if region is not None:
        inputs, outputs = (tuple(map(unvariableify, x)) for x in (region.inputs, region.outputs))
        shown = [p for view in region.views for p in view.flat_proxy_outs]
        return _Crossing(region.bound_symbols, inputs, (*outputs, *shown))
    symbols = () if is_region else part.symbols
    reads = [p for bsym in symbols for p in bsym.flat_proxy_args]
    return _Crossing(symbols, reads, [p for bsym in symbols for p in bsym.flat_proxy_outs])


def _as_split(
    parts: Sequence[RegionCandidate], crossings: Sequence[_Crossing], facts: TraceInfo
) -> list[int]:
    """The parts as they will run: Thunder leaves to the backward what no result of the forward
    needs.
    """
    everything = list(range(len(parts)))
    begins = [k for k in everything if _begins_backward(parts[k])]
    if not begins:
        return everything
    needed = set(facts.kept)
    later: dict[int, None] = {}
    for k in reversed(everything[: begins[0]]):
        _, reads, makes = crossings[k]
        stays = not makes or any(map(updates, parts[k].symbols))
        if stays or not needed.isdisjoint(p.name for p in makes):
            needed.update(p.name for p in reads)
        else:
            later[k] = None
    end = begins[-1] + 1
    return [*(k for k in everything[:end] if k not in later), *reversed(later), *everything[end:]]


def _begins_backward(part: RegionCandidate) -> bool:
    return part.symbols[0].sym.id is PrimIDs.GET_GRAD


class _Storages:
    """Memory, by number: each belongs to the first tensor that lies in it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._of: dict[str, int] = {}

    def read(self, proxy: Proxy) -> int:
        """The memory of what somebody made, or the caller's."""
        if proxy.name not in self._of:
            self._of[proxy.name] = self._new(proxy)
        return self._of[proxy.name]

    def made(
        self, symbols: Sequence[BoundSymbol], reads: Sequence[Proxy], makes: Sequence[Proxy]
    ) -> list[int]:
        """The memory of what symbols leave behind. Results that show what they keep to themselves
        share new memory.
        """
        base: dict[str, str] = {}
        for bsym in symbols:
            for out, source in _shared(bsym):
                base[out] = base.get(source, source)
        here = {p.name: self._of[p.name] for p in reads}
        for proxy in makes:
            owner = base.get(proxy.name, proxy.name)
            if owner not in here:
                here[owner] = self._new(proxy)
            self._of[proxy.name] = here[owner]
        return [self._of[p.name] for p in makes]

    def _new(self, proxy: Proxy) -> int:
        self.sizes.append(_bytes(proxy))
        return len(self.sizes) - 1


def _shared(bsym: BoundSymbol) -> Iterator[tuple[str, str]]:
    """Names of results, and of the arguments whose memory they lie in."""
    claim = TABLE.get(bsym.sym.id)
    if claim is None:
        for part in bsym.subsymbols:
            yield from _shared(part)
    elif claim.role is Role.RENAME:
        yield from ((new.name, old.name) for new, old in renamed(bsym))
    elif claim.role is Role.VIEW:
        yield bsym.flat_proxy_outs[0].name, bsym.flat_proxy_args[0].name
    elif claim.role is Role.UPDATE:
        yield bsym.flat_proxy_outs[0].name, bsym.args[1].name


def _bytes(proxy: Proxy) -> int:
    if not isinstance(proxy, (TensorProxy, FutureTensorProxy)):
        return 0
    size: int = elements(proxy) * proxy.dtype.bytes
    return size if size >= _SMALLEST else 0
