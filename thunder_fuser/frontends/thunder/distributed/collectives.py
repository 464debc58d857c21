"""Asynchronous collectives of a trace: the symbol that starts one, and the one that waits for it.

In Thunder's traces a collective returns a future, and another symbol waits for it. Both are claimed
by Thunder's torch executor before any trace is fused.
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
    """Register the wait with an error text: (future, words) -> result. It raises FuserError, with
    `words` as description of the collective, if another process has ended or times out.
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
    """An asynchronous collective: the symbol that starts it, and the one that waits for it.

    started, awaited   positions of the two symbols
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
    """Yield collectives of some kinds that exactly one symbol waits for, in the order of starts."""
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
                # A result without other readers is returned, by the last symbol.
                read = readers.get(wait.output.name, len(symbols) - 1)
                yield Collective(bsym, wait, k, awaited, read)


def made_at(symbols: Sequence[BoundSymbol]) -> dict[str, int]:
    """Map names of values to positions of the symbols that define them."""
    return {p.name: k for k, bsym in enumerate(symbols) for p in bsym.flat_proxy_outs}


def begin_of(symbols: Sequence[BoundSymbol], *, backward: bool) -> int:
    """Return the position of the first symbol of the forward, or of the backward, that computes:
    neither UNPACK_TRIVIAL nor GET_GRAD.
    """
    for k, bsym in enumerate(symbols):
        given = bsym.sym.id in (PrimIDs.UNPACK_TRIVIAL, PrimIDs.GET_GRAD)
        if not given and is_backward(bsym) is backward:
            return k
    return len(symbols) - 1


def written(
    trace: TraceCtx, make: Callable[[], _T], *, backward: bool
) -> tuple[_T, list[BoundSymbol]]:
    """Trace a function of proxies: return its results, with new names, and its bound symbols."""
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
    """Return the symbols with the proxies of some names replaced."""
    swaps = {
        variableify(p): names[p.name]
        for bsym in symbols
        for p in (*bsym.flat_proxy_outs, *bsym.flat_proxy_args)
        if p.name in names
    }
    return [bsym.from_bsym_swap_proxies(swaps) for bsym in symbols]
