"""Modules in a model that a trace cannot hold: each runs in torch, as one call.

A router that loops over experts (Mixtral, Qwen2-MoE, DeepSeek in transformers) looks for the tokens
of each one: how many there are, a trace does not know, and the model could not be compiled. Others
ask for strides that a trace does not know, or give a tensor another shape in place. Here the
innermost module whose trace raises for such a reason is one opaque call of its arguments,
parameters and buffers (`opaque_calls.py`), and the rest of the model is traced.

What such a module returns is found by two runs on random numbers, on the device of its parameters.
It must return tensors of the same sizes and dtypes in both and at each call, which is checked,
beside them nothing but None, and only compute: a module that draws random numbers (of torch, or of
NumPy and `random` without a seed of its own), changes a tensor or sets an attribute still raises.
So does the module that is compiled as a whole. For functions compiled with this executor.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from thunder.core import interpreter, jit_ext
from thunder.core.compile_data import get_compile_data
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    WrappedValue,
    interpreter_needs_wrap,
    unwrap,
    wrap_const,
)
from thunder.core.proxies import TensorProxy
from thunder.core.trace import get_tracectx
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.nn import Module
from torch.utils import _pytree as pytree

from thunder_fuser.frontends.thunder.opaque_calls import (
    NotPure,
    call_function,
    pure_results,
    under_autocast,
)
from thunder_fuser.frontends.thunder.patches.changes.attributes_set import DELETED
from thunder_fuser.frontends.thunder.patches.changes.containers_changed import count_of_changes
from thunder_fuser.frontends.thunder.patches.changes.shapes_changed import places_of_changed_shapes
from thunder_fuser.frontends.thunder.patches.patched import UntraceableError, is_patched

Function = Callable[..., Any]

_STAYS = "cannot run in torch as one call"
_SETS = "it sets an attribute, or changes a container"
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class _Reason(str):
    """Why a module cannot be one call."""


class _Type(NamedTuple):
    """The type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _Returned(NamedTuple):
    """What a module returns its tensors in, beside None."""

    structure: pytree.TreeSpec
    is_tensor: tuple[bool, ...]

    def holding(self, tensors: Sequence[Any]) -> Any:
        """Return it with these tensors."""
        parts = iter(tensors)
        leaves = [next(parts) if tensor else None for tensor in self.is_tensor]
        return pytree.tree_unflatten(leaves, self.structure)


class _Tree(NamedTuple):
    """The names of a module's parameters, its buffers, and its submodules with theirs. A tensor
    that it has more than once is in there once.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    modules: tuple[tuple[str, _Tree], ...]


class _Mark:
    """What a trace has recorded at some point."""

    def __init__(self) -> None:
        self._trace = get_tracectx()
        self._depth = len(self._trace.scopes)
        self._count = len(self._trace.peek_scope())
        self._attributes = {held: len(changes) for held, changes in _attributes_set().items()}
        self._changes = self._changes_so_far()

    def restores(self) -> bool:
        """Drop the calls that the trace has recorded since; False if it has recorded changes of
        objects, too, and not back again.
        """
        if not self._attributes_are_as_before() or self._changes_so_far() != self._changes:
            return False
        for held, changes in [*_attributes_set().items()]:
            del changes[self._attributes.get(held, 0) :]
            if not changes:
                del _attributes_set()[held]
        del self._trace.scopes[self._depth :]
        del self._trace.peek_scope()[self._count :]
        return True

    def _attributes_are_as_before(self) -> bool:
        """True if each attribute that was set since is what it was, as in `try: .. finally:`."""
        for held, changes in _attributes_set().items():
            count = self._attributes.get(held, 0)
            before = {**held.original_value, **_last(changes[:count])}
            since = _last(changes[count:])
            if any(before.get(name, DELETED) is not value for name, value in since.items()):
                return False
        return True

    def _changes_so_far(self) -> int:
        """Return how many containers the trace has changed, and shapes of tensors that it had made
        before.
        """
        shapes = sum(place < self._count for place in places_of_changed_shapes(self._trace))
        return count_of_changes() + shapes


def _attributes_set() -> dict[WrappedValue, list[Any]]:
    """Return the changes of dictionaries of attributes that are recorded so far."""
    found: dict[WrappedValue, list[Any]] = jit_ext.get_jit_ctx()._additional_outputs
    return found


def _last(changes: Sequence[Any]) -> dict[Any, Any]:
    """Return what names were set to last."""
    return {unwrap(name): unwrap(value) for _, _, name, value in changes}


def _call(
    original: Function, compilectx: Any, runtimectx: Any, fn: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Return the wrapped result of a call of wrapped values, or the interpreter's signal."""
    if not isinstance(unwrap(fn), Module) or not is_patched():
        return original(compilectx, runtimectx, fn, *args, **kwargs)
    mark = _Mark()
    found = original(compilectx, runtimectx, fn, *args, **kwargs)
    if found is not INTERPRETER_SIGNALS.EXCEPTION_RAISED or not isinstance(fn, WrappedValue):
        return found
    error = runtimectx.curexc
    if not isinstance(error, UntraceableError) or unwrap(fn) is get_compile_data().fn:
        return found
    reason: Any = _SETS
    if mark.restores():
        runtimectx.curexc = None
        called = _in_one_call(fn, args, kwargs)
        reason = unwrap(called)
        if not isinstance(reason, _Reason):
            return called
        runtimectx.curexc = error
    if _STAYS not in str(error):  # It is the innermost module.
        why = f"{error}; the module around it, {type(unwrap(fn)).__name__}, {_STAYS}: {reason}"
        runtimectx.curexc = type(error)(why).with_traceback(error.__traceback__)
    return found


