"""Region formation: which symbols of a trace become one fusion, and why the others do not.

The input is the whole joint forward and backward trace.  Thunder's partitioner groups consecutive
symbols; these groups are cut where one fusion cannot continue, and refused if they do not merit a
kernel.  Joining and splitting of regions is decided on the joint graph (`segment/regions/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core import prims as prims_of_thunder
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
from thunder_fuser.frontends.thunder.claims.claim import (
    ORDERS,
    Ending,
    InFormatOf,
    LiesAs,
    LiesAsIndexed,
)
from thunder_fuser.frontends.thunder.claims.operands import is_cpu_scalar, is_supported
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, operands, role
from thunder_fuser.frontends.thunder.regions import inplace
from thunder_fuser.frontends.thunder.remembered import relabelled
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.origin import LIKE, Recorded, is_backward
from thunder_fuser.frontends.thunder.trace.rng_state import RngStates
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
    `FusionExecutor.fuse` takes such an object; Thunder also creates them by itself.
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
        on_cuda |= any(t.device.type == "cuda" for t in _tensors(bsym.flat_proxy_outs))
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
        free = {p.name for p in _tensors(arguments)} | recorded.saved_results
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
    read = {p.device for b in prims for p in _tensors(b.flat_proxy_args) if not is_cpu_scalar(p)}
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


def _tensors(proxies: Sequence[Proxy]) -> list[TensorProxy]:
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
        facts.aliases.is_owner(b) and not (b.subsymbols and torch_executor.can_execute(b))
        for b in part.symbols
    )
    is_worth = any(TABLE[prim.sym.id].role.is_worth_a_kernel for prim in prims)
    if not (is_worth or is_repeated or is_copied):
        text = "views, copies and new tensors alone gain nothing from being fused"
        return Refusal("shape-only", text)
    if facts.on_cuda and all(is_cpu_scalar(p) for prim in prims for p in prim.flat_proxy_outs):
        text = "single numbers on the CPU are computed sooner than launched"
        return Refusal("cpu-scalar", text)
    updates = any(role(prim) is Role.UPDATE for prim in prims)
    given = {p.name for prim in prims for p in prim.flat_proxy_outs}
    if updates and facts.forward is not None and not given & facts.forward:
        text = "Thunder would move an update that no result needs into the backward"
        return Refusal("in-place", text)
    return None


def primitives(
    part: RegionCandidate, recorded: Recorded, draws: RngStates, facts: TraceInfo
) -> tuple[BoundSymbol, ...]:
    """Return the prims of a part: with source lines and layout tags, and with stateless random
    prims.
    """
    prims = [
        draws.stateless(_tagged(recorded.located(prim, whole), recorded, facts.aliases))
        for whole in part.symbols
        for prim in _with_operand(whole)
    ]
    prims = _ordered_where_made(list(_rounded_once(_ordered_as_indexed(prims), recorded)))
    return tuple(_same_gradients(prims) if part.place and part.place.is_backward else prims)


def _ordered_where_made(prims: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Return the prims with layout tags of a renaming propagated to the prim that defines the
    renamed value.
    """
    wanted: dict[str, frozenset[object]] = {}
    found: list[BoundSymbol] = []
    for prim in reversed(prims):
        orders = {
            tag for tag in prim.tags if isinstance(tag, (InFormatOf, LiesAs)) or tag in ORDERS
        }
        orders = orders.union(*(wanted.get(p.name, frozenset()) for p in prim.flat_proxy_outs))
        if orders and role(prim) is Role.RENAME:
            source = prim.flat_proxy_args[0].name
            wanted[source] = wanted.get(source, frozenset()) | orders
        found.append(relabelled(prim, tags=prim.tags | orders) if orders - prim.tags else prim)
    return found[::-1]


