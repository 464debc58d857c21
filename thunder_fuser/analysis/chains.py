"""Chains of views and copies: which tensors a tensor is another look at, from itself backwards."""

from __future__ import annotations

from collections.abc import Mapping

from thunder_fuser.ir.fusion import (
    CopyOp,
    Expr,
    Fusion,
    PadOp,
    TensorView,
    Val,
    ViewOp,
    shows_memory,
)


def memory_chain(tensor: TensorView, definitions: Mapping[Val, Expr]) -> list[TensorView]:
    """Itself, and what it shows the memory of; last what is computed, copied or given."""
    chain = [tensor]
    while shows_memory(expr := definitions.get(chain[-1])):
        chain.append(expr.input)
    return chain


def copy_chain(tensor: TensorView, definitions: Mapping[Val, Expr]) -> list[TensorView]:
    """Itself, and what its elements come from, through views, copies and pads up to a cut; last
    what is computed, given or behind a cut.
    """
    chain = [tensor]
    while isinstance(expr := definitions.get(chain[-1]), ViewOp | CopyOp | PadOp):
        chain.append(expr.input)
    return chain


def memory_behind_results(fusion: Fusion) -> dict[TensorView, TensorView]:
    """For every value that a result looks at, or is: the value whose memory that is."""
    definitions = fusion.definitions()
    chains = [memory_chain(result, definitions) for result in fusion.results]
    return {tensor: chain[-1] for chain in chains for tensor in chain}


def sole_results(fusion: Fusion) -> dict[TensorView, TensorView | None]:
    """For every value that a result looks at, or is: the result, or None where several are."""
    definitions = fusion.definitions()
    found: dict[TensorView, TensorView | None] = {}
    for result in fusion.results:
        for tensor in memory_chain(result, definitions):
            found[tensor] = None if tensor in found else result
    return found
