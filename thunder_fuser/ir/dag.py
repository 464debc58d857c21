"""Backward walks of a directed acyclic graph.

Nodes are hashable; `producers` returns the operands of a node, or none where the walk is to stop.
Nothing recurses: programs have chains of thousands of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def backward_slice(
    roots: Iterable[Node], producers: Callable[[Node], Iterable[Node]]
) -> dict[Node, None]:
    """All nodes that the roots depend on, themselves included, in order of discovery."""
    seen: dict[Node, None] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting.extend(producers(node))
    return seen


def topological_order(
    roots: Iterable[Node], producers: Callable[[Node], Iterable[Node]]
) -> list[Node]:
    """The nodes of `backward_slice`, each after its producers."""
    order: list[Node] = []
    seen: set[Node] = set()
    waiting = [(root, False) for root in roots]
    while waiting:
        node, has_producers = waiting.pop()
        if has_producers:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting.extend((producer, False) for producer in producers(node))
    return order
