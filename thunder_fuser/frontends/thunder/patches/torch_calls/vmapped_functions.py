"""`torch.vmap`: one call of torch, of the function that it maps.

Thunder ran torch's transform on its proxies, which failed inside of torch. Masks of attention in
transformers are made in this way (Gemma 3 with images), and so are ensembles. Here the function is
traced once, for one element of the mapped dimension, and what that recorded is a function of its
operands and of the tensors that it reads from outside, which torch maps (`opaque_calls.py`).

Results that torch returns as views of an operand are copies. A function that updates a tensor or
container from outside raises, and so does, in a program with gradients, one that updates any tensor
or ends gradients (`x.detach()`). For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.codeutils import SigInfo
from thunder.core.dtypes import to_torch_dtype
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, interpreter_needs_wrap
from thunder.core.prims import PrimIDs, python_return, unpack_trivial
from thunder.core.proxies import NumberProxy, Proxy, ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.pythonex import ex as python_executor
from thunder.executors.torchex import ex as torch_executor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._functorch import vmap
from torch.utils import _pytree as pytree

from thunder_fuser.frontends.thunder.autograd.gradient_flags import detaches, requires_gradient
from thunder_fuser.frontends.thunder.claims.targets import updated_names
from thunder_fuser.frontends.thunder.opaque_calls import call_function
from thunder_fuser.frontends.thunder.patches.changes.containers_changed import count_of_changes
from thunder_fuser.frontends.thunder.patches.patched import OUTSIDE, ask_first

Function = Callable[..., Any]

_UNPACKING = frozenset(prim for prim in PrimIDs if prim.name.startswith("UNPACK"))


class _Mapped(NamedTuple):
    """Where the tensors of a call are mapped, as torch finds it.

    dims  of all leaves of the arguments, None for those that each element gets as they are
    """

    size: int
    dims: tuple[int | None, ...]
    structure: pytree.TreeSpec


class _Recorded(NamedTuple):
    """A function of one element.

    outside  tensors that it reads beside its arguments
    results  the leaves of what it returns, and what they are in
    """

    symbols: Sequence[BoundSymbol]
    outside: Sequence[TensorProxy]
    results: Sequence[Any]
    structure: pytree.TreeSpec


def _vmap_impl(
    func: Function,
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk_size: int | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the results of a function that is mapped; interpreted."""
    one = _elements(in_dims, func, args)
    options = {"out_dims": out_dims, "randomness": randomness, "chunk_size": chunk_size}
    return _map(func, in_dims, options, args, one, kwargs)


def _elements(in_dims: Any, func: Function, args: Sequence[Any]) -> Any:
    """Return the arguments for one element, which are new tensors."""
    mapped, leaves = _mapped(in_dims, func, args), pytree.tree_leaves(args)
    found = [
        x if dim is None else _element(x, dim) for x, dim in zip(leaves, mapped.dims, strict=True)
    ]
    return pytree.tree_unflatten(found, mapped.structure)


def _mapped(in_dims: Any, func: Function, args: Sequence[Any]) -> _Mapped:
    """Return where the tensors are mapped; torch raises the errors of the caller."""
    leaves, structure = pytree.tree_flatten(tuple(args))
    like = [_without_values(x) if isinstance(x, TensorProxy) else x for x in leaves]
    given = pytree.tree_unflatten(like, structure)
    size, dims, _, _ = vmap._process_batched_inputs(in_dims, given, func)
    return _Mapped(size, tuple(dims), structure)


def _without_values(x: TensorProxy) -> torch.Tensor:
    return torch.empty(tuple(x.shape), dtype=to_torch_dtype(x.dtype), device="meta")


def _element(x: TensorProxy, dim: int) -> TensorProxy:
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    needs = requires_gradient(x)
    return TensorProxy(shape=shape, device=x.device, dtype=x.dtype, requires_grad=needs)


def _map(
    func: WrappedValue,
    in_dims: WrappedValue,
    options: WrappedValue,
    args: WrappedValue,
    one: WrappedValue,
    kwargs: WrappedValue,
) -> Any:
    """Return the wrapped results, or the interpreter's signal of an exception."""
    trace = get_tracectx()
    changes = _changes()
    trace.push_scope([])
    result = interpreter._interpret_call(_call, func, one, kwargs)
    symbols = trace.pop_scope()
    trace.peek_scope().extend(s for s in symbols if s.sym.id in _UNPACKING)
    if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return result
    if _changes() != changes:
        return interpreter.do_raise(_error("sets an attribute, or changes a container"))
    symbols = [s for s in symbols if s.sym.id not in _UNPACKING]
    record = interpreter_needs_wrap(partial(_record, func.value, symbols))
    return record(in_dims, options, args, one, result)


