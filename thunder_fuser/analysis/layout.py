"""Memory layouts of tensors, and addresses of their elements."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.domain import Layout, dense_strides
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Context, Form


def address_in(
    tensor: TensorView,
    index: Sequence[Form],
    layout: Layout,
    context: Context,
    *,
    is_input: bool = True,
) -> Form:
    """Address, in elements, of the logical point `index` in `tensor`'s memory.

    The memory of an input is its root domain; computed tensors are stored as their logical domain.
    """
    domain = tensor.domain
    zero = context.const(0)
    inside = [zero if dim.is_broadcast else i for dim, i in zip(domain.logical, index, strict=True)]
    dims, steps = (domain.root, domain.transforms) if is_input else (domain.logical, ())
    point, _ = pull(inside, dims, steps, zero)
    address = zero
    for i, stride, dim in zip(point, layout.strides, dims, strict=True):
        if not dim.is_broadcast:
            address = address + i * stride
    return address


def address_at(index: Sequence[Form], layout: Layout, context: Context) -> Form:
    """The address of an index, one form per dimension, in elements."""
    return sum((i * s for i, s in zip(index, layout.strides, strict=True)), context.const(0))


def unflatten(point: Form, sizes: Sequence[int], dims: Sequence[int]) -> dict[int, Form]:
    """The index along each of `dims`, outermost first, of a linear index over them."""
    index: dict[int, Form] = {}
    for k in reversed(dims):
        point, index[k] = divmod(point, max(sizes[k], 1))
    return index


def loop_order(tensor: TensorView, layout: Layout) -> tuple[int, ...]:
    """Dimensions from the outermost in memory to the innermost; those of size 1 come first.

    A loop nest in this order accesses the memory in order; equal orders mean equal walks.
    """
    moving = [k for k, size in enumerate(tensor.sizes) if size != 1]
    still = [k for k, size in enumerate(tensor.sizes) if size == 1]
    return (*still, *sorted(moving, key=lambda k: -layout.strides[k]))


def dense_layout(tensor: TensorView, order: Sequence[int]) -> Layout:
    """The layout of freshly allocated dense memory in that order."""
    return Layout(dense_strides(tensor.sizes, order))


def layouts_of_inputs(
    fusion: Fusion, layouts: Sequence[Layout] | None = None
) -> dict[TensorView, Layout]:
    """Layouts of tensor inputs; by default the declared ones."""
    tensors = fusion.tensor_inputs
    return dict(zip(tensors, layouts or map(declared_layout, tensors), strict=True))


def declared_layout(tensor: TensorView) -> Layout:
    """The layout that an input's domain promises: dense, in its allocation order.

    Assumed by plans without tensors to inspect. Dimensions declared not contiguous are treated as
    dense too: bytes do not depend on gaps.
    """
    domain = tensor.domain
    if domain.transforms:
        sizes = [1 if d.is_broadcast else d.size for d in domain.root]
        return Layout(dense_strides([int(n) for n in sizes], range(len(sizes))))
    sizes = [1 if d.is_broadcast else d.size for d in domain.logical]
    strides = dense_strides([int(n) for n in sizes], domain.allocation)
    return Layout(
        tuple(
            0 if d.expanded is not None else s for d, s in zip(domain.logical, strides, strict=True)
        )
    )
