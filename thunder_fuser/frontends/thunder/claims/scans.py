"""Claims for scans along the last dimension, by one block per row: rows of `ir/tables/scans.py`.

Other scans stay with torch. Thunder's gradient of cumsum is a scan between two flips, which are
claimed in `shape.py`; that of cumprod stays with torch, as Thunder leaves it to torch's autograd.
"""

from __future__ import annotations

from functools import partial

from thunder.core.proxies import TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import FP8, data_type, refuse_symbolic
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import shape_text
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables import scans
from thunder_fuser.segment.regions.joint_graph import Role

LONGEST_ROW = 1 << 16
"""Most elements of a row that one block scans; torch shares longer rows among blocks."""


def _refuse(op: str, x: TensorProxy, dim: object, *, dtype: object = None) -> Refusal | None:
    if refused := refuse_symbolic(dim):
        return refused
    assert isinstance(dim, int)
    try:
        types = (data_type(x.dtype), data_type(x.dtype if dtype is None else dtype))
        scans.lookup(op).check(types[0], types[1])
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if FP8.intersection(types):
        return Refusal("dtype", f"torch has no {op} on {types[0].name} to {types[1].name}")
    axis, shape = dim % max(x.ndim, 1), tuple(x.shape)
    if any(size > 1 for size in shape[axis + 1 :]):
        text = (
            f"it scans dimension {axis} of {shape_text(shape)}, and kernels walk along rows of the "
            f"last one; torch scans others, or transpose dimensions {axis} and {x.ndim - 1} before "
            "and behind it"
        )
        return Refusal("scan", text)
    if x.ndim and shape[axis] > LONGEST_ROW:
        text = (
            f"its rows of {shape[axis]:,} elements are longer than the {LONGEST_ROW:,} that one "
            "block walks; torch shares them among blocks, or scan shorter rows and add up their "
            "last elements"
        )
        return Refusal("scan", text)
    return None


_WIDER = {DataType.Float: DataType.Double, DataType.ComplexFloat: DataType.ComplexDouble}


def _build(op: str, b: FusionBuilder, x: TensorView, dim: int, *, dtype: object = None) -> Val:
    """Accumulate single precision in double, as torch's CPU kernel: sums, and with them their
    rounding errors, grow along a row.
    """
    row = scans.lookup(op)
    result = row.result_dtype(x.dtype) if dtype is None else data_type(dtype)
    wide = _WIDER.get(result)
    if wide is None:
        return b.scan(op, x, dim, dtype=result)
    return b.cast(b.scan(op, b.cast_tensor(b.cast_tensor(x, result), wide), dim), result)


_COST = 8
"""Cost of scanning one element, in its own thread and in the scan across threads, in fp32
instructions."""

CLAIMS = {
    f"torch.{op}": Claim(Role.SCAN, partial(_refuse, op), partial(_build, op), _COST)
    for op in ("cumsum", "cumprod")
}
