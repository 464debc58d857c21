"""Claims for data movement prims: views, concatenation, padding, copies, in-place updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder.core.prims import PrimIDs

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims import setitem
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.layout import lying_as
from thunder_fuser.frontends.thunder.claims.operands import refuse_symbolic
from thunder_fuser.frontends.thunder.claims.padding import padded
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.regions.joint_graph import Role


def _refuse_pad(x: object, value: object, config: Sequence[tuple[int, int, int]]) -> Refusal | None:
    return refuse_symbolic(*config)


def _refuse_clone(x: object, **options: object) -> Refusal | None:
    if any(value is not None for value in options.values()):
        return Refusal("memory-format", f"a clone with {', '.join(options)} stays with torch")
    return None


def _broadcast(b: FusionBuilder, x: TensorView, shape: Sequence[int], dims: Sequence[int]) -> Val:
    return b.broadcast_in_dim(x, shape, dims)


def _cat(b: FusionBuilder, tensors: Sequence[TensorView], dim: int) -> Val:
    return b.cat(tensors, dim)


def _pad(
    b: FusionBuilder, x: TensorView, value: Val, config: Sequence[tuple[int, int, int]]
) -> Val:
    return padded(b, x, config, value)


def _same(b: FusionBuilder, x: TensorView) -> Val:
    return x


def _detach(b: FusionBuilder, x: TensorView) -> Val:
    """A view of all of `x`: another tensor on its memory, as in torch, and not `x` itself."""
    return b.broadcast_in_dim(x, x.sizes, range(x.rank))


def _clone(b: FusionBuilder, x: TensorView, **options: object) -> Val:
    return b.set(x)


def _update(b: FusionBuilder, source: TensorView, target: TensorView, *, grad_enabled: bool) -> Val:
    sizes, missing = list(target.domain.shape), target.rank - source.rank
    if list(source.domain.shape) != sizes:
        source = b.broadcast_in_dim(source, sizes, range(missing, target.rank))
    # A copy: the source may be returned too, and must then not be the updated memory.
    return b.set(source)


def _slice(
    b: FusionBuilder,
    x: TensorView,
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Val:
    return b.slice(x, starts, ends, strides)


def _view(build: Callable[..., Val]) -> Claim:
    return Claim(Role.VIEW, refuse_symbolic, build)


def _flip(b: FusionBuilder, x: TensorView, dims: Sequence[int]) -> Val:
    """Gather at descending indices, with the layout of `x`, as torch."""
    found = b.view("set", x, ())
    for dim in dims:
        size = x.sizes[dim]
        if size > 1:
            down = b.iota(size, size - 1, -1, DataType.Int)
            found = b.gather("index_select", found, dim, down)
    return lying_as(b, found, [x])


CLAIMS = {
    PrimIDs.BROADCAST_IN_DIM: _view(_broadcast),
    PrimIDs.RESHAPE: _view(lambda b, x, shape: b.reshape(x, shape)),
    PrimIDs.SLICE: _view(_slice),
    PrimIDs.SQUEEZE: _view(lambda b, x, dims: b.squeeze(x, dims)),
    PrimIDs.TRANSPOSE: _view(lambda b, x, permutation: b.permute(x, permutation)),
    PrimIDs.STRIDE_ORDER: _view(lambda b, x, order: b.stride_order(x, order)),
    PrimIDs.SHALLOW_COPY: Claim(Role.RENAME, refuse_symbolic, _same),
    "torch.detach": _view(_detach),
    PrimIDs.CLONE: Claim(Role.COPY, _refuse_clone, _clone),
    PrimIDs.CAT: Claim(Role.JOIN, refuse_symbolic, _cat),
    PrimIDs.FLIP: Claim(Role.JOIN, refuse_symbolic, _flip),
    PrimIDs.PAD: Claim(Role.JOIN, _refuse_pad, _pad),
    **setitem.CLAIMS,
    PrimIDs.UPDATE_ALIASES: Claim(Role.RENAME, refuse_symbolic, lambda b, tensors: tensors[0]),
    PrimIDs.COPY_: Claim(Role.UPDATE, refuse_symbolic, _update),
}
