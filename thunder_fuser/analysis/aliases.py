"""Alias analysis: which tensors are views of others' memory.

A tensor is a view of another iff its address there, pulled back, is an affine form of its own
indices: the coefficients are its strides and the constant its offset. Whole chains of reshapes,
permutations, slices and broadcasts reduce to that one question, and torch's `as_strided` makes the
view. The memory of each tensor in a plan is `segment/placement.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.layout import address_at, address_in
from thunder_fuser.ir.domain import Layout, dense_strides
from thunder_fuser.ir.fusion import (
    CopyOp,
    CutOp,
    Fusion,
    PadOp,
    TensorView,
    ViewOp,
    shows_memory,
)
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Context, Form


@dataclass(frozen=True, slots=True)
class View:
    """A view of `base`'s memory with these strides and offset, in elements."""

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

    `set` is always a copy. `stride_order` demands memory that is dense in an order: it is a view of
    memory that is, and only then are views of it views of that memory.
    """
    chain: list[ViewOp | CutOp] = []
    base, definitions = tensor, fusion.definitions()
    while base not in bases:
        expr = definitions.get(base)
        if not shows_memory(expr):
            return None
        if chain and expr.op == "stride_order" and not view_of(base, fusion, bases, layouts):
            return None
        chain.append(expr)
        base = expr.input
    if base.is_cpu or 0 in tensor.sizes:
        return None
    context = Context()
    index = [context.var(f"d{k}", 0, size - 1) for k, size in enumerate(tensor.sizes)]
    point = _pull_chain(index, chain, context)
    if base in definitions:
        # A computed tensor is stored with expanded dimensions written out: each element has an
        # address.
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


def _stride_over_single_elements(sizes: Sequence[int], strides: list[int]) -> None:
    """Dimensions of size 1 may have any stride: use that of a dense tensor."""
    for k in reversed(range(len(sizes))):
        if sizes[k] == 1:
            inner = k + 1 < len(sizes)
            strides[k] = max(sizes[k + 1] * strides[k + 1], 1) if inner else 1


def _same_steps(sizes: Sequence[int], some: Sequence[int], others: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(sizes, some, others, strict=True))


def aligned_layout(view: View, itemsize: int, alignment: int = 64) -> Layout:
    """The layout of a view of memory aligned to `alignment` bytes."""
    shift = view.offset * itemsize
    return Layout(view.strides, alignment if shift == 0 else min(alignment, shift & -shift))


# ---- chains of views and copies, from a tensor backwards


def memory_chain(tensor: TensorView, fusion: Fusion) -> list[TensorView]:
    """The tensor, and those whose memory it aliases; the last is computed, copied or an input."""
    chain, definitions = [tensor], fusion.definitions()
    while shows_memory(expr := definitions.get(chain[-1])):
        chain.append(expr.input)
    return chain


def copy_chain(tensor: TensorView, fusion: Fusion) -> list[TensorView]:
    """The tensor, and those that its elements are copied from, through views, copies and pads up to
    a cut; the last one is computed, an input or the result of a cut.
    """
    chain, definitions = [tensor], fusion.definitions()
    while isinstance(expr := definitions.get(chain[-1]), ViewOp | CopyOp | PadOp):
        chain.append(expr.input)
    return chain


def memory_behind_results(fusion: Fusion) -> dict[TensorView, TensorView]:
    """For every tensor that a result aliases, or is: the tensor that owns the memory."""
    chains = [memory_chain(result, fusion) for result in fusion.results]
    return {tensor: chain[-1] for chain in chains for tensor in chain}


def sole_results(fusion: Fusion) -> dict[TensorView, TensorView | None]:
    """For every tensor that a result aliases, or is: the result, or None if there are several."""
    found: dict[TensorView, TensorView | None] = {}
    for result in fusion.results:
        for tensor in memory_chain(result, fusion):
            found[tensor] = None if tensor in found else result
    return found
