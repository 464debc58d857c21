"""Placement: the one table of what lies where in memory.

The planner fills it in as it decides: what must be in memory, and which results are views of it;
what kernels write for each other; which updates go straight into their inputs; at last, which
memory is allocated, and how long it lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from thunder_fuser.analysis.aliases import View
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import TensorView


@dataclass(frozen=True, slots=True)
class Argument:
    """Memory that the caller gives."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a plan allocates: from the segment `first`, which writes it, to the segment
    `last`, after which it is free. None: a result is in it, which the caller gets."""

    tensor: TensorView
    bytes: int
    first: int
    last: int | None

    def is_free_in(self, segment: int) -> bool:
        """Whether it is given back before that segment runs."""
        return self.last is not None and self.last < segment

    def __str__(self) -> str:
        end = "the caller" if self.last is None else f"segment {self.last}"
        return f"buffer {self.tensor.name} ({self.bytes:,} B): segment {self.first} to {end}"


@dataclass(frozen=True, slots=True)
class ViewOf:
    """The memory of another tensor, read with strides of its own: nothing is written."""

    view: View

    @property
    def base(self) -> TensorView:
        return self.view.base


@dataclass(frozen=True, slots=True)
class SliceOf:
    """A part of another tensor's memory, which a kernel writes there."""

    view: View

    @property
    def base(self) -> TensorView:
        return self.view.base


@dataclass(frozen=True, slots=True)
class Updates:
    """The memory of an input, which the kernel that computes its new value writes."""

    base: TensorView


@dataclass(frozen=True, slots=True)
class SameAs:
    """The very memory of another tensor, seen from behind a cut (segment_set)."""

    base: TensorView


Place = Argument | Buffer | ViewOf | SliceOf | Updates | SameAs
_Place = TypeVar("_Place", bound=Place)


@dataclass(slots=True)
class Placement(Mapping[TensorView, Place]):
    """Where each tensor in memory lies, and the layout that it has there.

    While a plan is made, tensors that kernels write have layouts before they have memory.
    """

    layouts: dict[TensorView, Layout]
    _places: dict[TensorView, Place] = field(default_factory=dict)

    def __getitem__(self, tensor: TensorView) -> Place:
        return self._places[tensor]

    def __iter__(self) -> Iterator[TensorView]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def put(self, tensor: TensorView, place: Place, layout: Layout | None = None) -> None:
        """Say where a tensor lies; once."""
        assert tensor not in self._places, f"{tensor} has a place: {self._places[tensor]}"
        self._places[tensor] = place
        if layout is not None:
            self.layouts[tensor] = layout

    def of(self, kind: type[_Place]) -> dict[TensorView, _Place]:
        """The tensors that are placed in one way, in the order in which that was decided."""
        return {t: place for t, place in self._places.items() if isinstance(place, kind)}

    # ---- whose memory

    def behind_cuts(self, tensor: TensorView) -> TensorView:
        """The tensor that is seen from behind a cut, or the tensor itself."""
        return self._follow(tensor, SameAs)

    def written(self, tensor: TensorView) -> TensorView:
        """What a kernel writes, or the caller gives, of which a tensor shows the memory."""
        return self._follow(tensor, SameAs | ViewOf)

    def owner(self, tensor: TensorView) -> TensorView:
        """The tensor with whose memory a kernel is called for this one: views are tensors of their
        own to the caller.
        """
        return self._follow(tensor, SameAs | Updates | SliceOf)

    def root(self, tensor: TensorView) -> TensorView:
        """The tensor that is allocated, or given, where a tensor lies."""
        return self._follow(tensor, SameAs | Updates | SliceOf | ViewOf)

    def _follow(self, tensor: TensorView, kinds: object) -> TensorView:
        while isinstance(place := self._places.get(tensor), kinds):  # type: ignore[arg-type]
            tensor = place.base  # type: ignore[union-attr]
        return tensor

    # ---- the same by kind

    @property
    def views(self) -> dict[TensorView, View]:
        """Tensors that are views of others, and how they lie there."""
        return {t: place.view for t, place in self.of(ViewOf).items()}

    @property
    def slices(self) -> dict[TensorView, View]:
        """Tensors that kernels write into others, and where they lie there."""
        return {t: place.view for t, place in self.of(SliceOf).items()}

    @property
    def updates(self) -> dict[TensorView, TensorView]:
        """Values that kernels write straight into the inputs that they update."""
        return {t: place.base for t, place in self.of(Updates).items()}
