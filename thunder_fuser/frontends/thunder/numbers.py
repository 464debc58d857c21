"""Numbers as operands of tensors, computed as torch computes them.

*Quotients and remainders.* torch's operator for `number / x` multiplies the reciprocal of x by the
number, but `torch.div` does not; an operation with 16-bit floats rounds a number to their dtype;
and a number that is not 0 in Python may be 0 in the dtype of the computation.

*Python's integers of more than 64 bits*, which torch refuses.

*Numbers that do not fit.* Torch refuses a number that it stores as an element, or computes with in
the elements' dtype, if that dtype cannot hold it ("value cannot be converted to type float without
overflow"): bounds, fills, slopes and factors of terms.

*Operands of `addcmul` and `addcdiv`*, whose common dtype Thunder computes without their ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.operands import common_dtype, rounded_number
from thunder_fuser.frontends.thunder.composites.pointwise import TRUNC_DIVIDE
from thunder_fuser.frontends.thunder.torch_functions import Function, named

_HALVES = (dtypes.float16, dtypes.bfloat16)


def number_divided(x: TensorProxy, number: Any) -> TensorProxy:
    """`number / x`, which torch's operator computes as a product with the reciprocal. That is
    rounded, also to 16 bits, and is what the gradient reads; a complex product mixes real and
    imaginary parts.
    """
    return ltorch.mul(ltorch.reciprocal(x), number)


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compared(symbol: Function, x: Any, other: Any) -> Any:
    """Compare with an integer as torch takes it: see `_as_int64`."""
    if type(other) is int and isinstance(x, TensorProxy):
        other = _as_int64(other, [x])
    return symbol(x, other)


def quotient_in_dtype(symbol: Symbol, x: Any, other: Any) -> TensorProxy:
    """Remainders of 16-bit floats: torch rounds a number to their dtype, as it does a tensor."""
    return symbol(in_dtype_of(x, other), in_dtype_of(other, x))


def in_dtype_of(number: Any, x: Any) -> Any:
    """Round a number, or a 0-dim tensor, to the dtype of a 16-bit floating-point tensor."""
    if not isinstance(x, TensorProxy) or dtypes.to_strong_dtype(x.dtype) not in _HALVES:
        return number
    if type(number) in (int, float):
        return rounded_number(float(number), dtypes.to_torch_dtype(x.dtype))
    if isinstance(number, TensorProxy) and number.ndim == 0 < x.ndim and number.dtype != x.dtype:
        return ltorch.to(number, x.dtype) if dtypes.is_float_dtype(number.dtype) else number
    return number


def power(symbol: Symbol, x: Any, exponent: Any) -> TensorProxy:
    """Round a base, and refuse an exponent that integers or 16-bit floats do not hold. A bool
    tensor to the power of a bool number is bool: True for False, itself for True.
    """
    is_tensor = isinstance(x, TensorProxy)
    if is_tensor and type(exponent) is bool and dtypes.is_boolean_dtype(x.dtype):
        union = ltorch.bitwise_or if symbol is ltorch.pow else ltorch.bitwise_or_
        return union(x, not exponent)
    of_integers = is_tensor and dtypes.is_exact_dtype(x.dtype) and type(exponent) is int
    if of_integers or (is_tensor and dtypes.to_strong_dtype(x.dtype) in _HALVES):
        _EXPONENT.check((x, exponent), {})
    return symbol(in_dtype_of(x, exponent), exponent)


def floor_divide(symbol: Symbol, x: Any, divisor: Any) -> TensorProxy:
    """Round the divisor: Thunder's parts ask a number whether it is 0 as they are traced."""
    return _quotient(symbol(x, _as_computed(divisor, x)), x, divisor)


def divided(symbol: Symbol, x: Any, divisor: Any, *, rounding_mode: Any = None) -> TensorProxy:
    if rounding_mode == "trunc" and symbol is ltorch.div:
        return TRUNC_DIVIDE(x, divisor)
    if rounding_mode == "floor":
        found = symbol(x, _as_computed(divisor, x), rounding_mode=rounding_mode)
        return _quotient(found, x, divisor)
    return symbol(x, divisor, rounding_mode=rounding_mode)


