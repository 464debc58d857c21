"""Inner orders: dimension orders of tensors that are not returned to the caller.

Results have the strides that torch gives them. A tensor that only torch calls read may have the
order that makes their operands views: a gradient that one product reads as a matrix, and another
one transposed, is one tensor in the order of that matrix, and both operands are views of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from thunder_fuser.analysis.aliases import copy_chain, view_of
from thunder_fuser.analysis.layout import dense_layout
from thunder_fuser.analysis.torch_strides import TorchMemory, memory_orders, order_behind
from thunder_fuser.ir.fusion import Fusion, OpaqueOp, TensorView


def inner_orders(
    fusion: Fusion, memory: Mapping[TensorView, TorchMemory]
) -> dict[TensorView, tuple[int, ...]]:
    """Return each tensor's dimensions, outermost in memory first. `memory`: strides in torch."""
    orders = memory_orders(memory)
    definitions = fusion.definitions()
    returned = {t for result in fusion.results for t in copy_chain(result, fusion)}
    read = dict.fromkeys(t for e in fusion.exprs if isinstance(e, OpaqueOp) for t in e.inputs)
    chains = {t: copy_chain(t, fusion) for t in read}
    sources = Counter(chain[-1] for chain in chains.values())
    settled: set[TensorView] = set()
    for tensor, chain in chains.items():
        source = chain[-1]
        is_free = source in definitions and source not in returned and source not in settled
        if not is_free or sources[source] == 1 or isinstance(definitions[source], OpaqueOp):
            continue
        settled.add(source)
        dense = {source: dense_layout(source, orders[source])}
        if view_of(tensor, fusion, dense, dense) is None:
            order = order_behind(chain, orders[tensor], fusion)
            moved = {} if order is None else {source: dense_layout(source, order)}
            if order is not None and view_of(tensor, fusion, moved, moved) is not None:
                orders[source] = order
    return orders
