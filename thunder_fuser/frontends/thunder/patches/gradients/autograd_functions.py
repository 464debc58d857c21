"""Autograd functions with `setup_context`, with several results, or that use more of the context.

Thunder passes the context to `forward`; torch passes it to `setup_context` if there is one, with
the inputs and the output. Thunder's context lacks `needs_input_grad`: here every floating-point or
complex input needs its gradient, and dead code elimination removes those that are not read. A
result marked as not differentiable has a gradient of zeros. One that is an input was taken for it,
so that the gradient transform did not find its producer. Thunder's gradient transform is right
for any number of results but refuses more than one. A tensor that is given twice made two arguments
of one name; here it is one argument, with the sum of its gradients, and one that is saved twice has
two names. So the function is replaced by one whose `forward` does all of this, and the transform is
told not to count results.

Tensors that a forward computes and keeps as attributes of the context were unknown in the backward;
they are saved.

A function that updates tensors which it makes (XSoftmax in transformers) raised, or read them as
they were before. It is one call of torch, and so is its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any

import torch
from thunder.core import jit_ext, update_aliases
from thunder.core.interpreter import (
    WrappedValue,
    interpreter_needs_wrap,
    make_opaque,
    unwrap,
    wrap,
)
from thunder.core.prims import shallow_copy
from thunder.core.proxies import TensorProxy, TorchAutogradFunctionCtxProxy
from thunder.core.pytree import tree_iter
from thunder.core.trace import TraceCtx, get_tracectx
from torch._subclasses.fake_tensor import FakeTensor

from thunder_fuser.frontends.thunder.opaque_calls import (
    call_function,
    pure_results,
    under_autocast,
    unrecorded_if_it_raises,
)
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.trace.call_facts import gives_new_memory

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_APPLY: Callable[..., Any] = torch.autograd.Function.apply.__func__
_original: Callable[..., Any] = _LOOKASIDES[_APPLY]
_NO_CONTEXT = torch.autograd.Function.setup_context


def _apply(function: WrappedValue, /, *args: Any, **kwargs: Any) -> Any:
    """Return the wrapped result of a wrapped autograd function, or the interpreter's signal."""
    if not is_patched():
        return _original(function, *args, **kwargs)
    known = jit_ext.get_jit_ctx().ad_hoc_executor.implmap
    before = set(known)
    jit_ext.recursively_proxy(*(x for x in args if isinstance(unwrap(x), torch.Tensor)))
    distinct, places = _distinct(args)
    kind = unwrap(function)
    function = wrap(_with_context(kind, places), provenance=function.provenance)
    try:
        with _refusing_updates(), unrecorded_if_it_raises():
            found = _original(function, *distinct, **kwargs)
    except _Updates:
        return interpreter_needs_wrap(partial(_in_torch, kind))(*args)
    for name in set(known) - before:
        _count_no_results(known[name].grad_transform)
    return found


class _Updates(Exception):
    """Raised for an autograd function that updates tensors."""


_is_traced: ContextVar[bool] = ContextVar("is_traced", default=False)
"""While the forward and the backward of an autograd function are traced."""


@contextmanager
def _refusing_updates() -> Iterator[None]:
    token = _is_traced.set(True)
    try:
        yield
    finally:
        _is_traced.reset(token)


def _insert_alias_updates(
    original: Callable[..., TraceCtx], trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> TraceCtx:
    """Insert `update_aliases` in the trace of a forward or a backward."""
    if _is_traced.get() and any(map(update_aliases._is_inplace_op, trace.bound_symbols)):
        raise _Updates
    return original(trace, groups)


def _in_torch(kind: type[torch.autograd.Function], *args: Any) -> Any:
    """Record one call of an autograd function, and return its results."""
    is_tensor = [isinstance(x, TensorProxy) for x in args]

    def call(*tensors: torch.Tensor) -> Any:
        parts = iter(tensors)
        return kind.apply(*(next(parts) if k else x for x, k in zip(args, is_tensor, strict=True)))

    @under_autocast
    def run(*tensors: torch.Tensor) -> Any:
        if not any(isinstance(x, FakeTensor) for x in tensors):
            return call(*tensors)
        return pure_results(partial(call, *tensors), tensors, kind.__name__)

    try:
        tensors = [x for x in args if isinstance(x, TensorProxy)]
        return call_function(run, kind.__name__, tensors)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{kind.__name__}, an autograd function that updates tensors, does more than compute "
            "new ones from its arguments (it updates these, returns a view, draws random numbers, "
            "branches on numbers); let it compute new ones, or call it outside of the compiled "
            "function"
        ) from error


