"""Retyping of a trace: proxies get the dtypes and shapes of torch's results.

Thunder decomposes a call by the types that it states. If torch returns another type, the
decomposition computes something else, and so do the decompositions of calls that read the result.
Such calls are decomposed again, on operands with torch's types and with torch's promotion; where
Thunder's promotion still differs, operands are converted to the dtype that torch computes in. A
call that cannot be decomposed in this way stays with torch as a whole, and its consumers see its
true type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from thunder.core import dtypes as thunder_dtypes
from thunder.core import prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.table import TABLE
from thunder_fuser.frontends.thunder.trace.meta_results import (
    Type,
    is_plain,
    stated,
    types_in_torch,
)
from thunder_fuser.ir.dtypes import Category, from_torch

_OTHER_OPERANDS = "its parts do not take the dtypes that torch gives to its operands"

IsFusible = Callable[[BoundSymbol], bool]


@dataclass(frozen=True, slots=True)
class Retyped:
    """The retyped trace.

    left  refusals of symbols that are claimed but left to torch, by `id`
    """

    trace: TraceCtx
    left: Mapping[int, Refusal]


def retype(trace: TraceCtx, is_fusible: IsFusible) -> Retyped:
    """Return the trace with torch's types; the same object if Thunder's are right."""
    work = _Retyping(from_trace(trace), is_fusible)
    for bsym in trace.bound_symbols:
        work.add(bsym)
    if not work.true:
        return Retyped(trace, {})
    return Retyped(work.trace, work.left)


@dataclass
class _Retyping:
    """The retyped trace so far.

    true  proxies with torch's types, by the wrongly typed ones
    """

    trace: TraceCtx
    is_fusible: IsFusible
    true: dict[Any, TensorProxy] = field(default_factory=dict)
    left: dict[int, Refusal] = field(default_factory=dict)

    def add(self, bsym: BoundSymbol) -> None:
        """Append a symbol, on operands with their true types."""
        is_changed = any(variableify(p) in self.true for p in bsym.flat_proxy_args)
        # Only the symbol's own operands matter: subsymbols define the others that they read.
        read = bsym.from_bsym_swap_proxies(self.true) if is_changed else bsym
        if bsym.sym.id is PrimIDs.RETURN or (not is_changed and _is_certain(bsym)):
            self.trace.bound_symbols.append(read)
            return
        types = _types(read)
        outs = read.flat_proxy_outs
        is_right = types is None or types == [stated(p) for p in outs]
        if is_right and not is_changed:
            self.trace.bound_symbols.append(read)
            return
        again = self._taken_apart_again(read, types)
        if again is None:
            again = [self._left_to_torch(read, types)]
        self.trace.bound_symbols += again

    def _taken_apart_again(
        self, bsym: BoundSymbol, types: Sequence[Type] | None
    ) -> list[BoundSymbol] | None:
        """Return fusible symbols of a new decomposition with results of these types, or None."""
        call = _call_before_claims(bsym)
        for args, kwargs in _operands(call, types):
            made: list[BoundSymbol] = []
            with tracectx(self.trace):
                self.trace.push_scope(made)
                try:
                    call_args = [x() if isinstance(x, _Converted) else x for x in args]
                    results, _ = tree_flatten(call.sym(*call_args, **kwargs))
                except Exception:  # Thunder's own checks, on types that it does not expect
                    continue
                finally:
                    self.trace.pop_scope()
            given = [p for p in results if isinstance(p, Proxy)]
            if not all(map(is_plain, given)) or len(given) != len(bsym.flat_proxy_outs):
                continue
            if types is not None and list(types) != [stated(p) for p in given]:
                continue
            if all(map(self.is_fusible, made)):
                return self._renamed(made, given, bsym)
        return None

    def _renamed(
        self, made: Sequence[BoundSymbol], given: Sequence[TensorProxy], bsym: BoundSymbol
    ) -> list[BoundSymbol]:
        """Return the new symbols with the result names, source line and tags of `bsym`."""
        names = {}
        for new, old in zip(given, bsym.flat_proxy_outs, strict=True):
            names[variableify(new)] = self._state(old, stated(new))
        return [
            b.from_bsym_swap_proxies(names).from_bsym(
                tags=b.tags | bsym.tags,
                source_filename=bsym.source_filename,
                source_positions=bsym.source_positions,
            )
            for b in made
        ]

    def _left_to_torch(self, bsym: BoundSymbol, types: Sequence[Type] | None) -> BoundSymbol:
        outs = bsym.flat_proxy_outs
        if types is not None:
            differ = [
                f"{_words(stated(p))} where torch gives {_words(found)}"
                for p, found in zip(outs, types, strict=True)
                if stated(p) != found
            ]
            for old, found in zip(outs, types, strict=True):
                self._state(old, found)
            bsym = bsym.from_bsym_swap_proxies(self.true)
            reason = f"Thunder states {'; '.join(differ)}" if differ else _OTHER_OPERANDS
        else:
            reason = _OTHER_OPERANDS
        self.left[id(bsym)] = Refusal("dtype", reason)
        return bsym

    def _state(self, old: TensorProxy, found: Type) -> TensorProxy:
        """Return a proxy of the same name with the true type and a strong dtype; note it in `true`
        if it differs.
        """
        true = _typed(old, found)
        if stated(old) != found or old.true_dtype != true.true_dtype:
            self.true[variableify(old)] = true
        return true


_VIEWS = frozenset({"diagonal"})
"""Views whose stated shape is wrong in Thunder if the result is empty."""


def _is_certain(bsym: BoundSymbol) -> bool:
    """True if stated types are right without a check: operands and results share one floating
    dtype, which all promotion rules keep, and it is not one of `_VIEWS` of another executor.
    """
    if bsym.sym.executor is not None and bsym.sym.name in _VIEWS:
        return False
    tensors = [p for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs) if is_plain(p)]
    found = {p.true_dtype for p in tensors}
    return len(found) <= 1 and all(thunder_dtypes.is_float_dtype(d) for d in found)


def _types(bsym: BoundSymbol) -> list[Type] | None:
    """Return the true types of a symbol's results: torch's dtypes; for prims that read tensors,
    shapes by Thunder's meta function.
    """
    by_rule, by_torch = _types_by_meta(bsym), types_in_torch(bsym)
    if by_torch is None:
        return by_rule
    if by_rule is None or not any(map(is_plain, bsym.flat_proxy_args)):
        return by_torch
    return [Type(t.dtype, s.shape) for t, s in zip(by_torch, by_rule, strict=True)]


def _types_by_meta(bsym: BoundSymbol) -> list[Type] | None:
    """Return a claimed prim's result types by Thunder's meta function, which stated types in
    gradients may contradict; None if it rejects the operands.
    """
    if not (bsym.sym.is_prim and bsym.sym.id in TABLE):
        return None
    args, kwargs = tree_map(_strong, (bsym.args, bsym.kwargs))
    try:
        with tracectx(TraceCtx(None)):
            given, _ = tree_flatten(bsym.sym.meta(*args, **kwargs))
    except Exception:  # operands that the primitive does not take
        return None
    return [stated(p) for p in given] if all(map(is_plain, given)) else None


def _call_before_claims(bsym: BoundSymbol) -> BoundSymbol:
    """Return the user's call behind another executor's claim, which may exist only because of
    Thunder's types.
    """
    if bsym.sym.executor is None or len(bsym.subsymbols) != 1:
        return bsym
    (call,) = bsym.subsymbols
    same = [p.name for p in call.flat_proxy_outs] == [p.name for p in bsym.flat_proxy_outs]
    return call if same and call.sym.executor is None else bsym


class _Converted:
    """An operand to be converted to the dtype that torch computes in."""

    def __init__(self, proxy: TensorProxy, dtype: thunder_dtypes.dtype) -> None:
        self.proxy, self.dtype = proxy, dtype

    def __call__(self) -> TensorProxy:
        return prims.convert_element_type(self.proxy, self.dtype)


def _operands(
    call: BoundSymbol, types: Sequence[Type] | None
) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
    """Yield a call's arguments with their own types, then converted to its one result's dtype."""
    args, kwargs = tree_map(_strong, (call.args, call.kwargs))
    yield args, kwargs
    if types is None or len(types) != 1 or types[0].dtype is torch.bool:
        return
    dtype = thunder_dtypes.to_dtype(types[0].dtype)
    wanted = from_torch(types[0].dtype)
    converted = [_Converted(x, dtype) if is_plain(x) and x.dtype != dtype else x for x in args]
    narrowed = [
        x
        for x in converted
        if isinstance(x, _Converted)
        and from_torch(stated(x.proxy).dtype).category > wanted.category
    ]
    if wanted.category is not Category.COMPLEX and not narrowed:
        yield converted, kwargs


def _strong(argument: object) -> object:
    """Return a tensor argument with a strong dtype: in torch only numbers have weak dtypes."""
    if not is_plain(argument):
        return argument
    assert isinstance(argument, TensorProxy)
    return _typed(argument, stated(argument))


def _typed(proxy: TensorProxy, found: Type) -> TensorProxy:
    dtype = thunder_dtypes.to_dtype(found.dtype)
    if proxy.true_dtype == dtype and tuple(proxy.shape) == found.shape:
        return proxy
    with tracectx(TraceCtx(None)):
        return proxy.replace(dtype=dtype, shape=found.shape)


def _words(found: Type) -> str:
    return f"{str(found.dtype).removeprefix('torch.')}{list(found.shape)}"
