"""Claims for prims that create a tensor without tensor operands."""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.devices import Device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.layout import lying_as
from thunder_fuser.frontends.thunder.claims.operands import DEVICES, data_type, is_static
from thunder_fuser.ir.builder import FusionBuilder
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


def _refuse_zeros(*shape: object, device: object = None, dtype: object = None) -> Refusal | None:
    if not isinstance(device, Device) or dtype is None:
        return Refusal("argument", "taken in parts, which have a device and a dtype")
    return refuse_new(shape, device, dtype)


def _zeros(b: FusionBuilder, *shape: int, device: Device, dtype: object) -> Val:
    return b.full(shape, 0, data_type(dtype))


CLAIMS = {
    # Autograd inserts these, without subsymbols, for results that were not used.
    "torch.zeros": Claim(Role.CREATE, _refuse_zeros, _zeros),
    PrimIDs.FULL: Claim(Role.CREATE, _refuse_full, _full),
    PrimIDs.IOTA: Claim(Role.CREATE, _refuse_iota, _iota),
}
