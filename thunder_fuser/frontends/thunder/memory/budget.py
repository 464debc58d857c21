"""A memory budget: what the backward computes again so that the forward saves no more than a user
asks for (`thunder.jit(..., memory_budget=)`).

As in selective activation checkpointing, with prices in the place of rules. Every value of the
forward that the backward wants is saved, or computed again from others. What computing takes is
known of each symbol: arithmetic, what moves through memory for calls of torch, their FLOPs. With a
price for each saved byte, the cheapest choice is one minimum cut over the forward; the budget sets
the price: the lowest at which what is saved fits. So norms and activations go before products, and
a lower budget never saves more. Of equal layers the first go first: what they save lives longest.

What is computed again is copied into the backward, right before its first reader there. Planning
goes on from that trace: the copies are fused with whatever reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder.core.devices import to_torch_device
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import FutureTensorProxy, Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.frontends.thunder.autograd.attention import NAMES, Attention
from thunder_fuser.frontends.thunder.claims.claim import Role
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, role
from thunder_fuser.frontends.thunder.regions.formation import TraceInfo
from thunder_fuser.frontends.thunder.trace.aliases import Aliases, updates
from thunder_fuser.frontends.thunder.trace.torch_work import bytes_of, work_of
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.min_cut import INFINITE
from thunder_fuser.segment.store_or_recompute import Value, materialize
from thunder_fuser.segment.time_model import Prices

_NEVER = INFINITE >> 8
_STEPS = 24
"""Prices that are tried, each half the interval of the one before."""
_CHEAPEST, _DEAREST = -8.0, 24.0
"""Prices of a saved byte, as powers of two, in the time of moving it."""
_FIRST = 0.05
"""How much dearer what the first layer saves is than what the last one does."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Calls of one name that the backward makes again.

    is_fused  they are parts of fusions, not calls of torch
    seconds   that they are expected to take: of what is fused, arithmetic, and writing what torch
              reads of it
    """

    name: str
    count: int
    is_fused: bool
    flops: int
    seconds: float

    def __str__(self) -> str:
        where = "in fusions" if self.is_fused else "in torch"
        work = f"{self.flops:,} FLOPs, " if self.flops else ""
        return f"{self.count} x {self.name} {where} ({work}{1e6 * self.seconds:.1f} us)"


@dataclass(frozen=True, slots=True)
class Traded:
    """What a budget changed.

    budget      bytes that the forward may save for the backward, beside arguments and results
    saved       bytes that it saves
    unbudgeted  bytes that it would save
    recomputed  what the backward computes again for that, the dearest first
    """

    budget: int
    saved: int
    unbudgeted: int
    recomputed: tuple[Recomputed, ...]

    @property
    def seconds(self) -> float:
        """What computing again is expected to take at most."""
        return sum(r.seconds for r in self.recomputed)

    @property
    def flops(self) -> int:
        return sum(r.flops for r in self.recomputed)

    def __str__(self) -> str:
        missed = "" if self.saved <= self.budget else " (no less can be had)"
        head = (
            f"memory budget {self.budget:,} B: {self.saved:,} B saved for backward{missed} where "
            f"{self.unbudgeted:,} B would be"
        )
        again = "; ".join(map(str, self.recomputed))
        return f"{head}; computed again: {again}" if again else head


@dataclass(frozen=True, slots=True)
class _Node:
    """A symbol of the forward that can run again.

    is_late  no result of the forward needs it: it runs in the backward anyway
    """

    bsym: BoundSymbol
    price: int
    is_late: bool


class Choices:
    """The choices of one joint trace, by what a saved byte costs."""

    def __init__(
        self, trace: TraceCtx, facts: TraceInfo, is_fusible: Callable[[BoundSymbol], bool]
    ) -> None:
        self._trace = trace
        self._facts = facts
        self._is_fusible = is_fusible
        self._symbols = trace.bound_symbols[:-1]
        self._sizes = sizes_of(trace)
        needed = facts.forward or frozenset()
        is_pure = not any(map(updates, self._symbols))
        self._late = {
            id(b)
            for b in self._symbols
            if is_pure
            and not _is_backward(b)
            and needed.isdisjoint(p.name for p in b.flat_proxy_outs)
            and self._may_repeat(b)
        }
        self._nodes: dict[str, _Node] = {}
        self._wanted = self._read_behind()
        self._values, self._numbers = self._graph()

    def _read_behind(self) -> dict[str, None]:
        """Names of what the backward reads and the forward makes, in order."""
        made = {p.name for b in self._symbols if not _is_backward(b) for p in b.flat_proxy_outs}
        read = (p.name for b in self._symbols if _reads(b) for p in b.flat_proxy_args)
        return {name: None for name in read if name in made}

    def _graph(self) -> tuple[list[Value], dict[str, int]]:
        """Values by number. A symbol with several results is a value that nobody reads, which each
        of them is computed from.
        """
        values: list[Value] = []
        numbers: dict[str, int] = {}
        readers = self._torch_readers()
        for bsym in self._symbols:
            outs = {p.name: p for p in bsym.flat_proxy_outs if p.name not in numbers}
            if _is_backward(bsym) or not outs:
                continue
            read = dict.fromkeys(p.name for p in bsym.flat_proxy_args if p.name in numbers)
            operands = tuple(numbers[name] for name in read)
            price = self._price(bsym, readers) if self._may_repeat(bsym) else None
            if price is not None:
                node = _Node(bsym, price, id(bsym) in self._late)
                self._nodes.update(dict.fromkeys(outs, node))
                if len(outs) > 1:
                    values.append(Value(operands, 0, _NEVER, price))
                    operands, price = (len(values) - 1,), 0
            for name in outs:
                numbers[name] = len(values)
                values.append(Value(operands if price is not None else (), 0, 0, price))
        return values, numbers

    def _torch_readers(self) -> frozenset[str]:
        """What calls of torch read, which must be in memory for them."""
        return frozenset(
            p.name for b in self._symbols if not self._is_fusible(b) for p in b.flat_proxy_args
        )

    def _may_repeat(self, bsym: BoundSymbol) -> bool:
        """Whether a symbol gives the same results wherever it runs."""
        if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL or not bsym.flat_proxy_outs:
            return False
        proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
        if any(isinstance(p, FutureTensorProxy) for p in proxies):
            return False
        is_updated = self._facts.aliases.is_updated
        if updates(bsym) or any(is_updated(p.name) for p in proxies):
            return False
        return not _is_random(bsym)

    def _price(self, bsym: BoundSymbol, in_memory: frozenset[str]) -> int:
        """What running a symbol again takes."""
        outs = [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]
        if not outs:
            return 0
        info = planned_for(to_torch_device(outs[0].device))
        prices = Prices.of(info)
        if not self._is_fusible(bsym):
            if self._shows(bsym, outs):
                return 0
            return round(work_of(bsym).seconds(info) / _unit(bsym))
        arithmetic = sum(map(_arithmetic, flatten(bsym)))
        stored = [p for p in outs if p.name in in_memory and not self._shows(bsym, [p])]
        # A kernel writes what torch reads.
        return arithmetic + (prices(1, 2 * sum(map(bytes_of, stored))) if stored else 0)

    def _shows(self, bsym: BoundSymbol, outs: Iterable[Proxy]) -> bool:
        """Whether results lie in the memory of what is read."""
        memory = self._facts.aliases.memory
        read = {memory(p.name) for p in bsym.flat_proxy_args}
        return all(memory(p.name) in read for p in outs)

    def at(self, power: float) -> frozenset[str]:
        """Names of what is computed again where saving a byte costs 2 ** power of moving it."""
        device = next((to_torch_device(p.device) for b in self._symbols for p in _tensors(b)), None)
        cost = Prices.of(planned_for(device)).byte * 2.0**power
        count = max(len(self._values), 1)
        names = {number: name for name, number in self._numbers.items()}
        values = [
            value
            if number not in names
            else Value(
                value.operands, 0, self._reading(names[number], cost, 1 - number / count),
                value.compute,
            )
            for number, value in enumerate(self._values)
        ]  # fmt: skip
        wanted = [self._numbers[name] for name in self._wanted if name in self._numbers]
        (choice,) = materialize(values, [wanted])
        return frozenset(names[k] for k in choice.computed if k in names)

    def _reading(self, name: str, cost: float, early: float) -> int:
        """The price of a value's being saved."""
        memory = self._facts.aliases.memory(name)
        if memory in self._facts.unsaved or (name in self._nodes and self._nodes[name].is_late):
            return _NEVER
        if memory in self.kept:
            return 0
        return round(
            cost * self._sizes.get(memory, self._sizes.get(name, 0)) * (1 + _FIRST * early)
        )

    @property
    def kept(self) -> frozenset[str]:
        """Memories that are alive in the backward anyway."""
        return frozenset(map(self._facts.aliases.memory, self._facts.kept))

    def saved_at(self, power: float) -> int:
        """Bytes that are saved at a price, as far as this graph tells."""
        again = self.at(power)
        asked = {id(b) for b in self._copied(again)}
        read = {p.name for b in self._symbols if id(b) in asked for p in b.flat_proxy_args}
        crossing = [n for n in (*self._wanted, *read) if n not in again]
        return _distinct(crossing, self._facts.aliases, self.kept, self._sizes)

    def within(self, budget: int) -> frozenset[str]:
        """What is computed again at the lowest price at which that much is saved, or at the
        highest one.
        """
        low, high = _CHEAPEST, _DEAREST
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if self.saved_at(middle) <= budget:
                high = middle
            else:
                low = middle
        return self.at(high)

    def _copied(self, again: frozenset[str]) -> list[BoundSymbol]:
        """The symbols that run again, or later, in order."""
        chosen = {id(self._nodes[name].bsym) for name in again if name in self._nodes}
        return [b for b in self._symbols if id(b) in chosen]

    def trace(self, again: frozenset[str], originals: dict[str, str]) -> TraceCtx:
        """The joint trace that computes these values again; what new names stand for is added to
        `originals`.
        """
        return _Copier(self._trace, self._copied(again), self._late, originals).trace

    def recomputed(self, again: frozenset[str]) -> tuple[Recomputed, ...]:
        """What runs again, by name."""
        found: dict[str, list[BoundSymbol]] = {}
        for bsym in self._copied(again):
            outs = _tensors(bsym)
            if outs and id(bsym) not in self._late and not self._shows(bsym, outs):
                found.setdefault(bsym.sym.name, []).append(bsym)
        rows = [
            Recomputed(
                name,
                len(symbols),
                self._is_fusible(symbols[0]),
                sum(work_of(b).flops for b in symbols),
                sum(self._nodes[_tensors(b)[0].name].price * _unit(b) for b in symbols),
            )
            for name, symbols in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def _unit(bsym: BoundSymbol) -> float:
    """Seconds of one unit of a price, where a symbol runs."""
    info = planned_for(to_torch_device(_tensors(bsym)[0].device))
    return info.launch_seconds / Prices.of(info).launch


class _Copier:
    """A joint trace in the making, with copies of symbols in front of their first reader in the
    backward.
    """

    def __init__(
        self,
        trace: TraceCtx,
        copied: Sequence[BoundSymbol],
        late: set[int],
        originals: dict[str, str],
    ) -> None:
        self.trace = from_trace(trace)
        self._originals = originals
        self._position = {id(b): k for k, b in enumerate(copied)}
        self._symbols = {id(b): b for b in copied}
        self._makes = {p.name: b for b in copied for p in b.flat_proxy_outs}
        self._late = {k for k in late if k in self._position}
        self._done: set[int] = set()
        self._swaps: dict[Variable, Proxy] = {}
        for bsym in trace.bound_symbols:
            if id(bsym) in self._late:
                continue
            if _reads(bsym):
                self._ensure(bsym)
                bsym = bsym.from_bsym_swap_proxies(self._swaps)
            self.trace.bound_symbols.append(bsym)

    def _ensure(self, reader: BoundSymbol) -> None:
        """Copy everything that a symbol of the backward reads, and what that is made of."""
        missing = backward_slice([id(b) for b in self._waits_for(reader)], self._before)
        for key in sorted(missing, key=self._position.__getitem__):
            bsym = self._symbols[key]
            self._done.add(id(bsym))
            is_late = id(bsym) in self._late
            swaps = dict(self._swaps)
            if not is_late:
                given = {p.name for p in bsym.flat_proxy_args}
                for proxy in _definitions(bsym):
                    if proxy.name not in given and variableify(proxy) not in swaps:
                        swaps[variableify(proxy)] = self._fresh(proxy)
                for proxy in bsym.flat_proxy_outs:
                    if proxy.name not in given:
                        self._swaps[variableify(proxy)] = swaps[variableify(proxy)]
            copy = bsym.from_bsym_swap_proxies(swaps)
            tags = copy.tags | {BoundSymbolTag.BACKWARD}
            self.trace.bound_symbols.append(copy.from_bsym(tags=tags))

    def _waits_for(self, bsym: BoundSymbol) -> list[BoundSymbol]:
        made = (self._makes.get(p.name) for p in bsym.flat_proxy_args)
        return [b for b in made if b is not None and id(b) not in self._done]

    def _before(self, key: int) -> list[int]:
        return [id(b) for b in self._waits_for(self._symbols[key])]

    def _fresh(self, proxy: Proxy) -> Proxy:
        with tracectx(self.trace):
            new = proxy.replace_name(f"{proxy.name}_again", disambiguate=True)
        self._originals[new.name] = self._originals.get(proxy.name, proxy.name)
        return new


def saved_bytes(fused: TraceCtx, facts: TraceInfo, sizes: Mapping[str, int]) -> int:
    """Bytes that the forward of a joint trace with fusions keeps for its backward alone."""
    forward: set[str] = set()
    needed = set(facts.kept)
    behind: list[BoundSymbol] = []
    for bsym in reversed(fused.bound_symbols[:-1]):
        names = {p.name for p in bsym.flat_proxy_outs}
        if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL or not needed.isdisjoint(names):
            needed.update(p.name for p in bsym.flat_proxy_args)
            forward |= names
        elif bsym.sym.id is not PrimIDs.GET_GRAD:
            behind.append(bsym)
    crossing = [p.name for b in behind for p in b.flat_proxy_args if p.name in forward]
    kept = frozenset(map(facts.aliases.memory, facts.kept))
    return _distinct(crossing, facts.aliases, kept, sizes)


def sizes_of(trace: TraceCtx) -> dict[str, int]:
    """Bytes of every value of a trace, by name."""
    return {p.name: bytes_of(p) for b in trace.bound_symbols for p in _definitions(b)}


def _distinct(
    names: Iterable[str], aliases: Aliases, kept: frozenset[str], sizes: Mapping[str, int]
) -> int:
    """Bytes of the memories that values lie in, beside those that stay anyway."""
    found: dict[str, int] = {}
    for name in names:
        memory = aliases.memory(name)
        if memory not in kept:
            found[memory] = max(found.get(memory, 0), sizes.get(memory, sizes.get(name, 0)))
    return sum(found.values())


def _definitions(bsym: BoundSymbol) -> Iterator[Proxy]:
    """What a symbol gives, and what its parts give."""
    yield from bsym.flat_proxy_outs
    for part in bsym.subsymbols:
        yield from _definitions(part)


def _tensors(bsym: BoundSymbol) -> list[TensorProxy]:
    return [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]


def _arithmetic(prim: BoundSymbol) -> int:
    """Instructions of a claimed primitive."""
    if not role(prim).is_worth_a_kernel:
        return 0
    tensors = [
        p for p in (*prim.flat_proxy_args, *prim.flat_proxy_outs) if isinstance(p, TensorProxy)
    ]
    folds = 2 if TABLE[prim.sym.id].role in (Role.REDUCE, Role.SCAN) else 1
    cost: int = TABLE[prim.sym.id].cost
    return folds * cost * max((p.numel for p in tensors), default=1)


def _is_random(bsym: BoundSymbol) -> bool:
    """Whether a symbol, or a part of it, draws numbers. Attention does where it drops some."""
    if bsym.sym.name in NAMES[:2]:
        return bool(Attention(*bsym.args, **bsym.kwargs).dropout_p)
    tags = bsym.sym.tags or ()
    effects = (OpTags.RANDOM_OP, OpTags.DONT_DCE, OpTags.IN_PLACE, OpTags.CTX_MANAGER_ENTER_EXIT_OP)
    return any(tag in tags for tag in effects) or any(map(_is_random, bsym.subsymbols))


def _is_backward(bsym: BoundSymbol) -> bool:
    return BoundSymbolTag.BACKWARD in bsym.tags or bsym.sym.id is PrimIDs.GET_GRAD


def _reads(bsym: BoundSymbol) -> bool:
    """Whether a symbol reads in the backward; get_grad only names a value."""
    return BoundSymbolTag.BACKWARD in bsym.tags and bsym.sym.id is not PrimIDs.GET_GRAD