def _distinct(args: Sequence[WrappedValue]) -> tuple[list[WrappedValue], tuple[int, ...]]:
    """Return the arguments without tensors that were there before, and the place of each in it."""
    found: list[WrappedValue] = []
    known: dict[str, int] = {}
    places = []
    for arg in args:
        value = unwrap(arg)
        place = len(found)
        if isinstance(value, TensorProxy):
            place = known.setdefault(value.name, place)
        if place == len(found):
            found.append(arg)
        places.append(place)
    return found, tuple(places)


def _count_no_results(transform: FunctionType | None) -> None:
    """Replace the function by which Thunder's gradient transform of a call checks its results."""
    if (
        transform is not None
        and transform.__closure__
        and "check" in transform.__code__.co_freevars
    ):
        place = transform.__code__.co_freevars.index("check")
        transform.__closure__[place].cell_contents = lambda *args: None


def _with_context(kind: type[torch.autograd.Function], places: tuple[int, ...]) -> type:
    """A class with a `forward` that takes the context, and the `backward` of `kind`, of distinct
    arguments. `places`: of the arguments of `kind` among those.
    """

    def forward(ctx: Any, *distinct: Any) -> Any:
        inputs = tuple([distinct[place] for place in places])
        ctx.needs_input_grad = tuple([_is_differentiable(x) for x in inputs])
        output = kind.forward(ctx, *inputs)
        _keep(ctx, output)
        return _apart(output)

    def forward_then_setup(ctx: Any, *distinct: Any) -> Any:
        inputs = tuple([distinct[place] for place in places])
        ctx.needs_input_grad = tuple([_is_differentiable(x) for x in inputs])
        output = kind.forward(*inputs)
        kind.setup_context(ctx, inputs, output)
        _keep(ctx, output)
        return _apart(output)

    def backward(ctx: Any, *gradients: Any) -> Any:
        constants = _kept(ctx)
        given = [torch.zeros_like(g) if k in constants else g for k, g in enumerate(gradients)]
        _hide(ctx, True)
        found = kind.backward(ctx, *given)
        _hide(ctx, False)
        if places == tuple(range(len(places))):
            return found
        return _summed(found)

    def _summed(gradients: Any) -> Any:
        sums: list[Any] = [None] * (max(places) + 1)
        for place, gradient in zip(places, gradients, strict=False):
            if gradient is not None:
                sums[place] = gradient if sums[place] is None else sums[place] + gradient
        return tuple(sums) if len(sums) > 1 else sums[0]

    has_setup = kind.setup_context is not _NO_CONTEXT

    methods = {
        "forward": staticmethod(forward_then_setup if has_setup else forward),
        "backward": staticmethod(backward),
    }
    return type(kind.__name__, (), methods)


# Not interpreted: Thunder takes what that assigns to a context for an argument of the backward.
def _mark(ctx: Any, *results: Any) -> None:
    ctx.__dict__.setdefault("marked", []).extend(results)


def _keep_places(ctx: Any, output: Any) -> None:
    """Keep the positions of the results that are marked as constants."""
    marked = {result.name for result in ctx.__dict__.get("marked", ())}
    results = output if isinstance(output, tuple) else (output,)
    named = [getattr(result, "name", None) for result in results]
    ctx.__dict__["places"] = [k for k, name in enumerate(named) if name in marked]
    _save_attributes(ctx)