def _in_one_call(
    module: WrappedValue, args: Sequence[WrappedValue], kwargs: Mapping[str, WrappedValue]
) -> Any:
    """Record a call of a module; return its wrapped result, or a `_Reason` if it has to be traced,
    or the interpreter's signal.
    """
    tree = _tree(unwrap(module), set())
    held = _wrapped_tensors(module, tree)
    jit_ext.recursively_proxy(*held, *args, **kwargs)
    record = jit_ext.record_source_loc_in_symbol_header(partial(_record, unwrap(module), tree))
    return interpreter_needs_wrap(record)(*held, *args, **kwargs)


def _tree(module: Module, seen: set[int]) -> _Tree:
    def new(tensors: Mapping[str, Tensor | None]) -> Iterator[str]:
        for name, x in tensors.items():
            if x is not None and id(x) not in seen:
                seen.add(id(x))
                yield name

    return _Tree(
        tuple(new(module._parameters)),
        tuple(new(module._buffers)),
        tuple((name, _tree(part, seen)) for name, part in module._modules.items() if part),
    )


def _names(tree: _Tree, owner: str = "") -> list[str]:
    """Return the names of the tensors of a tree, as they are in the module's state."""
    inner = (x for name, part in tree.modules for x in _names(part, f"{owner}{name}."))
    return [*(f"{owner}{name}" for name in (*tree.parameters, *tree.buffers)), *inner]


def _tensors(module: Module, tree: _Tree) -> list[Tensor]:
    """Return the tensors of a tree, in the order of `_names`."""
    homes = ((module._parameters, tree.parameters), (module._buffers, tree.buffers))
    found = [home[name] for home, names in homes for name in names]
    for name, part in tree.modules:
        found += _tensors(module._modules[name], part)
    return found


def _wrapped_tensors(module: WrappedValue, tree: _Tree) -> list[WrappedValue]:
    """Return the tensors of a tree, as the interpreter reads them of a wrapped module. To interpret
    `_tensors` would take seconds.
    """
    call, item = interpreter._interpret_call, dict.__getitem__
    homes = (("_parameters", tree.parameters), ("_buffers", tree.buffers))
    found = []
    for home, names in homes:
        if names:
            held = call(getattr, module, wrap_const(home))
            found += [call(item, held, wrap_const(name)) for name in names]
    if tree.modules:
        held = call(getattr, module, wrap_const("_modules"))
        for name, part in tree.modules:
            found += _wrapped_tensors(call(item, held, wrap_const(name)), part)
    return found


