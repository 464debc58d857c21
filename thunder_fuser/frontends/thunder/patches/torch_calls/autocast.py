"""Operands of calls under `torch.autocast`, cast as torch casts them.

Thunder casts the operands of products, convolutions and attention only: a loss of bf16 logits was
computed in bf16, where torch computes it in fp32. Here the operands of a call are cast as
`POLICIES` says, for each device that autocast is enabled on, and not again inside the call. A call
for which torch has no policy is decomposed under Thunder's rules.

Thunder also remembered, for later calls and for the gradient, that a function was called under
autocast. Here a trace starts in the autocast state of its call, and gradients compute in the dtypes
of the forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import thunder
import thunder.torch as ltorch
import torch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes, jit_ext
from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import WrappedValue, interpreter_needs_wrap, unwrap
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import Symbol
from thunder.core.utils import is_hashable
from thunder.transforms import autocast

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched
from thunder_fuser.frontends.thunder.patches.torch_calls.autocast_operators import POLICIES, Policy
from thunder_fuser.frontends.thunder.torch_functions import symbol_of

Function = Callable[..., Any]
Enabled = Mapping[str, dtypes.dtype]

_CAST = (dtypes.float16, dtypes.bfloat16, dtypes.float32)


def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> str:
    kind = {"reflect": "reflection", "replicate": "replication"}.get(mode, mode)
    return f"{kind}_pad{len(pad) // 2}d"


def _interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **_: Any
) -> str:
    prefix = "_upsample" if mode == "nearest-exact" else "upsample"
    return f"{prefix}_{mode.replace('-', '_')}{input.ndim - 2}d"


def _einsum(equation: str, *operands: Any) -> str:
    given, arrow, kept = equation.replace(" ", "").partition("->")
    is_summed = (
        set(given) - {*kept, ",", "."} if arrow else {x for x in given if given.count(x) > 1}
    )
    return "bmm" if "," in given and is_summed else "mul"


def _gru(input: Any, *_: Any, **__: Any) -> str:
    """On a CPU products are cast, and results have the dtype of the input."""
    return "mm" if input.dtype != dtypes.float32 else "_cudnn_rnn"


_OF_ARGUMENTS: Mapping[str, Callable[..., str]] = {
    "einsum": _einsum,
    "gru": _gru,
    "interpolate": _interpolate,
    "pad": _pad,
    "upsample": _interpolate,
}
"""An operator that a function calls, by its arguments."""
_CALLED: Mapping[str, Sequence[str]] = {
    "arccos": ("acos",),
    "arcsin": ("asin",),
    "chain_matmul": ("mm",),
    "cross_entropy": ("cross_entropy_loss", "log_softmax"),
    "inner": ("tensordot", "mm"),
    "local_response_norm": ("avg_pool3d", "pow"),
    "lstm": ("mkldnn_rnn_layer", "_cudnn_rnn"),
    "normalize": ("norm",),
    "pairwise_distance": ("norm",),
    **dict.fromkeys(("rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell"), ("mm",)),
    "rpow": ("pow",),
    "rtruediv": ("reciprocal",),
    "square": ("pow",),
}
"""The operators with policies that functions without one call, from outside to inside."""
_INSIDE = frozenset(
    getattr(ltorch, name).id for name in ("addmm", "baddbmm", "scaled_dot_product_attention")
)
"""Calls inside of others whose operands torch casts, but Thunder does not cast, or not the mask."""
_KNOWN = {*_OF_ARGUMENTS, *_CALLED, *(name for table in POLICIES.values() for name in table)}


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, with its operands cast, or None."""
    found = original(fn, *args, **kwargs)
    # torch casts nothing for calls with `out`.
    if found is None or not is_hashable(fn) or "out" in kwargs:
        return found
    if not (enabled := _enabled()):
        return found
    names = [name for name in dict.fromkeys(_names(fn)) if name in _KNOWN]
    return partial(_call, found, names, enabled) if names else found


def _enabled() -> Enabled:
    """Return the dtypes of autocast, by the devices that it is enabled on."""
    data = get_compile_data()
    if data is None or data.autocast_stack.is_empty() or not autocast.is_autocast_enabled():
        return {}
    stack = data.autocast_stack
    given = {device: stack.get_dtype_for_device_if_enabled(device) for device in POLICIES}
    return {device: dtypes.to_dtype(dtype) for device, dtype in given.items() if dtype is not None}


