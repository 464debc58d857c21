"""Minimum cut: the cheapest set of arcs that separates a source from a sink.

Push and relabel (Goldberg and Tarjan, J. ACM 35, 1988), in waves: every arc of the source is full
at first, and a wave moves what waits at nodes closer to the sink, beginning with the farthest ones,
so that what comes from the source along a chain of values arrives together. Capacities are
integers, so that equal prices are equal.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60
"""A capacity that no cut of finite price crosses."""


class FlowNetwork:
    """A directed graph with capacities; nodes are numbered as they are added."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = []
        # Arc k and its reverse k ^ 1 are neighbours.
        self._heads: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        self._arcs.append([])
        return len(self._arcs) - 1

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """Add an arc that costs `capacity` to cut."""
        for start, end, left in ((tail, head, capacity), (head, tail, 0)):
            self._arcs[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(left)

    def cut(self, source: int, sink: int) -> list[bool]:
        """Return for each node True if it is on the sink's side of a minimum cut.

        Among minimum cuts, the one with the fewest nodes on that side. It consumes the network.
        """
        waiting = [0] * len(self._arcs)
        for arc in self._arcs[source]:
            self._push(arc, self._left[arc], waiting)
        while True:
            # What waits at nodes that do not reach the sink would flow back to the source.
            steps = self._steps(sink)
            moved = [node for node in reversed(steps) if self._forward(node, steps, waiting)]
            if not moved:
                return [node in steps for node in range(len(self._arcs))]

    def _push(self, arc: int, amount: int, waiting: list[int]) -> None:
        """Let so much flow through an arc, and wait at its head."""
        self._left[arc] -= amount
        self._left[arc ^ 1] += amount
        waiting[self._heads[arc]] += amount

    def _forward(self, node: int, steps: dict[int, int], waiting: list[int]) -> bool:
        """Push what waits at a node a step closer to the sink; False if nothing waits there."""
        if not waiting[node] or not steps[node]:
            return False
        closer = steps[node] - 1
        for arc in self._arcs[node]:
            if self._left[arc] and steps.get(self._heads[arc]) == closer:
                amount = min(waiting[node], self._left[arc])
                self._push(arc, amount, waiting)
                waiting[node] -= amount
                if not waiting[node]:
                    break
        return True

    def _steps(self, sink: int) -> dict[int, int]:
        """Return the number of steps to the sink of nodes that reach it, nearest first."""
        found = {sink: 0}
        queue = deque([sink])
        while queue:
            head = queue.popleft()
            for arc in self._arcs[head]:
                tail = self._heads[arc]
                if self._left[arc ^ 1] and tail not in found:
                    found[tail] = found[head] + 1
                    queue.append(tail)
        return found