def _quotient(found: TensorProxy, x: Any, divisor: Any) -> TensorProxy:
    """Return a floor quotient in torch's dtype: of 16-bit floats Thunder says that it is fp32."""
    common = dtypes.to_dtype(common_dtype((x, divisor)).torch)
    return ltorch.to(found, common) if common in _HALVES and found.dtype != common else found


def threshold(
    symbol: Symbol, x: Any, threshold: Any, value: Any, inplace: bool = False
) -> TensorProxy:
    """Convert the numbers to the dtype of integers, as torch does."""
    return symbol(x, *_of_integers(x, threshold, value), inplace)


def hardtanh(
    symbol: Symbol, x: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> TensorProxy:
    """Convert the numbers to the dtype of integers, as torch does; they may be equal."""
    low, high = _of_integers(x, min_val, max_val)
    if low == high and not inplace:
        return ltorch.clamp(x, low, high)
    return symbol(x, low, high, inplace)


def _of_integers(x: Any, *numbers: Any) -> tuple[Any, ...]:
    is_exact = isinstance(x, TensorProxy) and dtypes.is_exact_dtype(x.dtype)
    return tuple(int(n) if is_exact and type(n) is float else n for n in numbers)


def _as_computed(number: Any, x: Any) -> Any:
    """Round a float operand of a tensor to the precision that torch computes in."""
    if type(number) is not float or not isinstance(x, TensorProxy):
        return number
    stored = dtypes.to_torch_dtype(x.dtype)
    result = torch.get_default_dtype() if dtypes.is_exact_dtype(x.dtype) else stored
    return number if result is torch.float64 else rounded_number(number, torch.float32)


def in_common_dtype(
    symbol: Symbol, x: Any, first: Any, second: Any, *, value: Any = None
) -> TensorProxy:
    """Convert three tensors to their common dtype, in which those without dimensions yield."""
    operands = (x, first, second)
    tensors = [t for t in operands if isinstance(t, TensorProxy)]
    if len(tensors) == len(operands) and len({t.dtype for t in tensors}) > 1:
        common = dtypes.to_dtype(common_dtype(tensors).torch)
        operands = tuple(ltorch.to(t, common) for t in tensors)
    return symbol(*operands, value=value)


REPLACED: Mapping[str, Function] = MappingProxyType(
    {
        **dict.fromkeys((*COMPARISONS, *(f"{name}_" for name in COMPARISONS)), compared),
        **dict.fromkeys(("floor_divide", "floor_divide_"), floor_divide),
        **dict.fromkeys(("div", "div_"), divided),
        **dict.fromkeys(("fmod", "remainder"), quotient_in_dtype),
        **dict.fromkeys(("addcmul", "addcdiv"), in_common_dtype),
        **dict.fromkeys(("pow", "pow_"), power),
        "threshold": threshold,
        "hardtanh": hardtanh,
    }
)
"""Replacements by Thunder's name of the call; each takes its symbol, then the arguments."""

# ---- numbers that do not fit


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers that a call converts to the dtype of its tensor.

    places    position of each; None for one that only has a name
    computes  16-bit floats are computed in fp32, and so is the number: on every device, or on all
              but CPUs
    promotes  a float with a tensor of integers makes the result a float
    tensors   first and last position, exclusive, of the tensors whose dtype counts
    stored    those that are results, which 16-bit floats must hold on every device
    rounds    a number becomes a tensor without dimensions, in 16-bit floats of any number
    """

    places: Mapping[str, int | None]
    computes: tuple[bool, bool] = (True, True)
    promotes: bool = True
    tensors: tuple[int, int] = (0, 1)
    stored: tuple[str, ...] = ()
    rounds: bool = False

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise torch's RuntimeError for a number that does not fit."""
        given = [*args[slice(*self.tensors)], *([kwargs["input"]] if "input" in kwargs else [])]
        tensors = [t for t in given if isinstance(t, TensorProxy)]
        for name, place in self.places.items():
            number = kwargs.get(name)
            if place is not None and place < len(args):
                number = args[place]
            # With an operand that is a float, the result is one, too.
            if name == "alpha" and any(isinstance(x, float | complex) for x in given):
                continue
            if isinstance(number, int | float) and type(number) is not bool and tensors:
                self._check(tensors, name, number)

    def _check(self, tensors: Sequence[TensorProxy], name: str, number: float) -> None:
        common = common_dtype(tensors).torch
        if common is torch.bool and type(number) is int and self.promotes and name != "alpha":
            common = torch.int64
        on_cpu = tensors[0].device.type == "cpu"
        if type(number) is float and not (common.is_floating_point or common.is_complex):
            if name == "alpha":
                raise RuntimeError(
                    "For integral input tensors, argument alpha must not be a floating point "
                    f"number, got {number}"
                )
            common = torch.get_default_dtype() if self.promotes else common
        computes = self.computes[not on_cpu] and name not in self.stored
        if common in (torch.float16, torch.bfloat16):
            if self.rounds:
                return
            common = torch.float32 if computes else common
        # torch itself knows what fits; `fill_` would round a number to the dtype of 16-bit floats.
        one = torch.zeros(1, dtype=common, device="cpu")
        one.masked_fill_(torch.ones(1, dtype=torch.bool, device="cpu"), number)


def _kept(**places: int | None) -> _Numbers:
    return _Numbers(places, computes=(False, False), promotes=False)


def _compared(**places: int | None) -> _Numbers:
    return _Numbers(places, computes=(False, True))


def _computed(**places: int | None) -> _Numbers:
    return _Numbers(places)


_EXPONENT = _Numbers({"exponent": 1}, computes=(False, False))
_THRESHOLD = _Numbers({"threshold": 1, "value": 2}, (True, False), stored=("value",))
_TERMS = _Numbers({"alpha": None}, (False, True), tensors=(0, 2))
_CHECKED: Mapping[str, _Numbers] = MappingProxyType(
    {
        **dict.fromkeys(("masked_fill", "masked_fill_"), _kept(value=2)),
        **dict.fromkeys(("clamp", "clamp_", "clip"), _compared(min=1, max=2)),
        "clamp_min": _compared(min=1),
        "clamp_max": _compared(max=1),
        "nn.functional.hardtanh": _compared(min_val=1, max_val=2),
        "nn.functional.hardshrink": _compared(lambd=1),
        **dict.fromkeys(("add", "add_", "sub", "sub_", "rsub"), _TERMS),
        "nn.functional.elu": _computed(alpha=1),
        "celu": _computed(alpha=1),
        "nn.functional.celu": _computed(alpha=1),
        "nn.functional.leaky_relu": _computed(negative_slope=1),
        "nn.functional.softplus": _computed(beta=1, threshold=2),
        **dict.fromkeys(("nn.functional.threshold", "nn.functional.threshold_"), _THRESHOLD),
        **dict.fromkeys(
            ("addcmul", "addcmul_", "addcdiv", "addcdiv_"),
            _Numbers({"value": None}, tensors=(0, 3)),
        ),
        **dict.fromkeys(("lerp", "lerp_"), _computed(weight=2)),
        "where": _Numbers({"input": 1, "other": 2}, tensors=(1, 3), rounds=True),
    }
)
"""By the name of the call below `torch`."""


def checked_calls() -> Iterator[tuple[Function, Callable[[Function], Function]]]:
    """Yield torch's functions that refuse numbers, and Thunder's, and what makes others do so."""
    for path, numbers in _CHECKED.items():
        for theirs, symbol in named(path):
            yield from ((call, functools.partial(_refusing, numbers)) for call in (theirs, symbol))
    yield TensorProxy.__setitem__, functools.partial(_refusing, _computed(value=2))
    for theirs, symbol in named("nn.functional.softshrink"):
        yield from ((call, _of_shrinking) for call in (theirs, symbol))
    for name in _ARITHMETIC:
        yield from ((call, _of_64_bits) for call in _calls(name))
    for name in ("add", "sub"):
        yield from ((call, _of_scaled_terms) for call in _calls(name))
    for operator in _OPERATORS:
        for place in ("", "r", "i"):
            yield getattr(TensorProxy, f"__{place}{operator}__"), _of_64_bits
    for place in ("", "r", "i"):
        yield getattr(TensorProxy, f"__{place}truediv__"), _of_quotients


def _calls(name: str) -> Iterator[Function]:
    """Yield torch's functions of a name, also in place, and Thunder's."""
    for path in (name, f"{name}_"):
        # What Thunder has for `torch.mul` chooses between this symbol and that of DTensors.
        on_one_device: Function = getattr(ltorch, path)
        for theirs, symbol in named(path):
            yield from (theirs, symbol)
            if on_one_device is not symbol:
                yield on_one_device


def _of_scaled_terms(function: Function) -> Function:
    """Make a sum of floats and of integers times a float convert the integers first, as torch does:
    Thunder promotes their product.
    """

    def call(x: Any, other: Any, *args: Any, alpha: Any = 1, **kwargs: Any) -> Any:
        if type(alpha) is float and isinstance(other, TensorProxy):
            common = dtypes.to_dtype(common_dtype((x, other)).torch)
            if dtypes.is_exact_dtype(other.dtype) and dtypes.is_inexact_dtype(common):
                other = ltorch.to(other, common)
        return function(x, other, *args, alpha=alpha, **kwargs)

    call.__wrapped__ = function  # type: ignore[attr-defined]  # what has the signature
    return call


def _refusing(numbers: _Numbers, function: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        numbers.check(args, kwargs)
        return function(*args, **kwargs)

    call.__wrapped__ = function  # type: ignore[attr-defined]  # what has the signature
    return call


def _of_shrinking(function: Function) -> Function:
    """Make a call refuse what torch does not shrink by."""

    def call(input: Any, lambd: Any = 0.5) -> Any:
        if isinstance(input, TensorProxy) and dtypes.is_float_dtype(input.dtype):
            dtype = dtypes.to_torch_dtype(input.dtype)
            most = torch.finfo(dtype).max
            if isinstance(lambd, int | float) and not 0 <= lambd <= most:
                raise RuntimeError(
                    f"softshrink: expected a lambda in the range [0, {most:g}] for {dtype}, got "
                    f"{lambd}"
                )
        return function(input, lambd)

    call.__wrapped__ = function  # type: ignore[attr-defined]  # what has the signature
    return call


# ---- integers of more than 64 bits

_ARITHMETIC = (
    *("add", "sub", "mul", "floor_divide", "remainder", "fmod", "pow"),
    *("bitwise_and", "bitwise_or", "bitwise_xor"),
)
_OPERATORS = ("add", "sub", "mul", "floordiv", "mod", "pow", "and", "or", "xor")
_INT64 = range(-(2**63), 2**63)


def _of_64_bits(function: Function, wraps: bool = True) -> Function:
    """Make a call take integers as torch does: see `_as_int64`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for x in args:
            if type(x) is int and x not in _INT64:
                tensors = [t for t in args if isinstance(t, TensorProxy)]
                args = tuple(_as_int64(x, tensors, wraps) for x in args)
                break
        return function(*args, **kwargs)

    call.__wrapped__ = function  # type: ignore[attr-defined]  # what has the signature
    return call


_of_quotients = functools.partial(_of_64_bits, wraps=False)
"""Of floats, which hold them."""


def _as_int64(number: Any, tensors: Sequence[TensorProxy], wraps: bool = True) -> Any:
    """Return an integer that fits in 64 bits; one that only fits unsigned wraps around.

    Raises OverflowError where it does not fit, and RuntimeError where it does with bools, which
    torch does not convert to unsigned integers.
    """
    if type(number) is not int or number in _INT64 or not tensors:
        return number
    if not 0 <= number < 2**64:
        raise OverflowError(
            f"{number} with a tensor does not fit in 64 bits; convert it to a float first"
        )
    common = common_dtype(tensors)
    if common.torch is torch.bool and wraps:
        raise RuntimeError(f"{number} with a bool tensor does not fit in int64; convert it first")
    return number - 2**64 if common.is_integral and wraps else number
