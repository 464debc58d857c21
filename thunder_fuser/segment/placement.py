"""Placement: the one table that maps tensors to memory.

The planner fills it in step by step: tensors that must be in memory, and results that are views of
them; boundary tensors; updates that are written directly into their inputs; finally, allocated
buffers and their lifetimes.
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
    """Memory of an input, which the caller passes."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a plan allocates: live from the segment `first`, which writes it, to the segment
    `last`, after which it is free. None: it holds a result, which the caller owns."""

    tensor: TensorView
    bytes: int
    first: int
    last: int | None

    def is_free_in(self, segment: int) -> bool:
        """True if the buffer is freed before that segment runs."""
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
    """A slice of another tensor's memory, which a kernel writes."""

    view: View

    @property
    def base(self) -> TensorView:
        return self.view.base


@dataclass(frozen=True, slots=True)
class Updates:
    """The memory of an updated input, into which a kernel writes the new value."""

    base: TensorView


@dataclass(frozen=True, slots=True)
class SameAs:
    """The memory of another tensor, for the result of a cut (segment_set)."""

    base: TensorView


Place = Argument | Buffer | ViewOf | SliceOf | Updates | SameAs
_Place = TypeVar("_Place", bound=Place)


@dataclass(slots=True)
class Placement(Mapping[TensorView, Place]):
    """Memory and layout of each stored tensor.

    During planning, tensors that kernels write have layouts before they have memory.
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
        """Place a tensor, and set its layout if given. A tensor is placed only once."""
        assert tensor not in self._places, f"{tensor} has a place: {self._places[tensor]}"
        self._places[tensor] = place
        if layout is not None:
            self.layouts[tensor] = layout

    def of(self, kind: type[_Place]) -> dict[TensorView, _Place]:
        """Return the tensors placed by one kind, in the order of their placement."""
        return {t: place for t, place in self._places.items() if isinstance(place, kind)}

    # ---- whose memory

    def behind_cuts(self, tensor: TensorView) -> TensorView:
        """Return the tensor in front of the cuts that `tensor` is a result of, or itself."""
        return self._follow(tensor, SameAs)

    def written(self, tensor: TensorView) -> TensorView:
        """Return the written or given tensor of which `tensor` is a view or the result of a cut."""
        return self._follow(tensor, SameAs | ViewOf)

    def owner(self, tensor: TensorView) -> TensorView:
        """Return the tensor whose memory is passed to kernels for this one. Views are not followed:
        to the caller they are tensors of their own.
        """
        return self._follow(tensor, SameAs | Updates | SliceOf)

    def root(self, tensor: TensorView) -> TensorView:
        """Return the allocated or given tensor that owns the memory of `tensor`."""
        return self._follow(tensor, SameAs | Updates | SliceOf | ViewOf)

    def _follow(self, tensor: TensorView, kinds: object) -> TensorView:
        while isinstance(place := self._places.get(tensor), kinds):  # type: ignore[arg-type]
            tensor = place.base  # type: ignore[union-attr]
        return tensor

    # ---- the same by kind

    @property
    def views(self) -> dict[TensorView, View]:
        """Tensors that are views of others, with sizes, strides and offset there."""
        return {t: place.view for t, place in self.of(ViewOf).items()}

    @property
    def slices(self) -> dict[TensorView, View]:
        """Tensors that kernels write into others, with sizes, strides and offset there."""
        return {t: place.view for t, place in self.of(SliceOf).items()}

    @property
    def updates(self) -> dict[TensorView, TensorView]:
        """Values that kernels write directly into inputs, with these inputs."""
        return {t: place.base for t, place in self.of(Updates).items()}
