"""Claims for prims that read at a data-dependent index: each is a row of `ir/tables/indexing.py`.

Their gradients write at a data-dependent index (scatter_add, index_add, embedding_backward), and
stay with torch.
"""

from __future__ import annotations

from functools import partial

from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import data_type
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables import indexing
from thunder_fuser.segment.regions.joint_graph import Role


def _refuse(op: str, x: TensorProxy, index: TensorProxy, dim: object) -> Refusal | None:
    if isinstance(dim, NumberProxy):
        return Refusal("symbolic-shape", "its dimension is unknown until the function runs")
    try:
        indexing.lookup(op).check_index(data_type(index.dtype))
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if not x.shape:
        return Refusal("shape", "it has no dimension to index along: reshape it to [1]")
    if isinstance(dim, int) and x.shape[dim] == 0 and 0 not in index.shape:
        return Refusal("empty", "torch raises an error if there is nothing to read from")
    return None


def _build(op: str, b: FusionBuilder, x: TensorView, index: TensorView, dim: int) -> Val:
    return b.gather(op, x, dim, index)


def _take_along_axis(b: FusionBuilder, x: TensorView, index: TensorView, dim: int) -> Val:
    # Thunder's primitive is torch.take_along_dim, which takes any index modulo the size.
    wrapped = b.pointwise("remainder", index, x.sizes[dim])
    assert isinstance(wrapped, TensorView)
    return b.gather("take_along_axis", x, dim, wrapped)


def _refuse_embedding(index: TensorProxy, weight: TensorProxy, **options: object) -> Refusal | None:
    if options.get("max_norm") is not None:
        return Refusal("max_norm", "an embedding that rescales its weight stays with torch")
    return _refuse("embedding_fwd", weight, index, 0)


def _embedding(b: FusionBuilder, index: TensorView, weight: TensorView, **_options: object) -> Val:
    # The other options only affect the gradient.
    return b.gather("embedding_fwd", weight, 0, index)


CLAIMS = {
    PrimIDs.TAKE: Claim(
        Role.JOIN, partial(_refuse, "index_select"), partial(_build, "index_select")
    ),
    PrimIDs.TAKE_ALONG_AXIS: Claim(
        Role.JOIN, partial(_refuse, "take_along_axis"), _take_along_axis
    ),
    PrimIDs.GATHER: Claim(Role.JOIN, partial(_refuse, "gather"), partial(_build, "gather")),
    PrimIDs.EMBEDDING: Claim(Role.JOIN, _refuse_embedding, _embedding),
}
