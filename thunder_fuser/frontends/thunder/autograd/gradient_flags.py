"""Which tensors of a trace require gradients.

Thunder knows that of arguments, and assumes that no result of an operation requires one. A result
requires a gradient if an operand of its operation does, under torch's grad mode, or if the program
asks for one: `x.requires_grad_()` of a new tensor makes it a leaf of autograd's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import NamedTuple

from thunder.core import dtypes
from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx

from thunder_fuser.frontends.thunder.claims.targets import targets

ProxyTag.register_tag("CONSTANT_OF_TORCH")
"""Of results that torch does not differentiate, of calls that have others which it does."""
ProxyTag.register_tag("LEAF_OF_TORCH")
"""Of results that the program asked gradients for."""
_CREATED = tuple(
    f"torch.{name}_like" for name in ("zeros", "ones", "full", "empty", "rand", "randn")
)
"""Calls that read the type of their operand, and no number."""

_differentiated: ContextVar[Container[str] | None] = ContextVar("differentiated", default=None)
"""The names of results that require gradients, of the trace being differentiated."""


def requires_gradient(x: TensorProxy) -> bool:
    """True if a gradient goes from `x` to an argument that requires one: in the trace that is being
    differentiated, or else in the one that is being made.
    """
    if is_leaf(x):
        return True
    names, trace = _differentiated.get(), get_tracectx()
    if names is None:
        names = set() if trace is None else requiring_gradients(chain.from_iterable(trace.scopes))
    return x.name in names


def wants_gradient(x: TensorProxy) -> bool:
    """True if `x` requires a gradient where gradients are enabled, or computed right now."""
    data = get_compile_data()
    is_enabled = data is None or data.is_grad_enabled or _differentiated.get() is not None
    return is_enabled and requires_gradient(x)


@contextmanager
def differentiating(trace: TraceCtx) -> Iterator[None]:
    """A context in which a trace is differentiated."""
    token = _differentiated.set(requiring_gradients(trace.bound_symbols))
    try:
        yield
    finally:
        _differentiated.reset(token)


def requiring_gradients(
    symbols: Iterable[BoundSymbol], memory: Callable[[str], str] = lambda name: name
) -> set[str]:
    """Return the names of tensors that require gradients, other than arguments: results, those
    inside of calls included, and what is updated. `memory` gives tensors that share memory one
    name: an update that gives a tensor a history gives it to its other names and to its views.
    """
    return set(gradient_sources(symbols, memory).of_results)


class Sources(NamedTuple):
    """Which leaves gradients of tensors go to, each a bit of an int.

    arguments   bits of those that are read: arguments that require gradients, and results that the
                program asked gradients for
    of_results  bits of the leaves that each tensor which requires a gradient depends on
    """

    arguments: dict[str, int]
    of_results: dict[str, int]

    def of(self, name: str) -> int:
        """Return the bits of the arguments that a result of this name, or an argument, has."""
        return self.arguments.get(name, 0) | self.of_results.get(name, 0)


def gradient_sources(
    symbols: Iterable[BoundSymbol], memory: Callable[[str], str] = lambda name: name
) -> Sources:
    """Return the arguments that each tensor depends on; `memory` as in `requiring_gradients`."""
    found = Sources({}, {})
    sharing: dict[tuple[str, bool], set[str]] = {}
    detached: set[str] = set()

    def part(name: str) -> tuple[str, bool]:
        """What updates of a tensor are seen by: names of its memory, detached ones apart."""
        return memory(name), name in detached

    def take(symbols: Iterable[BoundSymbol]) -> None:
        for symbol in symbols:
            operands = [p for p in symbol.flat_proxy_args if isinstance(p, TensorProxy)]
            hidden = {memory(x.name) for x in operands if x.name in detached}
            if hidden or detaches(symbol):
                outs = (p.name for p in symbol.flat_proxy_outs)
                detached.update(p for p in outs if detaches(symbol) or memory(p) in hidden)
            if detaches(symbol) or symbol.sym.id in _CREATED:
                continue
            take(symbol.subsymbols)
            made = [p for p in symbol.flat_proxy_outs if is_differentiable(p)]
            sources = 0
            for x in (*operands, *made):
                if ProxyTag.DETACHED_AUTOGRAD_GRAPH not in x.tags:
                    sharing.setdefault(part(x.name), set()).add(x.name)
            for x in operands:
                if is_leaf(x):
                    found.arguments.setdefault(x.name, 1 << len(found.arguments))
                sources |= found.of(x.name)
            if sources and (made or not symbol.flat_proxy_outs):
                written = (sharing.get(part(x), {x}) for x in targets(symbol))
                for name in (*(p.name for p in made), *chain.from_iterable(written)):
                    found.of_results[name] = found.of_results.get(name, 0) | sources

    take(symbols)
    return found


def is_leaf(x: TensorProxy) -> bool:
    """True for an argument that requires a gradient, or a result that the program asked one for."""
    return bool(x.requires_grad) or ProxyTag.LEAF_OF_TORCH in x.tags


def detaches(symbol: BoundSymbol) -> bool:
    """True for `x.detach()`."""
    return bool(symbol.sym.id == "torch.detach")


def is_differentiable(x: object) -> bool:
    """True for a tensor of numbers that have gradients, unless it is detached."""
    return (
        isinstance(x, TensorProxy)
        and dtypes.is_inexact_dtype(x.dtype)
        and ProxyTag.DETACHED_AUTOGRAD_GRAPH not in x.tags
        and ProxyTag.CONSTANT_OF_TORCH not in x.tags
    )