def _record(module: Module, tree: _Tree, *values: Any, **kwargs: Any) -> Any:
    """Record a call of a module on proxies, and return its results; a `_Reason` if it does more
    than compute tensors of known types.

    values  the module's tensors, and then the positional arguments
    """
    names = _names(tree)
    held, args = values[: len(names)], values[len(names) :]
    flat, structure = pytree.tree_flatten((args, kwargs))
    is_tensor = [type(x) is TensorProxy for x in flat]
    for x, tensor in zip(flat, is_tensor, strict=True):
        if not tensor and not isinstance(x, _PLAIN):
            return _Reason(f"it takes a {type(x).__name__}")
    given = [x for x, tensor in zip(flat, is_tensor, strict=True) if tensor]
    if not all(type(x) is TensorProxy for x in held) or not given:
        return _Reason("it has tensors that are not known to be its own, or takes none")

    def arguments(tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        parts = iter(tensors)
        now = [next(parts) if tensor else x for x, tensor in zip(flat, is_tensor, strict=True)]
        found: tuple[Any, Any] = pytree.tree_unflatten(now, structure)
        return found

    @under_autocast
    def call(*tensors: Tensor) -> Any:
        """Return the results for the arguments."""
        call_args, call_kwargs = arguments(tensors)
        return module(*call_args, **call_kwargs)

    sampled = _sampled(module, tree, call, given)
    if isinstance(sampled, _Reason):
        return sampled
    types, returned = sampled

    @under_autocast
    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        if any(isinstance(x, FakeTensor) for x in tensors):
            return _of_types(types, tensors)
        state = dict(zip(names, tensors, strict=False))
        results = functional_call(module, state, *arguments(tensors[len(names) :]))
        found, now_returned = _split(results)
        if (now := _types(found)) != types or now_returned != returned:
            raise RuntimeError(
                f"{type(module).__name__} runs as one call of torch, and returned {types} when it "
                f"was compiled; it now returns {now}: its sizes depend on numbers, so call it "
                "outside of the compiled function"
            )
        return found

    found = call_function(run, type(module).__name__, [*held, *given])
    return returned.holding(found)


def _sampled(
    module: Module, tree: _Tree, call: Function, given: Sequence[TensorProxy]
) -> tuple[list[_Type], _Returned] | _Reason:
    """Return the types of a module's results on random numbers, and what they are returned in; a
    `_Reason` if these differ, or the module does more than compute them.
    """
    held = _tensors(module, tree)
    if any(type(x) is TensorProxy for x in held):
        return _Reason("it is inside of a functional call")
    devices = {x.device for x in held if x.is_cuda}
    found = []
    for seed in range(2):
        with (
            torch.random.fork_rng(devices),
            torch.no_grad(),
            _unchanged(module) as is_changed,
            _numbers_drawn(seed) as drawn,
        ):
            torch.manual_seed(seed)
            tensors = [*map(_random, given)]
            try:
                results = pure_results(
                    partial(call, *tensors), [*held, *tensors], type(module).__name__
                )
            except NotPure as more:
                return _Reason(more)
            except Exception as own:
                what = f"{type(own).__name__}: {str(own).partition(chr(10))[0]}"
                return _Reason(
                    f"of random numbers, and integers that are 0, by which the sizes of its "
                    f"results are found, it raises {what}"
                )
            if is_changed():
                return _Reason(_SETS)
            leaves, returned = _split(results)
            found.append((_types(leaves), returned, drawn()))
    (types, returned, drawn_first), (types_again, returned_again, drawn_again) = found
    if (types, returned) != (types_again, returned_again):
        return _Reason("the sizes of its results depend on numbers")
    if drawn_first != drawn_again:
        return _Reason("it draws random numbers of NumPy or random")
    return types, returned


def _split(results: Any) -> tuple[tuple[Any, ...], _Returned]:
    """Return what a module returns without None, and what that is returned in."""
    leaves, structure = pytree.tree_flatten(results)
    is_tensor = tuple(x is not None for x in leaves)
    return tuple(x for x in leaves if x is not None), _Returned(structure, is_tensor)


def _random(x: TensorProxy) -> Tensor:
    """Return a tensor with the type of a proxy. Integers, which may be places, are 0."""
    dtype, device = to_torch_dtype(x.dtype), to_torch_device(x.device)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(x.shape), device=device).to(dtype)
    return torch.zeros(tuple(x.shape), dtype=dtype, device=device)


@contextmanager
def _unchanged(module: Module) -> Iterator[Callable[[], bool]]:
    """Let the attributes of a module and its submodules be as before, with the lists and
    dictionaries that they hold; yields a function that is true if some were changed.
    """
    attributes = [vars(inner) for inner in module.modules()]
    inside = [x for held in attributes for x in held.values() if isinstance(x, list | dict)]
    before = [(now, _items(now)) for now in (*attributes, *inside)]

    def is_changed() -> bool:
        return any(
            now.keys() != items.keys() or any(now[key] is not x for key, x in items.items())
            for now, items in ((_items(held), items) for held, items in before)
        )

    try:
        yield is_changed
    finally:
        if is_changed():
            for held, items in before:
                held.clear()
                held.extend(items.values()) if isinstance(held, list) else held.update(items)


@contextmanager
def _numbers_drawn(seed: int) -> Iterator[Callable[[], list[bytes | None]]]:
    """Let the random numbers of Python and NumPy be as before; yields a function that returns their
    states, None for one of which no numbers were drawn since. Those of two seeds are the same where
    numbers are drawn of a seed of the program's own.
    """
    before = random.getstate(), numpy.random.get_state()  # noqa: NPY002

    def states() -> list[bytes]:
        return [*map(pickle.dumps, (random.getstate(), numpy.random.get_state()))]  # noqa: NPY002

    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002
    seeded = states()
    try:
        yield lambda: [
            None if now == then else now for now, then in zip(states(), seeded, strict=True)
        ]
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])  # noqa: NPY002


def _items(held: list[Any] | dict[Any, Any]) -> dict[Any, Any]:
    return dict(enumerate(held)) if isinstance(held, list) else dict(held)


def _types(tensors: Sequence[Tensor]) -> list[_Type]:
    return [_Type(tuple(x.shape), x.dtype) for x in tensors]


def _of_types(types: Sequence[_Type], operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors without values that depend on those operands which may have gradients."""
    depends = sum(x.abs().sum() for x in operands if x.is_floating_point() or x.is_complex())
    device = operands[-1].device
    return tuple(
        (torch.zeros(shape, dtype=dtype, device=device) + depends).to(dtype)
        for shape, dtype in types
    )


def register() -> None:
    """Patch Thunder's interpreter to use `_call`."""
    interpreter._call_dispatch = partial(_call, interpreter._call_dispatch)
