"""Where tensors lie in memory, and which of them are views of others.

A tensor is a view of another iff its address there, pulled back, is an affine form of its own
indices: the coefficients are its strides and the constant its offset. Whole chains of reshapes,
permutations, slices and broadcasts fold into that one question, and torch answers it with
`as_strided`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.ir.domain import Layout, dense_strides
from thunder_fuser.ir.fusion import CutOp, Fusion, TensorView, ViewOp, shows_memory
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Context, Form


@dataclass(frozen=True, slots=True)
class View:
    """`base`'s memory read with these strides and from this offset, in elements."""

    base: TensorView
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def view_of(
    tensor: TensorView,
    fusion: Fusion,
    bases: Container[TensorView],
    layouts: Mapping[TensorView, Layout],
) -> View | None:
    """`tensor` as a view of the nearest tensor in `bases`, or None if it needs memory of its own.

    `set` asks for a copy and is one. `stride_order` asks for memory that is dense in an order: it
    is a view of memory that is.
    """
    chain: list[ViewOp | CutOp] = []
    base, definitions = tensor, fusion.definitions()
    while base not in bases:
        expr = definitions.get(base)
        if not shows_memory(expr):
            return None
        chain.append(expr)
        base = expr.input
    if base.is_cpu or 0 in tensor.sizes:
        return None
    context = Context()
    index = [context.var(f"d{k}", 0, size - 1) for k, size in enumerate(tensor.sizes)]
    point = _pull_chain(index, chain, context)
    if base in definitions:
        # What repeats elements is written out; each has an address of its own.
        address = address_at(point, layouts[base], context)
    else:
        address = address_in(base, point, layouts[base], context)
    affine = address.affine([i for i in index if not i.is_constant])
    if affine is None:
        return None
    offset, coefficients = affine
    moving = iter(coefficients)
    strides = [0 if i.is_constant else next(moving) for i in index]
    _stride_over_single_elements(tensor.sizes, strides)
    dense = dense_strides(tensor.sizes, tensor.domain.allocation)
    if chain and chain[0].op == "stride_order" and not _same_steps(tensor.sizes, strides, dense):
        return None
    return View(base, tensor.sizes, tuple(strides), offset)


def _pull_chain(
    index: Sequence[Form], chain: Sequence[ViewOp | CutOp], context: Context
) -> Sequence[Form]:
    zero = context.const(0)
    for expr in chain:
        domain = expr.output.domain
        index, _ = pull(index, domain.root, domain.transforms, zero)
    return index


def address_in(
    tensor: TensorView,
    index: Sequence[Form],
    layout: Layout,
    context: Context,
    *,
    is_input: bool = True,
) -> Form:
    """The element of `tensor`'s memory that holds the logical point `index`.

    The memory of an input is its root domain; what is computed is stored as its logical one.
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


def _stride_over_single_elements(sizes: Sequence[int], strides: list[int]) -> None:
    """Dimensions of size 1 may have any stride: take the one that a dense tensor would have."""
    for k in reversed(range(len(sizes))):
        if sizes[k] == 1:
            inner = k + 1 < len(sizes)
            strides[k] = max(sizes[k + 1] * strides[k + 1], 1) if inner else 1


def _same_steps(sizes: Sequence[int], some: Sequence[int], others: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(sizes, some, others, strict=True))


def address_at(index: Sequence[Form], layout: Layout, context: Context) -> Form:
    """The address of an index, one form per dimension, in elements."""
    return sum((i * s for i, s in zip(index, layout.strides, strict=True)), context.const(0))


def unflatten(point: Form, sizes: Sequence[int], dims: Sequence[int]) -> dict[int, Form]:
    """The index along each of `dims`, from the outermost inwards, of a point counted over them."""
    index: dict[int, Form] = {}
    for k in reversed(dims):
        point, index[k] = divmod(point, max(sizes[k], 1))
    return index


def loop_order(tensor: TensorView, layout: Layout) -> tuple[int, ...]:
    """Dimensions from the outermost in memory to the innermost; those of size 1 come first.

    Walking a tensor in this order touches its memory in order; equal orders mean equal walks.
    """
    moving = [k for k, size in enumerate(tensor.sizes) if size != 1]
    still = [k for k, size in enumerate(tensor.sizes) if size == 1]
    return (*still, *sorted(moving, key=lambda k: -layout.strides[k]))


def dense_layout(tensor: TensorView, order: Sequence[int]) -> Layout:
    """The layout of freshly allocated memory in that order."""
    return Layout(dense_strides(tensor.sizes, order))


def aligned_layout(view: View, itemsize: int, alignment: int = 64) -> Layout:
    """The layout of a view of memory that is aligned to so many bytes."""
    shift = view.offset * itemsize
    return Layout(view.strides, alignment if shift == 0 else min(alignment, shift & -shift))


def layouts_of_inputs(
    fusion: Fusion, layouts: Sequence[Layout] | None = None
) -> dict[TensorView, Layout]:
    """Where tensor inputs lie; without layouts, as they are declared."""
    tensors = fusion.tensor_inputs
    return dict(zip(tensors, layouts or map(declared_layout, tensors), strict=True))


def declared_layout(tensor: TensorView) -> Layout:
    """The layout that an input's domain promises: dense, in its allocation order.

    What plans assume where no tensor is there to look at. Dimensions declared not contiguous are
    counted as dense too: bytes do not depend on gaps.
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
