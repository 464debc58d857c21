"""Numbers that a trace does not know, such as those that `x.item()` reads.

Thunder took the value of such a number for None, which is false: `if x.sum().item() > 0` always
left the branch out, and `torch.add(x, y, alpha=x.max().item())` the factor. Conversions to another
type, which a product with an int needs, raised. Here they have no value either, and what would
decide by one raises. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, partialmethod, wraps
from typing import Any

from thunder.core import interpreter, jit_ext, prims
from thunder.core.interpreter import WrappedValue, unwrap
from thunder.core.proxies import NumberProxy, numberproxy

from thunder_fuser.frontends.thunder.patches.patched import UnknownNumbersError, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_convert: Callable[..., Any] = prims.convert_element_type.meta


def _is_unknown(x: Any) -> bool:
    return isinstance(x, NumberProxy) and x.value is None and is_patched()


def _value(number: NumberProxy, original: Callable[..., Any], *args: Any) -> Any:
    if _is_unknown(number):
        raise UnknownNumbersError.of_item()
    return original(number, *args)


def _quotient(number: NumberProxy, original: Callable[..., Any], other: Any) -> Any:
    try:
        return original(number, other)
    except (NotImplementedError, TypeError) as error:
        if _is_unknown(number) or _is_unknown(other):
            raise UnknownNumbersError.of_item("//, % or divmod") from error
        raise


def _formatted(number: NumberProxy, original: Callable[[Any, str], str], spec: str) -> str:
    if spec and _is_unknown(number):
        raise UnknownNumbersError.of_item(f"format of {spec!r}")
    return original(number, spec)


def _truth(original: Callable[..., Any], wrapped: WrappedValue) -> Any:
    """Return the truth of a wrapped value, wrapped, or the interpreter's signal."""
    if _is_unknown(unwrap(wrapped)):
        return interpreter.do_raise(UnknownNumbersError.of_item())
    return original(wrapped)


def _is(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """`a is b` of wrapped values on the stack: a bool that is unknown may be True, or False."""
    values = (unwrap(stack.getitem_wrapped(-2)), unwrap(stack.getitem_wrapped(-1)))
    for a, b in (values, values[::-1]):
        # Thunder takes a bool for an int.
        if isinstance(b, bool) and _is_unknown(a) and a.python_type is not float:
            return interpreter.do_raise(UnknownNumbersError.of_item())
    return original(inst, stack=stack, **state)


def _is_of(original: Callable[..., Any], wrapped: WrappedValue, kinds: WrappedValue) -> Any:
    """`isinstance` of wrapped values: a number that is unknown has a type."""
    number = unwrap(wrapped)
    if not _is_unknown(number):
        return original(wrapped, kinds)
    return original(interpreter.wrap_const(number.python_type()), kinds)


@wraps(_convert)  # A trace prints the symbol with the module of this function.
def _converted(x: Any, /, dtype: Any) -> Any:
    """Convert the type of a number, or of the elements of a tensor."""
    if _is_unknown(x) and isinstance(dtype, type):
        return numberproxy(dtype, None, constraint=x.constraint)
    return _convert(x, dtype)


_OF_VALUES = (
    *("__bool__", "__int__", "__float__", "__complex__"),
    # What Thunder records of these has no executor.
    *("__round__", "__floor__", "__ceil__", "__trunc__"),
)
_QUOTIENTS = tuple(
    f"__{place}{name}__" for place in ("", "r") for name in ("floordiv", "mod", "divmod")
)


def register() -> None:
    """Patch what Thunder asks numbers for, and how it converts them."""
    for name in _OF_VALUES:
        setattr(NumberProxy, name, partialmethod(_value, getattr(NumberProxy, name)))
    for name in _QUOTIENTS:
        setattr(NumberProxy, name, partialmethod(_quotient, getattr(NumberProxy, name)))
    NumberProxy.__format__ = partialmethod(_formatted, NumberProxy.__format__)
    handlers = interpreter._default_opcode_handler_map
    handlers["IS_OP"] = partial(_is, handlers["IS_OP"])
    _LOOKASIDES[bool] = partial(_truth, _LOOKASIDES[bool])
    _LOOKASIDES[isinstance] = partial(_is_of, _LOOKASIDES[isinstance])
    object.__setattr__(prims.convert_element_type, "meta", _converted)
