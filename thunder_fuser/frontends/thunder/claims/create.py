"""Claims for prims that create a tensor without tensor operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from thunder.core.devices import Device, to_device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.layout import lying_as
from thunder_fuser.frontends.thunder.claims.operands import DEVICES, FP8, data_type, is_static
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.regions.joint_graph import Role


def refuse_new(sizes: Sequence[object], device: Device, dtype: object) -> Refusal | None:
    """Return why a tensor of these sizes, device and dtype cannot be created, or None."""
    if not is_static(sizes):
        return Refusal("symbolic-shape", "its size is unknown until the function runs")
    if device.type not in DEVICES:
        return Refusal("device", f"kernels are made for cpu and cuda, not for {device}")
    try:
        data_type(dtype)
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    return None


def _refuse_full(
    shape: Sequence[object],
    value: object,
    *,
    device: Device,
    dtype: object,
    like: object = None,
) -> Refusal | None:
    return refuse_new(shape, device, dtype)


def _refuse_iota(
    length: object, *, start: object, step: object, device: Device, dtype: object
) -> Refusal | None:
    if any(isinstance(x, NumberProxy) for x in (start, step)):
        return Refusal("symbolic-shape", "its start or step is unknown until the function runs")
    if length == 0:
        return Refusal("empty", "Thunder gives an empty range no dimension, torch gives it one")
    return refuse_new([length], device, dtype)


def _full(
    b: FusionBuilder,
    shape: Sequence[int],
    value: Val,
    *,
    device: Device,
    dtype: object,
    like: TensorView | None = None,
) -> Val:
    made = b.full(shape, value, data_type(dtype))
    return made if like is None else lying_as(b, made, [like])


def _iota(
    b: FusionBuilder, length: int, *, start: int, step: int, device: Device, dtype: object
) -> Val:
    return b.iota(length, start, step, data_type(dtype))


def _counting(start: float, end: float | None) -> tuple[float, float]:
    """Return where a range starts and ends, of which torch may be given the end alone."""
    return (0, start) if end is None else (start, end)


def _dtype_of_range(dtype: object, *numbers: object) -> DataType:
    if dtype is None:
        of_floats = any(isinstance(x, float) for x in numbers)
        dtype = torch.get_default_dtype() if of_floats else torch.int64
    return data_type(dtype)


def _refuse_arange(
    start: object,
    end: object = None,
    step: object = 1,
    *,
    device: object = None,
    dtype: object = None,
) -> Refusal | None:
    """Refuse all but ranges of floats; those of integers are one `iota`, their only part."""
    if any(isinstance(x, NumberProxy) for x in (start, end, step)):
        return Refusal("symbolic-shape", "its bounds or step are unknown until the function runs")
    try:
        made = _dtype_of_range(dtype, start, end, step)
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if not made.is_floating or made in FP8:
        return Refusal("dtype", f"not whole: a range of {made.name}")
    first, last = _counting(start, end)  # type: ignore[arg-type]
    if first == last:
        return Refusal("empty", "an empty range is taken in parts")
    where = torch.get_default_device() if device is None else device
    return refuse_new((), to_device(where), dtype or made.torch)


def _arange(accumulate: Callable[[DataType], DataType]) -> Callable[..., Val]:
    """Return the builder of a range whose elements are computed in `accumulate(dtype)`. Thunder
    computes all of them in fp32, whatever the dtype.
    """

    def build(
        b: FusionBuilder,
        start: float,
        end: float | None = None,
        step: float = 1,
        *,
        device: object = None,
        dtype: object = None,
    ) -> Val:
        made = _dtype_of_range(dtype, start, end, step)
        first, last = _counting(start, end)
        length = math.ceil((last - first) / step)
        return b.cast(b.iota(length, first, step, accumulate(made)), made)

    return build


def _refuse_zeros(*shape: object, device: object = None, dtype: object = None) -> Refusal | None:
    if not isinstance(device, Device) or dtype is None:
        return Refusal("argument", "taken in parts, which have a device and a dtype")
    return refuse_new(shape, device, dtype)


def _zeros(b: FusionBuilder, *shape: int, device: Device, dtype: object) -> Val:
    return b.full(shape, 0, data_type(dtype))


CLAIMS = {
    # Autograd inserts these, without subsymbols, for results that were not used.
    "torch.zeros": Claim(Role.CREATE, _refuse_zeros, _zeros),
    # torch's CPU kernel computes what is narrower in double precision, its CUDA kernel in fp32.
    "torch.arange": Claim(
        Role.CREATE, _refuse_arange, _arange(lambda _: DataType.Double), cuda=_arange(compute_dtype)
    ),
    PrimIDs.FULL: Claim(Role.CREATE, _refuse_full, _full),
    PrimIDs.IOTA: Claim(Role.CREATE, _refuse_iota, _iota),
}
