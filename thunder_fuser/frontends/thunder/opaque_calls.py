"""Opaque calls: torch functions that are recorded as one call, and run in torch.

Such a call stands between two regions. Its result's type is that of torch on tensors without
values, and its gradient is computed by running it once more under torch's autograd. This requires a
function that only computes tensors: it changes no operand, returns no view, and draws no random
numbers.

Functions that Thunder does not know are opaque (`patches/torch_calls/unknown_calls.py`), and those
that it decomposes are where its decomposition raises: it lacks modes of `interpolate`, averages
over a part of a window, `gather` from a tensor of no dimensions and much else. Errors of arguments
that torch does not take either are torch's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.devices import Device, to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import OpTags
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import Symbol
from thunder.core.trace import get_tracectx
from thunder.executors.torchex import _always_executable, ex
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thunder_fuser.frontends.thunder.autograd.draws import is_random
from thunder_fuser.frontends.thunder.autograd.torch_calls import OPAQUE, with_constants

Function = Callable[..., Any]


_STATISTICS = "running_"


def computes(packet: OpOverloadPacket) -> bool:
    """True if the overloads of an operator return tensors, which share no memory with operands,
    and update none. Those of batch norms do not all say that running statistics are updated; some
    operators have one of numbers, for TorchScript.
    """
    every = [getattr(packet, name)._schema for name in packet.overloads()]
    every = [s for s in every if not _is_of_numbers(s)]
    schemas = [s for s in every if not s.is_mutable or any(map(_is_updated, s.arguments))]
    return bool(schemas) and all(
        schema.returns
        and all(_is_new(value) for value in schema.returns)
        and not any(a.alias_info or a.name.startswith(_STATISTICS) for a in schema.arguments)
        for schema in schemas
    )


def _is_of_numbers(schema: torch._C.FunctionSchema) -> bool:
    return not any("Tensor" in str(x.type) for x in (*schema.arguments, *schema.returns))


def _is_updated(argument: torch._C.Argument) -> bool:
    """True for a tensor that is updated, other than by `out=`. (Some sort lists of TorchScript.)"""
    alias = argument.alias_info
    is_written = alias is not None and alias.is_write and not argument.is_out
    return is_written and str(argument.type) in ("Tensor", "Optional[Tensor]")


def _is_new(value: torch._C.Argument) -> bool:
    return "Tensor" in str(value.type) and value.alias_info is None


def call_opaquely(
    function: Function, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Record a call of a function, and return its results."""
    operands = (TensorProxy, NumberProxy)  # Numbers that the program computes.
    has_operands = any(isinstance(x, operands) for x in tree_flatten((args, kwargs))[0])
    return with_constants(_symbol(function, name, has_operands), *args, **kwargs)


def call_function(run: Function, name: str, tensors: Sequence[TensorProxy]) -> Any:
    """Record a call of a function of this trace, which is no function of torch, on tensors; return
    its results.
    """
    return call_opaquely(run_function, name, (run, *tensors), {})


def run_function(run: Function, *tensors: torch.Tensor) -> Any:
    """Return the results of a function that runs as one call."""
    return run(*tensors)