def _save_attributes(ctx: Any) -> None:
    """Save the tensors among the attributes that a forward has set, behind those that it saves."""
    saved, constants = ctx._tensors, ctx._const_for_backward
    ctx.__dict__["own"] = len(saved)
    names = {x.name for x in saved if isinstance(x, TensorProxy)}
    for attribute, value in tuple(constants.items()):
        tensors = [x for x in tree_iter(value) if isinstance(x, TensorProxy)]
        new = {x.name: x for x in tensors if x.name not in names}
        saved.extend(new.values())
        names |= new.keys()
        if tensors:
            del constants[attribute]


def _hide_attributes(ctx: Any, is_hidden: bool) -> None:
    ctx.__dict__["hides"] = is_hidden


def _saved_tensors(ctx: Any) -> tuple[TensorProxy, ...]:
    """What is saved: while a backward runs, what its forward has saved by `save_for_backward`."""
    state = ctx.__dict__
    return tuple(ctx._tensors[: state["own"]] if state.get("hides") else ctx._tensors)


def _kept_places(ctx: Any) -> list[int]:
    kept: list[int] = ctx.__dict__["places"]
    return kept


def _apart_from(output: Any) -> Any:
    """Return the output with another tensor on the same memory in place of each that is an input,
    or may be: it has the gradient of the function, an input that of whatever else reads it.
    """
    trace = get_tracectx()
    assert trace is not None
    new = {
        x.name
        for call in trace.peek_scope() or ()
        if gives_new_memory(call)
        for x in call.flat_proxy_outs
    }

    def apart(result: Any) -> Any:
        is_new = not isinstance(result, TensorProxy) or result.name in new
        return result if is_new else result.detach()

    return tuple(map(apart, output)) if isinstance(output, tuple) else apart(output)


def _save(original: Callable[..., None], ctx: Any, *tensors: Any) -> None:
    """Save tensors for the backward, each with a name of its own."""
    names = {x.name for x in ctx.saved_tensors if isinstance(x, TensorProxy)}
    for x in tensors:
        is_again = isinstance(x, TensorProxy) and x.name in names and is_patched()
        saved = shallow_copy(x) if is_again else x
        original(ctx, saved)
        if isinstance(saved, TensorProxy):
            names.add(saved.name)


_keep: Callable[[Any, Any], None] = make_opaque(_keep_places)
_apart: Callable[[Any], Any] = make_opaque(_apart_from)
_kept: Callable[[Any], list[int]] = make_opaque(_kept_places)
_hide: Callable[[Any, bool], None] = make_opaque(_hide_attributes)


def _refuse_dirty(ctx: Any, *arguments: Any) -> None:
    raise NotImplementedError(
        "ctx.mark_dirty in a compiled function: an autograd function that updates its arguments; "
        "let it return a new tensor, and copy that to the argument outside of it"
    )


def _materialize(ctx: Any, value: bool) -> None:
    """A gradient is a tensor in any case: zeros where torch may give None."""


def _is_differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def register() -> None:
    """Patch Thunder's interpreter to use `_apply`, and add methods to Thunder's context."""
    save = partial(_save, TorchAutogradFunctionCtxProxy.save_for_backward)
    TorchAutogradFunctionCtxProxy.save_for_backward = make_opaque(
        lambda ctx, *tensors: save(ctx, *tensors)
    )
    TorchAutogradFunctionCtxProxy.saved_tensors = property(_saved_tensors)
    TorchAutogradFunctionCtxProxy.mark_non_differentiable = make_opaque(_mark)
    TorchAutogradFunctionCtxProxy.set_materialize_grads = _materialize
    TorchAutogradFunctionCtxProxy.mark_dirty = _refuse_dirty
    # Thunder imports it in the function that traces an autograd function.
    update_aliases.insert_alias_updates = partial(
        _insert_alias_updates, update_aliases.insert_alias_updates
    )
    _LOOKASIDES[_APPLY] = _apply
