"""Checks and conversions of arguments for all claims: types, dtypes, shapes, devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch
from thunder.core import dtypes as thunder_dtypes
from thunder.core.devices import Device, to_torch_device
from thunder.core.proxies import FutureTensorProxy, NumberProxy, Proxy, TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Operand, from_torch, of_number, result_dtype
from thunder_fuser.ir.fusion import Val
from thunder_fuser.ir.tables.pointwise import operands_of

DEVICES = ("cpu", "cuda")

NARROW_INTEGERS = frozenset({DataType.Int8, DataType.Int16, DataType.UInt8})
FP8 = frozenset({DataType.Float8_e4m3fn, DataType.Float8_e5m2})

_NUMBERS = {
    bool: DataType.Bool,
    int: DataType.Int,
    float: DataType.Double,
    complex: DataType.ComplexDouble,
}


_INT = frozenset({int})


def data_type(dtype: object) -> DataType:
    """Convert a Thunder dtype or a Python number type to `DataType`; FuserTypeError if there is no
    equivalent.
    """
    if isinstance(dtype, type) and dtype in _NUMBERS:
        return _NUMBERS[dtype]
    found = thunder_dtypes.to_torch_dtype(dtype)
    if not isinstance(found, torch.dtype):
        raise FuserTypeError(f"dtype {dtype} has no torch equivalent")
    return from_torch(found)


def is_supported(tensor: TensorProxy) -> bool:
    """True if a kernel can take the tensor: known dtype and static shape."""
    try:
        data_type(tensor.dtype)
    except FuserTypeError:
        return False
    return is_static(tensor.shape)


def number_type(number: NumberProxy) -> DataType:
    """Return the dtype of a number that is known only when the function runs."""
    return _NUMBERS[number.python_type]


def is_cpu_scalar(tensor: TensorProxy) -> bool:
    """True for a 0-dim CPU tensor, which Thunder lets mix with tensors of any device."""
    return bool(tensor.device.type == "cpu" and tensor.ndim == 0)


def device_of(tensors: Sequence[TensorProxy]) -> torch.device | None:
    """Return the device of an operation on these tensors; None unless there is exactly one."""
    found = _devices(tensors)
    return to_torch_device(found.pop()) if len(found) == 1 else None


def _devices(tensors: Sequence[TensorProxy]) -> set[Device]:
    """Return the devices of tensors, without those of CPU scalars if there are several."""
    found = {t.device for t in tensors}
    if len(found) > 1:
        found = {t.device for t in tensors if not is_cpu_scalar(t)} or found
    return found


def is_static(sizes: Iterable[object]) -> bool:
    """True if all sizes are known at trace time.  Symbolic sizes are NumberProxies."""
    return _INT.issuperset(map(type, sizes))


def elements(tensor: TensorProxy | FutureTensorProxy) -> int:
    """Return the number of elements. Thunder's `numel` is a method that it looks up each time."""
    found: int = prod(tensor.shape) if is_static(tensor.shape) else tensor.numel
    return found


def refuse_symbolic(*arguments: object, **options: object) -> Refusal | None:
    """Refuse symbolic shapes, positions, widths and dimensions, which a kernel must know."""
    values = [x for a in (*arguments, *options.values()) for x in _flat(a)]
    if any(isinstance(x, NumberProxy) for x in values):
        return Refusal(
            "symbolic-shape",
            'a size or position is unknown until the function runs; compile with cache="constant '
            'values", the default',
        )
    return None


def _flat(argument: object) -> list[object]:
    if isinstance(argument, (tuple, list)):
        return [x for item in argument for x in _flat(item)]
    return [argument]


def as_operand(value: object) -> Operand:
    """Convert an argument to an operand of type promotion; FuserTypeError if it is none."""
    if isinstance(value, TensorProxy):
        return Operand(data_type(value.dtype), value.ndim)
    if isinstance(value, NumberProxy):
        return Operand(number_type(value), None)
    return Operand(of_number(value), None)  # type: ignore[arg-type]


def common_dtype(operands: Iterable[object]) -> DataType:
    """Return the dtype that torch's kernel converts tensors and numbers to before it computes;
    FuserTypeError if `DataType` does not have it.
    """
    given = [as_operand(x) for x in operands]
    binding = min((x.level for x in given if x.dtype.is_complex), default=0)
    stronger = [x for x in given if x.level < binding]
    if stronger and result_dtype(stronger) is DataType.Half:
        raise FuserTypeError("torch computes in complex32, which no kernel has; cast to float32")
    return result_dtype(given)


def in_common(b: FusionBuilder, *operands: Val) -> tuple[Val, ...]:
    """Cast the operands to their common dtype, as torch's kernel does; see `common_dtype`."""
    dtype = result_dtype(operands_of(operands))
    return tuple(x if x.dtype is dtype else b.cast(x, dtype) for x in operands)


def refuse_kind(proxy: Proxy) -> Refusal | None:
    """Return a refusal of anything but a plain tensor or a number, or None."""
    if isinstance(proxy, NumberProxy) or type(proxy) is TensorProxy:
        return None
    return Refusal(
        "argument", f"{proxy.name} is a {type(proxy).__name__}; only plain tensors are fused"
    )


def refuse_proxies(proxies: Iterable[Proxy]) -> Refusal | None:
    """Return why no claim can take these arguments or results, or None."""
    tensors = []
    for proxy in proxies:
        if refused := refuse_kind(proxy):
            return refused
        if isinstance(proxy, TensorProxy):
            if refused := _refuse_tensor(proxy):
                return refused
            tensors.append(proxy)
    if len(_devices(tensors)) > 1:
        placed = ", ".join(f"{t.name} on {t.device}" for t in tensors)
        return Refusal("device", f"tensors of one fusion are on one device, here: {placed}")
    return None


def _refuse_tensor(tensor: TensorProxy) -> Refusal | None:
    if tensor.device.type not in DEVICES:
        return Refusal(
            "device", f"{tensor.name} is on {tensor.device}; kernels are made for cpu and cuda"
        )
    if not is_static(tensor.shape):
        return Refusal(
            "symbolic-shape",
            f"{tensor.name} has a size that is unknown until the function runs; "
            'compile with the default cache="constant values"',
        )
    try:
        data_type(tensor.dtype)
    except FuserTypeError as error:
        return Refusal("dtype", f"{tensor.name}: {error}")
    return None


def rounded_number(number: float, dtype: torch.dtype) -> float:
    """Number rounded to a floating-point dtype, as torch's kernels take it with such a tensor."""
    # A user's default device may have no numbers.
    return float(torch.tensor(number, dtype=dtype, device="cpu").item())