def under_autocast(function: Function) -> Function:
    """Return a function that runs under the autocast of this point of the trace."""
    stack = get_compile_data().autocast_stack
    found = {kind: stack.get_dtype_for_device_if_enabled(kind) for kind in ("cpu", "cuda")}
    enabled = {kind: to_torch_dtype(dtype) for kind, dtype in found.items() if dtype is not None}

    @wraps(function)
    def call(*args: Any) -> Any:
        with ExitStack() as contexts:
            for device, dtype in enabled.items():
                contexts.enter_context(torch.autocast(device, dtype))
            return function(*args)

    return call


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.ctc_loss`; on tensors without values, where it needs the longest of the
    targets for its intermediate results, a function with the same types of result and gradient.
    """
    if isinstance(log_probs, FakeTensor):
        losses = log_probs.sum((0, -1))
        return losses if reduction == "none" else losses.sum()
    return torch.nn.functional.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
    )


@cache
def _symbol(function: Function, name: str, has_operands: bool) -> Symbol:
    """Return the symbol of a function, with its meta function and its call. Calls with operands are
    differentiated (`autograd/torch_calls.py`).

    has_operands  tensors, or proxies of numbers, are given; without any, and so without
                  gradients, it may draw randomly
    """
    function = _on_devices(function)
    meta = ltorch.meta_adaptor(function)
    id = f"thunder_fuser.torch.{name}" if has_operands else f"thunder_fuser.torch.new.{name}"
    symbol = Symbol(
        name=name,
        meta=ltorch.langctx(ltorch.Languages.TORCH)(meta),
        id=id,
        is_prim=True,
        tags=[OpTags.AUTO_REGISTERED] if has_operands else [OpTags.RANDOM_OP],
        _module=torch,
    )
    called = name if has_operands else f"new_{name}"
    call = ex.register_operator(called, meta=meta, fn=function, tags=symbol.tags)
    ex.register_implementation(symbol, call, checker=_always_executable)
    OPAQUE[id] = function
    return symbol


def _on_devices(function: Function) -> Function:
    """Return a function that takes the devices of a trace for torch's: `device=x.device`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_in_torch, args), **{k: _in_torch(x) for k, x in kwargs.items()})

    return call


def _in_torch(value: Any) -> Any:
    return to_torch_device(value) if isinstance(value, Device) else value


def or_opaque(function: Function, symbol: Function) -> Function:
    """Return a call of `symbol`, Thunder's decomposition of a torch function; where that raises, an
    opaque call of `function`. Where torch raises an error, too, that is the user's. The one of the
    decomposition is raised for a function that does more than compute tensors.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with unrecorded_if_it_raises():
                return symbol(*args, **kwargs)
        except Exception as refusal:
            if not _takes_tensors(args, kwargs):
                raise
            return _in_one_call(function, args, kwargs, refusal)

    return call


def in_torch(function: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Record an opaque call of a torch function that only computes tensors, and return its results;
    errors of its arguments are torch's.
    """
    return _in_one_call(function, args, kwargs, None)


def _in_one_call(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], refusal: Exception | None
) -> Any:
    """`refusal`: the error where torch raises none, or the function is not pure."""
    try:
        with unrecorded_if_it_raises(), unlogged():
            return call_opaquely(checked(function), function.__name__, args, kwargs)
    except NotImplementedError as error:
        found: BaseException = error if refusal is None else refusal
        if error.__cause__ is not None and type(error.__cause__) not in _OF_TRACING:
            found = error.__cause__
        raise found from None


def _takes_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a call on tensors of one device each."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, TensorProxy)]
    return bool(tensors) and all(type(x) is TensorProxy for x in tensors)


@contextmanager
def unrecorded_if_it_raises() -> Iterator[None]:
    """Restore the trace as it was where the body raises: Thunder leaves its scopes open."""
    trace = get_tracectx()
    depth, scope = len(trace.scopes), trace.peek_scope()
    recorded = None if scope is None else len(scope)
    try:
        yield
    except Exception:
        del trace.scopes[depth:]
        if scope is not None:
            del scope[recorded:]
        raise


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep errors of tensors without values out of torch's log, with their traces of its code."""
    log = logging.getLogger(fake_tensor.__name__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class NotPure(Exception):
    """Raised for a function that does more than compute new tensors."""


_OF_TRACING = (NotPure, DataDependentOutputException, DynamicOutputShapeException)


@cache
def checked(function: Function) -> Function:
    """Return the function, which raises NotPure on tensors without values where it is not pure."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, FakeTensor)]
        if not given:
            return function(*args, **kwargs)
        return pure_results(partial(function, *args, **kwargs), given, function.__name__)

    return call


def pure_results(call: Callable[[], Any], given: Iterable[torch.Tensor], name: str) -> Any:
    """Return the results of a call of `name` on the `given` tensors, and None among them; raises an
    exception if it does more than compute new tensors.
    """
    operands = {x.untyped_storage()._cdata for x in given}
    with _PureOperations(operands):
        results = call()
    if not all(x is None or _is_in_none(x, operands) for x in tree_leaves(results)):
        raise NotPure(f"{name} returns a view, or no tensor")
    return results


def _is_in_none(x: Any, storages: Container[int]) -> bool:
    return isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in storages


class _PureOperations(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it untyped
    """Raises NotPure for operations that draw random numbers or change an operand.

    operands  storages of the operands
    """

    def __init__(self, operands: Container[int]) -> None:
        super().__init__()
        self.operands = operands

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if is_random(func, args, kwargs) or any(
            not _is_in_none(x, self.operands) for x in _changed(func, args)
        ):
            raise NotPure(f"{func} draws random numbers, or changes an operand")
        return func(*args, **(kwargs or {}))


def _changed(func: OpOverload, args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation changes. The schemas of batch norms hide theirs."""
    for argument, x in zip(func._schema.arguments, args, strict=False):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if isinstance(x, torch.Tensor) and (is_written or argument.name.startswith(_STATISTICS)):
            yield x
