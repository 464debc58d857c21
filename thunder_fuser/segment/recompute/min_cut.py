"""Minimum cut: the cheapest set of arcs that separates a source from a sink.

Dinic's algorithm (Soviet Math. Dokl. 11, 1970): shortest augmenting paths, one breadth-first level
graph at a time. Capacities are integers, so that equal prices are equal.
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
        while (levels := self._levels(source, sink))[sink] >= 0:
            self._saturate(source, sink, levels)
        reaches = [False] * len(self._arcs)
        reaches[sink] = True
        stack = [sink]
        while stack:
            head = stack.pop()
            for arc in self._arcs[head]:
                tail = self._heads[arc]
                if self._left[arc ^ 1] and not reaches[tail]:
                    reaches[tail] = True
                    stack.append(tail)
        return reaches

    def _levels(self, source: int, sink: int) -> list[int]:
        levels = [-1] * len(self._arcs)
        levels[source] = 0
        queue = deque([source])
        while queue and levels[sink] < 0:
            tail = queue.popleft()
            for arc in self._arcs[tail]:
                head = self._heads[arc]
                if self._left[arc] and levels[head] < 0:
                    levels[head] = levels[tail] + 1
                    queue.append(head)
        return levels

    def _saturate(self, source: int, sink: int, levels: list[int]) -> None:
        """Push flow along paths of increasing level until none is left."""
        following = [0] * len(self._arcs)
        path: list[int] = []
        tail = source
        while True:
            if tail == sink:
                pushed = min(self._left[arc] for arc in path)
                for arc in path:
                    self._left[arc] -= pushed
                    self._left[arc ^ 1] += pushed
                path, tail = [], source
                continue
            arcs = self._arcs[tail]
            while following[tail] < len(arcs):
                arc = arcs[following[tail]]
                if self._left[arc] and levels[self._heads[arc]] == levels[tail] + 1:
                    break
                following[tail] += 1
            if following[tail] < len(arcs):
                path.append(arc)
                tail = self._heads[arc]
            elif path:
                tail = self._heads[path.pop() ^ 1]
                following[tail] += 1
            else:
                return
