"""Layouts that a program asks for: `x.stride()`, `x.is_contiguous()`, `x.storage_offset()`.

A trace has no strides, so that Thunder knows none, and took every tensor for contiguous. Here those
of arguments are guarded, and those of what the program computes are torch's: its calls so far are
run on meta tensors. For functions compiled with this executor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected
from thunder_fuser.frontends.thunder.patches.guards.value_guards import add_guard_of
from thunder_fuser.frontends.thunder.patches.patched import UntraceableError
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known
from thunder_fuser.frontends.thunder.trace.meta_results import is_plain, stated
from thunder_fuser.frontends.thunder.updates.layouts import layout_of, run_on_meta


class _Layout(Expected):
    """Strides and storage offset of an argument."""

    def holds(self, given: Any) -> bool:
        return bool((given.stride(), given.storage_offset()) == self.value)

    def __repr__(self) -> str:
        return "a tensor of strides {} and storage offset {}".format(*self.value)


@dataclass(slots=True)
class _Known:
    """Meta tensors of a trace by name, and the names of those whose layout is unknown."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def take(self, x: TensorProxy) -> None:
        """Add an argument, and guard its layout."""
        layout = layout_of(x)
        if layout is None or not is_plain(x):
            self.unknown.add(x.name)
            return
        dtype, shape = stated(x)
        strides, offset = layout
        end = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        memory = torch.empty(max(end, 0), dtype=dtype, device="meta")
        self.tensors[x.name] = memory.as_strided(shape, strides, offset)
        add_guard_of(x, _Layout(layout))

    def run(self, symbol: BoundSymbol) -> None:
        """Add the results of a call; those of an operand of unknown layout are unknown, too."""
        names = [x.name for x in _tensors(symbol.flat_proxy_outs)]
        if all(name in self.tensors for name in names):
            return
        operands = _tensors(symbol.flat_proxy_args)
        for x in operands:
            if x.name not in self.tensors and x.name not in self.unknown:
                self.take(x)
        if any(x.name in self.unknown for x in operands) or self._is_of_device(symbol, operands):
            self.unknown.update(names)
        else:
            list(run_on_meta(symbol, self.tensors, self.unknown))

    def _is_of_device(self, symbol: BoundSymbol, operands: Sequence[TensorProxy]) -> bool:
        """True if the layout of a result depends on the library that computes it."""
        return symbol.sym.name in _BY_LIBRARIES and not all(
            self.tensors[x.name].is_contiguous() for x in operands
        )


_BY_LIBRARIES = frozenset(
    {
        *(f"{name}{n}d" for name in ("conv", "conv_transpose", "max_pool") for n in (1, 2, 3)),
        *("convolution", "batch_norm", "group_norm", "instance_norm", "tril", "triu"),
    }
)
"""Calls whose results lie otherwise than on meta tensors where an operand is not row-major."""
_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


def _tensors(values: Sequence[Any]) -> list[TensorProxy]:
    return [x for x in values if isinstance(x, TensorProxy)]


def _on_meta(name: str, x: TensorProxy) -> torch.Tensor:
    """Return a meta tensor that lies in memory as `x` does; raise UntraceableError if that is not
    known.
    """
    trace = get_tracectx()
    found = _known.setdefault(trace, _Known())
    for symbol in _makers(x, list(chain.from_iterable(trace.scopes))):
        found.run(symbol)
    if x.name not in found.tensors and x.name not in found.unknown:
        found.take(x)
    if x.name in found.unknown:
        raise UntraceableError(
            f"x.{name}() of a tensor whose strides are not known while the function is traced; call"
            " it outside, or x.contiguous() first"
        )
    return found.tensors[x.name]


def _makers(x: TensorProxy, symbols: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the calls that `x` depends on, in order."""
    needed, made = {x.name}, []
    for symbol in reversed(symbols):
        if not needed.isdisjoint(out.name for out in _tensors(symbol.flat_proxy_outs)):
            needed.update(operand.name for operand in _tensors(symbol.flat_proxy_args))
            made.append(symbol)
    yield from reversed(made)


def _asked(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: TensorProxy, *args: Any, **kwargs: Any) -> Any:
        known(name)
        return method(_on_meta(name, self), *args, **kwargs)

    opaque: Callable[..., Any] = interpreter.make_opaque(answer)
    return opaque


_ASKED: Mapping[str, Callable[..., Any]] = {
    name: getattr(torch.Tensor, name) for name in ("stride", "is_contiguous", "storage_offset")
}


def register() -> None:
    """Add the methods to those of Thunder's tensors."""
    METHODS.update({name: _asked(name, method) for name, method in _ASKED.items()})