def _call(func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


def _changes() -> int:
    """Return how many attributes and containers the trace has changed."""
    changed = jit_ext.get_jit_ctx()._additional_outputs.values()
    return sum(map(len, changed)) + count_of_changes()


def _record(
    func: Function,
    symbols: Sequence[BoundSymbol],
    in_dims: Any,
    options: Mapping[str, Any],
    args: Any,
    one: Any,
    result: Any,
) -> Any:
    """Record the call, and return its results."""
    mapped = _mapped(in_dims, func, args)
    given = [(x, dim) for x, dim in zip(pytree.tree_leaves(args), mapped.dims, strict=True)]
    operands = [x for x, dim in given if dim is not None]
    elements = [
        x for x, dim in zip(pytree.tree_leaves(one), mapped.dims, strict=True) if dim is not None
    ]
    leaves, structure = pytree.tree_flatten(result)
    recorded = _Recorded(symbols, _outside(symbols, elements, leaves), leaves, structure)
    tensors = [*operands, *recorded.outside]
    _refuse(recorded, any(map(requires_gradient, tensors)))
    of_one = _function(recorded, elements)
    dims = (*(dim for _, dim in given if dim is not None), *(None for _ in recorded.outside))

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call = torch.vmap(lambda *x: pytree.tree_unflatten(of_one(*x), structure), dims, **options)
        with TransformGetItemToIndex():
            found = call(*tensors)
        memory = {x.untyped_storage()._cdata for x in tensors if not _is_mapped(x)}
        return tuple(_new(x, memory) for x in pytree.tree_leaves(found))

    try:
        found = call_function(run, "vmap", tensors)
    except NotImplementedError as error:  # Of tensors without values, around torch's error.
        raise error.__cause__ or error from None
    return pytree.tree_unflatten(list(found), structure)


def _is_mapped(x: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def _new(x: torch.Tensor, memory: set[int]) -> torch.Tensor:
    """Return a tensor that shares no memory with these."""
    is_view = _is_mapped(x) or x.untyped_storage()._cdata in memory
    return x.clone() if is_view else x


def _outside(
    symbols: Sequence[BoundSymbol], elements: Sequence[TensorProxy], results: Sequence[Any]
) -> list[TensorProxy]:
    """Return what symbols and results read that they do not make, other than the elements."""
    known = {x.name for x in elements}
    found: list[TensorProxy] = []
    for read, made in (
        *((s.flat_proxy_args, s.flat_proxy_outs) for s in symbols),
        ([x for x in results if isinstance(x, Proxy)], []),
    ):
        new = {x.name: x for x in read if x.name not in known}
        if any(isinstance(x, NumberProxy) for x in new.values()):
            raise _error("reads a number that the program computes")
        found += new.values()
        known |= {*new, *(x.name for x in made)}
    return found


def _refuse(recorded: _Recorded, is_differentiated: bool) -> None:
    """Raise for a function that does more than compute tensors, or where gradients end in it."""
    results = [x for s in recorded.symbols for x in s.flat_proxy_outs]
    updated = updated_names(recorded.symbols)
    if not updated <= {x.name for x in results}:
        raise _error("updates a tensor that it does not make")
    if not is_differentiated:
        return
    if updated:
        raise _error("updates a tensor in place, in a program with gradients")
    ends = any(ProxyTag.DETACHED_AUTOGRAD_GRAPH in x.tags for x in results)
    if ends or any(map(detaches, recorded.symbols)):
        raise _error("computes something without gradients (x.detach(), torch.no_grad())")


def _error(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"torch.vmap in a compiled function is one call of torch, of a function that only computes "
        f"tensors: this one {what}; {OUTSIDE}"
    )


def _function(recorded: _Recorded, elements: Sequence[TensorProxy]) -> Function:
    """Return the function of elements and what is outside."""
    trace = TraceCtx(None)
    operands = [*elements, *recorded.outside]
    trace.args, trace.kwargs, trace.names = tuple(operands), {}, set(get_tracectx().names)
    trace._siginfo = SigInfo.from_name_and_args("one_element", operands)
    unpacked = [unpack_trivial.bind(x, name=x.name, output=x) for x in operands]
    end = python_return.bind(tuple(recorded.results), output=None)
    trace.bound_symbols = [*unpacked, *recorded.symbols, end]
    run = transform_for_execution(trace, [torch_executor, python_executor])
    # Thunder's decorators would end autograd and autocast.
    found: Function = run.python_callable(include_decorators=False)
    return found


_REPLACED: Mapping[Function, Function] = {
    vmap.vmap_impl: partial(interpreter._interpret_call, _vmap_impl),
    _map: _map,
}


def _all_elements(*values: WrappedValue) -> Any:
    jit_ext.recursively_proxy(*values)
    return interpreter_needs_wrap(_elements)(*values)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values."""
    return _all_elements if fn is _elements else _REPLACED[fn]


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=(*_REPLACED, _elements))
