"""Region formation: which symbols of a trace become one fusion, and why the others do not.

The input is the whole joint forward and backward trace.  Thunder's partitioner groups consecutive
symbols; these groups are cut where one fusion cannot continue, and refused if they do not merit a
kernel.  Joining and splitting of regions is decided on the joint graph (`segment/regions/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from thunder.core.devices import to_torch_device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.pytree import tree_flatten_with_dataclass
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.executors.data_dependent_partition import (
    Node,
    consecutive_fusion,
)
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.config import current
from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims import random
from thunder_fuser.frontends.thunder.claims.operands import is_cpu_scalar
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, operands, role
from thunder_fuser.frontends.thunder.regions import inplace
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.origin import Recorded, is_backward
from thunder_fuser.segment.regions.joint_graph import DevicePhase, Role

Places = Mapping[int, DevicePhase | tuple[Refusal, ...]]
"""By `id` of a symbol: its device and phase, or refusals if it is claimed but cannot be fused."""


@dataclass(frozen=True, slots=True)
class RegionCandidate:
    """Consecutive symbols of a trace.  They are fused if they have a place and no refusals.

    place  device and phase (forward or backward); None for symbols left to torch
    """

    symbols: tuple[BoundSymbol, ...]
    place: DevicePhase | None
    refusals: tuple[Refusal, ...] = ()

    @property
    def is_fusible(self) -> bool:
        return self.place is not None and not self.refusals


@dataclass(frozen=True, slots=True)
class Region:
    """Prims of one fusion, and the variables that it reads from and gives to other symbols.

    `views` are bound symbols of views of the results, which torch runs.
    `FusionExecutor.fuse` takes such an object; Thunder also creates them itself.
    """

    bound_symbols: tuple[BoundSymbol, ...]
    inputs: tuple[object, ...]
    outputs: tuple[object, ...]
    views: tuple[BoundSymbol, ...] = ()

    @property
    def is_call(self) -> bool:
        """True if the region has outputs or updates; else it is only views of existing tensors."""
        return bool(self.outputs) or any(role(b) is Role.UPDATE for b in self.bound_symbols)


def region_of(
    prims: Sequence[BoundSymbol], outputs: Sequence[Proxy], views: Sequence[BoundSymbol] = ()
) -> Region:
    """Return the region of these prims, whose inputs are the operands that none of them defines."""
    inside = {p.name for b in prims for p in b.flat_proxy_outs}
    read = {p.name: p for b in prims for p in operands(b)}
    return Region(
        tuple(prims),
        tuple(variableify(p) for name, p in read.items() if name not in inside),
        tuple(map(variableify, outputs)),
        tuple(views),
    )


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Facts of the whole trace that decisions on a part need.

    on_cuda   True if some tensor is on a GPU
    forward   names of values that the forward's results depend on, if Thunder will split the trace
              into forward and backward; None otherwise
    kept      names of arguments and results of the forward, which stay alive in the backward
    repeated  names of random tensors that the backward draws again
    aliases   alias analysis of the trace
    unsaved   first names of memories that the backward must not read: the user may modify them, and
              torch would not save them
    """

    on_cuda: bool
    forward: frozenset[str] | None
    kept: frozenset[str]
    repeated: frozenset[str]
    aliases: Aliases
    unsaved: frozenset[str] = frozenset()


def survey(trace: TraceCtx, recorded: Recorded, *, saves_like_torch: bool = False) -> TraceInfo:
    """Collect the facts of a trace in one pass over its symbols."""
    aliases = Aliases(trace, recorded)
    on_cuda = is_joint = False
    drawn: set[str] = set()
    repeated: set[str] = set()
    for bsym in trace.bound_symbols:
        on_cuda |= any(t.device.type == "cuda" for t in tensors(bsym.flat_proxy_outs))
        is_joint |= bsym.sym.id is PrimIDs.GET_GRAD
        for name in random.drawn(bsym):
            first = recorded.first_name(name)
            repeated.update({name, first} if first in drawn else ())
            drawn.add(name)
    if not is_joint:
        return TraceInfo(on_cuda, None, frozenset(), frozenset(), aliases)
    returned = trace.bound_symbols[-1].args[0]
    flat, _ = tree_flatten_with_dataclass((returned["fw_flat_out"], returned["flat_args"]))
    kept = frozenset(p.name for p in flat if isinstance(p, Proxy))
    unsaved = _unsaved(trace, kept, aliases)
    if not saves_like_torch:
        arguments, _ = tree_flatten_with_dataclass(returned["flat_args"])
        free = {p.name for p in tensors(arguments)} | recorded.saved_results
        unsaved -= frozenset(map(aliases.memory, free))
    return TraceInfo(on_cuda, _forward(trace, kept), kept, frozenset(repeated), aliases, unsaved)


def _unsaved(joint: TraceCtx, kept: frozenset[str], aliases: Aliases) -> frozenset[str]:
    """Return the memories of arguments and results that no backward symbol reads."""
    read = (
        proxy.name
        for bsym in joint.bound_symbols
        if is_backward(bsym) and bsym.sym.id is not PrimIDs.GET_GRAD
        for proxy in bsym.flat_proxy_args
    )
    return frozenset(map(aliases.memory, kept)) - frozenset(map(aliases.memory, read))


