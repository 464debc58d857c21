"""Collectives that are started and not yet awaited, while the steps of a plan are linked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.runtime.steps import Step
from thunder_fuser.segment.plan import Segment, SegmentedFusion


class PendingCollectives:
    """Collectives that are started. Views of a result cannot be made before it has arrived: they
    are made when it is awaited.
    """

    def __init__(self, plan: SegmentedFusion) -> None:
        self._plan = plan
        self._steps: dict[int, list[Step]] = {}
        self._sender: dict[TensorView, int] = {}

    def add(self, segment: Segment, arrive: Step) -> None:
        """Add a collective that is started; `arrive` waits for it."""
        self._steps[segment.index] = [arrive]
        self._sender[self._plan.placement.root(segment.outputs[0])] = segment.index

    def holds(self, tensor: TensorView) -> bool:
        """True if a tensor lies in a result that has not arrived."""
        return self._sender.get(self._plan.placement.root(tensor)) in self._steps

    def defer(self, tensor: TensorView, views: Sequence[Step]) -> None:
        """Make views of a tensor when the result in which it lies has arrived."""
        self._steps[self._sender[self._plan.placement.root(tensor)]] += views

    def awaited_by(self, index: int) -> list[Step]:
        """Steps that wait for the collectives that a segment awaits."""
        ready = [k for k in self._steps if self._plan.segments[k].awaited_by == index]
        return [step for k in ready for step in self._steps.pop(k)]

    def rest(self) -> list[Step]:
        """Steps that wait for all others."""
        return list(chain.from_iterable(self._steps.values()))
