"""Collectives of a trace: which symbol starts one, and which waits for what it gives.

Thunder's names: a collective gives a future, and another symbol waits for that. Both are claimed by
its torch executor before any trace is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from thunder.core.prims import PrimIDs
from thunder.core.proxies import FutureTensorProxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import FusionExecutor
from torch import Tensor

from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.thunder.trace.origin import is_backward

ALL_GATHER = "torch_all_gather_prim_impl"
ALL_REDUCE = "torch_all_reduce_prim_impl"
REDUCE_SCATTER = "torch_reduce_scatter_prim_impl"
WAIT = "torch_wait_prim_impl"
NAMED_WAIT = "fuser_wait"

_T = TypeVar("_T")


def register(executor: FusionExecutor) -> None:
    """The operation that waits by name: (future, words) -> the result. FuserError, with these words
    for the collective, where another process has ended or does not come in time.
    """

    def meta(future: FutureTensorProxy, words: str) -> TensorProxy:
        return TensorProxy(like=future)

    executor.register_operator(NAMED_WAIT, meta=meta, fn=_wait)


def _wait(future: tuple[Any, Tensor], words: str) -> Tensor:
    handle, result = future
    try:
        handle.wait()
    except RuntimeError as error:
        raise FuserError(f"{words} failed: {error}") from error
    return result


@dataclass(frozen=True, slots=True)
class Collective:
    """One that does not block: a symbol starts it, and another waits for it.

    started, awaited   positions of the two
    read               position of the first symbol that reads the result
    """

    start: BoundSymbol
    wait: BoundSymbol
    started: int
    awaited: int
    read: int

    @property
    def operand(self) -> Any:
        return self.start.args[0]

    @property
    def result(self) -> Any:
        return self.wait.output

    @property
    def is_backward(self) -> bool:
        return is_backward(self.start)


def collectives(trace: TraceCtx, *kinds: str) -> Iterator[Collective]:
    """Those of some kinds for which exactly one symbol waits, in the order of their starts."""
    symbols = trace.bound_symbols
    waits: dict[str, list[int]] = {}
    readers: dict[str, int] = {}
    for k, bsym in enumerate(symbols):
        for proxy in bsym.flat_proxy_args:
            readers.setdefault(proxy.name, k)
            if isinstance(proxy, FutureTensorProxy):
                waits.setdefault(proxy.name, []).append(k)
    for k, bsym in enumerate(symbols):
        if bsym.sym.id not in kinds or not isinstance(bsym.output, FutureTensorProxy):
            continue
        match waits.get(bsym.output.name, []):
            case [awaited] if symbols[awaited].sym.id == WAIT:
                wait = symbols[awaited]
                # What nobody else reads is returned, by the last symbol.
                read = readers.get(wait.output.name, len(symbols) - 1)
                yield Collective(bsym, wait, k, awaited, read)


def made_at(symbols: Sequence[BoundSymbol]) -> dict[str, int]:
    """Positions of the symbols that give values, by name."""
    return {p.name: k for k, bsym in enumerate(symbols) for p in bsym.flat_proxy_outs}


def begin_of(symbols: Sequence[BoundSymbol], *, backward: bool) -> int:
    """The position of the first symbol of the forward, or of the backward, that runs."""
    for k, bsym in enumerate(symbols):
        given = bsym.sym.id in (PrimIDs.UNPACK_TRIVIAL, PrimIDs.GET_GRAD)
        if not given and is_backward(bsym) is backward:
            return k
    return len(symbols) - 1


def written(
    trace: TraceCtx, make: Callable[[], _T], *, backward: bool
) -> tuple[_T, list[BoundSymbol]]:
    """What a function of proxies gives, and the symbols that compute it, by new names."""
    made: list[BoundSymbol] = []
    with tracectx(trace):
        trace.push_scope(made)
        try:
            found = make()
        finally:
            trace.pop_scope()
    if backward:
        made = [bsym.from_bsym(tags=bsym.tags | {BoundSymbolTag.BACKWARD}) for bsym in made]
    return found, made


def renamed(symbols: Sequence[BoundSymbol], names: Mapping[str, TensorProxy]) -> list[BoundSymbol]:
    """The same symbols, where values by some names are others."""
    swaps = {
        variableify(p): names[p.name]
        for bsym in symbols
        for p in (*bsym.flat_proxy_outs, *bsym.flat_proxy_args)
        if p.name in names
    }
    return [bsym.from_bsym_swap_proxies(swaps) for bsym in symbols]