def _names(fn: Any) -> Iterator[str]:
    """Yield what ATen may call a function of torch or of proxies: `linalg_norm`, `norm`."""
    path = getattr(symbol_of(fn), "id", None)
    parts = path.split(".") if isinstance(path, str) else []
    if parts or (getattr(fn, "__module__", None) or "").startswith(
        ("torch", "thunder.core.proxies")
    ):
        name = getattr(fn, "__name__", "")
        yield name.strip("_") if name.startswith("__") else name
        yield "_".join(p for p in parts if p not in ("torch", "nn", "functional", "Tensor"))
        yield from parts[-1:]


def _call(
    found: Function,
    names: Sequence[str],
    enabled: Enabled,
    /,
    *args: WrappedValue,
    **kwargs: WrappedValue,
) -> Any:
    policies = _policies(names, enabled, args, kwargs)
    if not policies:
        return found(*args, **kwargs)
    jit_ext.recursively_proxy(*args, **kwargs)
    given = tree_flatten([unwrap(x) for x in (*args, *kwargs.values())])[0]
    for device, policy in policies.items():
        dtype = enabled[device]
        has_float32 = any(_is_cast(x, device) and x.dtype == dtypes.float32 for x in given)
        if policy is Policy.FLOAT32 or (policy is Policy.PROMOTE and has_float32):
            dtype = dtypes.float32
        cast = partial(_wrapped_cast, device, dtype)
        args = tuple(map(cast, args))
        kwargs = {name: cast(x) for name, x in kwargs.items()}
    with autocast.disable_autocast():
        return found(*args, **kwargs)


def _policies(
    names: Sequence[str],
    enabled: Enabled,
    args: Sequence[WrappedValue],
    kwargs: Mapping[str, WrappedValue],
) -> dict[str, Policy]:
    """Return the policies of a call, by devices."""
    operators: list[str] = []
    for name in names:
        operators += (name, *_CALLED.get(name, ()))
        if chosen := _OF_ARGUMENTS.get(name):
            try:
                plain = {key: unwrap(x) for key, x in kwargs.items()}
                operators.append(chosen(*map(unwrap, args), **plain))
            except (AttributeError, TypeError):
                pass  # torch raises the error
    found = {d: [POLICIES[d][o] for o in operators if o in POLICIES[d]] for d in enabled}
    return {device: policies[0] for device, policies in found.items() if policies}


def _is_cast(x: Any, device: str) -> bool:
    return isinstance(x, TensorProxy) and x.device.type == device and x.dtype in _CAST


def _wrapped_cast(device: str, dtype: dtypes.dtype, value: WrappedValue) -> WrappedValue:
    """Return a wrapped argument with the tensors of a device in it cast."""
    if not any(_is_cast(x, device) for x in tree_flatten(unwrap(value))[0]):
        return value
    cast = partial(_cast, device, dtype)
    wrapped: WrappedValue = interpreter_needs_wrap(partial(tree_map, cast))(value)
    return wrapped


def _cast(device: str, dtype: dtypes.dtype, x: Any) -> Any:
    return maybe_convert_to_dtype(x, dtype) if _is_cast(x, device) else x


def _traced(original: Function, *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, which begin under torch's autocast."""
    if not is_patched():
        return original(*args, **kwargs)
    data = get_compile_data()
    assert data is not None
    stack = data.autocast_stack
    enabled = [device for device in POLICIES if torch.is_autocast_enabled(device)]
    stack.stack = deque((d, torch.get_autocast_dtype(d), True) for d in enabled)
    try:
        return original(*args, **kwargs)
    finally:
        # Each call adds to the stack, though only a trace reads it.
        stack.stack = deque(maxlen=0)


def _rule(original: Function, symbol: Symbol) -> Function | None:
    """Return what casts the operands of a symbol and calls it, or None."""
    rule: Function | None = original(symbol)
    if symbol.id not in _INSIDE or not is_patched() or not (enabled := _enabled()):
        return rule
    return partial(_lowered, symbol, enabled)


def _lowered(symbol: Symbol, enabled: Enabled, /, *args: Any, **kwargs: Any) -> Any:
    given: Any = (args, kwargs)
    for device, dtype in enabled.items():
        given = tree_map(partial(_cast, device, dtype), given)
    with autocast.disable_autocast():
        return symbol(*given[0], **given[1])


def register() -> None:
    """Patch how Thunder looks for replacements and for rules of symbols, and how it traces."""
    ask_first(_lookaside)
    autocast.maybe_apply_autocast = partial(_rule, autocast.maybe_apply_autocast)
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)