def _forward(joint: TraceCtx, kept: frozenset[str]) -> frozenset[str]:
    """Return the values that Thunder's split keeps in the forward: all that its results need."""
    needed = set(kept)
    for bsym in reversed(joint.bound_symbols[:-1]):
        if any(p.name in needed for p in bsym.flat_proxy_outs):
            needed.update(p.name for p in bsym.flat_proxy_args)
    return frozenset(needed)


def form(
    trace: TraceCtx, facts: TraceInfo, is_fusible: Callable[[BoundSymbol], bool]
) -> Iterator[RegionCandidate]:
    """Partition the symbols of a trace, in order, into region candidates."""
    symbols = trace.bound_symbols
    aliases = facts.aliases
    places: Places = {id(b): _place(b, aliases) if is_fusible(b) else () for b in symbols}

    def in_one_place(a: Node, b: Node) -> bool:
        place = places[id(a.group_bsyms[0])]
        return isinstance(place, DevicePhase) and place == places[id(b.group_bsyms[0])]

    memory = inplace.Memory(aliases)
    for found in consecutive_fusion(trace, in_one_place):
        for part in _cut(found, places, memory):
            refused = _refuse_part(part, facts)
            yield part if refused is None else replace(part, refusals=(refused,))


def _place(bsym: BoundSymbol, aliases: Aliases) -> DevicePhase | tuple[Refusal, ...]:
    """Return the device and phase of a symbol of claimed prims, or the reason that it cannot be
    fused.
    """
    prims = list(flatten(bsym))
    given = {p.device for b in prims for p in b.flat_proxy_outs}
    read = {p.device for b in prims for p in tensors(b.flat_proxy_args) if not is_cpu_scalar(p)}
    if len(given) != 1 or not read <= given:
        placed = ", ".join(sorted(map(str, given | read)))
        return (Refusal("device", f"works on several devices: {placed}"),)
    if not inplace.Memory(aliases).accepts(bsym):
        return (Refusal("in-place", "updates a tensor that it made itself"),)
    if aliases.looks_like_view(bsym):
        return (Refusal("view", "torch gives a view of memory; its parts would copy"),)
    device = to_torch_device(given.pop())
    if device.type == "cuda" and current().target == "host":
        return (Refusal("target", 'the option target="host" leaves CUDA tensors to torch'),)
    return DevicePhase(device, is_backward(bsym))


def tensors(proxies: Sequence[Proxy]) -> list[TensorProxy]:
    """Return those of the proxies that are tensors."""
    return [p for p in proxies if isinstance(p, TensorProxy)]


def _cut(
    group: Sequence[BoundSymbol], places: Places, memory: inplace.Memory
) -> Iterator[RegionCandidate]:
    """Cut a group into the longest parts, in order, that one fusion can hold."""
    part: list[BoundSymbol] = []
    shared: DevicePhase | None = None
    for bsym in group:
        place = places[id(bsym)]
        if not isinstance(place, DevicePhase):
            yield RegionCandidate((bsym,), None, place)
            continue
        if place != shared or not memory.accepts(bsym):
            if part:
                yield RegionCandidate(tuple(part), shared)
            part, shared = [], place
            memory.begin()
            memory.accepts(bsym)
        part.append(bsym)
    if part:
        yield RegionCandidate(tuple(part), shared)


def _refuse_part(part: RegionCandidate, facts: TraceInfo) -> Refusal | None:
    """Return the reason that a fusible part is better left to torch, or None."""
    if part.place is None:
        return None
    prims = [prim for bsym in part.symbols for prim in flatten(bsym)]
    # Torch would draw other random numbers when the backward repeats the draw.
    is_repeated = any(p.name in facts.repeated for prim in prims for p in prim.flat_proxy_outs)
    # Torch would not copy if only subsymbols of a call are left to it: the last one of a
    # differentiated call (`repeat`), or a call that Thunder's torch executor has no
    # implementation of (`repeat_interleave`).
    is_copied = any(
        not (b.subsymbols and torch_executor.can_execute(b))
        and (facts.aliases.is_owner(b) or any(map(facts.aliases.ends_call, flatten(b))))
        for b in part.symbols
    )
    is_worth = any(TABLE[prim.sym.id].role.is_worth_a_kernel for prim in prims)
    if not (is_worth or is_repeated or is_copied):
        text = "views, copies and new tensors alone gain nothing from being fused"
        return Refusal("shape-only", text)
    if facts.on_cuda and all(is_cpu_scalar(p) for prim in prims for p in prim.flat_proxy_outs):
        text = "a single number on the CPU takes less time to compute than a launch"
        return Refusal("cpu-scalar", text)
    updates = any(role(prim) is Role.UPDATE for prim in prims)
    given = {p.name for prim in prims for p in prim.flat_proxy_outs}
    if updates and facts.forward is not None and not given & facts.forward:
        text = "Thunder would move an update that no result needs into the backward"
        return Refusal("in-place", text)
    return None


def device_of_region(prims: Sequence[BoundSymbol], outputs: Sequence[Proxy]) -> torch.device:
    """Return the device of a region; one without prims returns its inputs, whose device it has."""
    return to_torch_device((prims[0].flat_proxy_outs if prims else outputs)[0].device)
