"""Tensors whose numbers a trace knows, where a program reads one of them into Python.

`torch.arange(n)[-1] + 1` and the like are functions of constants: sizes, and numbers that the
guards of a program check. Models of transformers compute the length of a mask in this way. Thunder
raised an error for `bool(x)`, `int(x)` and `torch.full((x,), 0)` of all tensors, and took what
`x.item()` reads for unknown. Here, what made such a tensor is run at once. For functions compiled
with this executor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, partialmethod
from itertools import chain
from math import prod
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.dtypes import is_nonboolean_integer_dtype
from thunder.core.prims import OpTags, PrimIDs, python_return
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.pythonex import ex as python_executor
from thunder.executors.torchex import ex as torch_executor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_fuser.frontends.thunder.autograd.draws import is_random
from thunder_fuser.frontends.thunder.claims.targets import primitives, updated_names
from thunder_fuser.frontends.thunder.patches.patched import UnknownNumbersError, is_patched
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS

_LARGEST = 1 << 20
"""Elements of a tensor that is computed while a function is traced."""
_SIZED: Mapping[str, int] = {
    **dict.fromkeys(("arange", "full", "zeros", "ones", "empty", "eye"), 0),
    **dict.fromkeys(("getitem", "reshape", "view", "expand", "repeat"), 1),
    **dict.fromkeys(("new_full", "new_zeros", "new_ones", "new_empty"), 1),
}
"""Symbols whose arguments, from this position, are sizes or places."""
_SIZES_BY_NAME = ("size", "start", "end", "step")

_UNPACKING = frozenset(prim for prim in PrimIDs if prim.name.startswith("UNPACK"))
_CREATING = ("full", "zeros", "ones", "empty", "new_full", "new_zeros", "new_ones", "new_empty")


def value_of(x: TensorProxy) -> torch.Tensor | None:
    """Return the tensor that a proxy of the current trace stands for, or None if it depends on an
    argument or a random number, or may have been updated.
    """
    symbols = list(chain.from_iterable(get_tracectx().scopes))
    makers = {out.name: symbol for symbol in symbols for out in symbol.flat_proxy_outs}
    needed = _history(x.name, makers)
    if needed is None or not needed.isdisjoint(updated_names(symbols)):
        return None
    computed = [s for s in symbols if any(out.name in needed for out in s.flat_proxy_outs)]
    return _run(computed, x)


def number_of(x: Any) -> Any:
    """Return the number that a proxy of one element stands for; None if that is not known."""
    if not isinstance(x, TensorProxy) or prod(x.shape) != 1 or not is_patched():
        return None
    value = value_of(x)
    return None if value is None else value.item()


def _history(name: str, makers: Mapping[str, BoundSymbol]) -> set[str] | None:
    """Return the names of the proxies that a proxy is computed from, with its own; None if one of
    them is no function of constants.
    """
    found: set[str] = set()
    pending = [name]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        maker = makers.get(name)
        if maker is None or not _is_function(maker):
            return None
        found.add(name)
        pending.extend(operand.name for operand in maker.flat_proxy_args)
    return found


def _is_function(symbol: BoundSymbol) -> bool:
    """True if a symbol computes small tensors of its operands alone; what unpacks an argument
    computes nothing.
    """
    effects = (OpTags.RANDOM_OP, OpTags.IN_PLACE, OpTags.DONT_DCE)
    if symbol.sym.id in _UNPACKING:
        return False
    return all(
        isinstance(out, TensorProxy) and prod(out.shape) <= _LARGEST
        for out in symbol.flat_proxy_outs
    ) and all(
        p.sym.id is not PrimIDs.COPY_ and not any(tag in effects for tag in p.sym.tags or ())
        for p in primitives([symbol])
    )


def _computation() -> None:
    """Name the trace of constants."""


def _run(symbols: list[BoundSymbol], result: TensorProxy) -> torch.Tensor | None:
    """Return the result of symbols without operands of others; None if one of them draws random
    numbers, or where the device that they name is not there.
    """
    trace = TraceCtx(_computation)
    trace.args, trace.kwargs, trace.names = (), {}, set(get_tracectx().names)
    trace.bound_symbols = [*symbols, python_return.bind(result, output=None)]
    with unset_fake_temporarily():
        try:
            run = transform_for_execution(trace, [torch_executor, python_executor])
            call = run.python_callable()
            with _Constants():
                found = call()
        except (_NotConstantError, AssertionError, RuntimeError):  # The latter two of a device.
            return None
    return found if isinstance(found, torch.Tensor) else None


class _NotConstantError(Exception):
    """Raised for an operation whose result differs from run to run."""


class _Constants(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it untyped
    """Raises _NotConstantError for draws of random numbers, and for new memory as it is."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if is_random(func, args, kwargs) or "empty" in func.name():
            raise _NotConstantError(func.name())
        return func(*args, **(kwargs or {}))


def _with_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a symbol with numbers for the known tensors among its sizes."""

    def call(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
        first = _SIZED.get(symbol.name)
        if first is not None and is_patched():
            # The places where a range starts and ends may be no integers.
            known = _number if symbol.name == "arange" else _size
            args = (*args[:first], *(tree_map(known, x) for x in args[first:]))
            named = {n: tree_map(known, x) for n, x in kwargs.items() if n in _SIZES_BY_NAME}
            kwargs = {**kwargs, **named}
            if symbol.name in _CREATING:
                _refuse_unknown(symbol.name, args[first : first + 1])
        return original(symbol, *args, **kwargs)

    return call


def _size(x: Any) -> Any:
    if isinstance(x, slice):
        return slice(*map(_size, (x.start, x.stop, x.step)))
    if not isinstance(x, TensorProxy) or x.ndim or not is_nonboolean_integer_dtype(x.dtype):
        return x
    return _number(x)


def _number(x: Any) -> Any:
    number = number_of(x)
    return x if number is None else number


def _refuse_unknown(name: str, sizes: Sequence[Any]) -> None:
    if any(isinstance(x, TensorProxy) for x in tree_flatten(sizes)[0]):
        raise UnknownNumbersError(
            f"{name}: the size of its result depends on the numbers in a tensor, which are known "
            "only as the program runs; compile the functions or modules around it, and call it "
            "outside of them"
        )


def _item(original: Callable[..., Any], self: TensorProxy) -> Any:
    number = number_of(self)
    return original(self) if number is None else number


def _converted(self: TensorProxy, kind: type, original: Callable[..., Any]) -> Any:
    number = number_of(self)
    if number is None and is_patched():
        raise UnknownNumbersError(
            f"{kind.__name__}(x) of a tensor that the program computes (data dependency): its "
            "number is known only as the program runs; compute with tensors (torch.where), or read "
            "it outside of the compiled function"
        )
    return original(self) if number is None else kind(number)


def _index(self: TensorProxy) -> int:
    number = number_of(self)
    if number is None:
        raise TypeError(
            "a tensor is an index of Python only if it has one element, an integer that is known "
            "while the function is traced"
        )
    return operator.index(number)


def at_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of proxies that the interpreter calls instead of interpreting it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    jit_ext._general_jit_lookaside_map[call] = interpreter.interpreter_needs_wrap(call)
    return call


def register() -> None:
    """Patch the methods by which programs read tensors, and how Thunder calls symbols."""
    METHODS["item"] = at_once(partial(_item, METHODS["item"]))
    for kind in (int, float, complex):
        name = f"__{kind.__name__}__"
        setattr(TensorProxy, name, partialmethod(_converted, kind, getattr(TensorProxy, name)))
    TensorProxy.__index__ = _index
    Symbol.__call__ = _with_sizes(Symbol.__call__)