def _ordered_as_indexed(prims: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Return the prims with a `LiesAsIndexed` tag on those that end an indexing by a tensor.

    Thunder wraps negative indices, flattens the index, takes, and reshapes the result to the
    index's shape.
    """
    by = {b.output.name: b for b in prims if isinstance(b.output, TensorProxy)}

    def made(x: object, name: PrimIDs) -> Sequence[Any]:
        """Return the arguments of the prim that defines `x` if its id is `name`, or ()."""
        b = by.get(x.name) if isinstance(x, TensorProxy) else None
        return b.args if b is not None and b.sym.id is name else ()

    found: dict[str, LiesAsIndexed] = {}
    ended: list[BoundSymbol] = []
    for prim in prims:
        tag = None
        if prim.sym.id is PrimIDs.TAKE:
            source, flat, dim = prim.args
            wrapped = next(iter(made(flat, PrimIDs.RESHAPE)), flat)
            index, offset = made(wrapped, PrimIDs.ADD) or (None, None)
            offset = next(iter(made(offset, PrimIDs.CONVERT_ELEMENT_TYPE)), offset)
            if index is not None and made(offset, PrimIDs.WHERE):
                tag = found[prim.output.name] = LiesAsIndexed(source.name, dim, index.name)
                tag = tag if index.ndim == 1 else None
        elif prim.sym.id is PrimIDs.RESHAPE:
            tag = found.get(prim.args[0].name)
        ended.append(relabelled(prim, tags=prim.tags | {tag}) if tag else prim)
    return ended


def _with_operand(whole: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the prims of a symbol; in a call such as zeros_like, FULL gets the operand whose layout
    its result has. Not in the backward: no tensor is saved for a gradient's layout alone.
    """
    knows = whole.sym.id in LIKE and not is_backward(whole)
    read = _tensors(whole.flat_proxy_args) if knows else []
    like = next((p for p in read if p.device == whole.flat_proxy_outs[0].device), None)
    for prim in flatten(whole):
        if like is not None and prim.sym.id is PrimIDs.FULL and is_supported(like):
            prim = prim.from_bsym(kwargs={**prim.kwargs, "like": like})
        yield prim


def _tagged(prim: BoundSymbol, recorded: Recorded, aliases: Aliases) -> BoundSymbol:
    """Return the prim with tags for memory and layout of the result of the call that it ends."""
    names = [p.name for p in prim.flat_proxy_outs]
    ends = {
        Ending.NEW: aliases.is_owner(prim),
        Ending.ROW_MAJOR: any(map(recorded.is_row_major, names)),
        Ending.CHANNELS_LAST: any(map(recorded.keeps_channels_last, names)),
    }
    found: set[Ending | InFormatOf | LiesAs] = {tag for tag, holds in ends.items() if holds}
    leaders = map(recorded.leaders, names)
    found.update(tag for tag in leaders if tag is not None)
    return relabelled(prim, tags=prim.tags | found) if found else prim


def device_of_region(prims: Sequence[BoundSymbol], outputs: Sequence[Proxy]) -> torch.device:
    """Return the device of a region; one without prims returns its inputs, whose device it has."""
    return to_torch_device((prims[0].flat_proxy_outs if prims else outputs)[0].device)


def _rounded_once(prims: Sequence[BoundSymbol], recorded: Recorded) -> Iterator[BoundSymbol]:
    """Yield the prims without round trips through 16 bits inside one call of the user's.

    Thunder decomposes a call such as gelu into prims that each round to the tensor's dtype. Torch's
    kernel for the call computes in fp32 and rounds once, at its end; so does a fusion.
    """
    unrounded: dict[str, TensorProxy] = {}
    for prim in prims:
        if prim.sym.id is not PrimIDs.CONVERT_ELEMENT_TYPE:
            yield prim
            continue
        (source, dtype), out = prim.args, prim.output
        wide = unrounded.get(source.name) if isinstance(source, TensorProxy) else None
        if isinstance(source, TensorProxy) and _narrows(source, out):
            unrounded[out.name] = source
        elif wide is not None and recorded.in_one_call(source.name, out.name):
            prim = prim.from_bsym(args=(wide, dtype))
        yield prim


def _same_gradients(prims: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the prims with a widening and narrowing back of a gradient replaced by a shallow copy.

    Thunder's rules upcast to fp32 even where nothing is computed. A gradient may alias the tensor
    that autograd passed in; elsewhere a cast gives new memory, which the user may write to.
    """
    widened: dict[str, TensorProxy] = {}
    for prim in prims:
        if prim.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE and isinstance(prim.args[0], TensorProxy):
            source, out = prim.args[0], prim.output
            if _narrows(out, source):
                widened[out.name] = source
            origin = widened.get(source.name)
            if origin is not None and origin.dtype == out.dtype:
                same = prims_of_thunder.shallow_copy.bind(origin, output=out)
                prim = same.from_bsym(
                    source_filename=prim.source_filename,
                    source_positions=prim.source_positions,
                    tags=prim.tags,
                )
        yield prim


def _narrows(source: TensorProxy, out: TensorProxy) -> bool:
    return source.dtype == dtypes.float32 and out.dtype in (dtypes.bfloat16, dtypes.float16)
