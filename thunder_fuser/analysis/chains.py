"""Chains of views and copies: which tensors a tensor is another look at, from itself backwards."""

from __future__ import annotations

from thunder_fuser.ir.fusion import (
    CopyOp,
    Fusion,
    PadOp,
    TensorView,
    ViewOp,
    shows_memory,
)


def memory_chain(tensor: TensorView, fusion: Fusion) -> list[TensorView]:
    """Itself, and what it shows the memory of; last what is computed, copied or given."""
    chain, definitions = [tensor], fusion.definitions()
    while shows_memory(expr := definitions.get(chain[-1])):
        chain.append(expr.input)
    return chain


def copy_chain(tensor: TensorView, fusion: Fusion) -> list[TensorView]:
    """Itself, and what its elements come from, through views, copies and pads up to a cut; last
    what is computed, given or behind a cut.
    """
    chain, definitions = [tensor], fusion.definitions()
    while isinstance(expr := definitions.get(chain[-1]), ViewOp | CopyOp | PadOp):
        chain.append(expr.input)
    return chain


def memory_behind_results(fusion: Fusion) -> dict[TensorView, TensorView]:
    """For every value that a result looks at, or is: the value whose memory that is."""
    chains = [memory_chain(result, fusion) for result in fusion.results]
    return {tensor: chain[-1] for chain in chains for tensor in chain}


def sole_results(fusion: Fusion) -> dict[TensorView, TensorView | None]:
    """For every value that a result looks at, or is: the result, or None where several are."""
    found: dict[TensorView, TensorView | None] = {}
    for result in fusion.results:
        for tensor in memory_chain(result, fusion):
            found[tensor] = None if tensor in found else result
    return found
