"""Lists, dictionaries, deques and sets: how their elements are read and written.

By methods of the kind itself, which a class derived from it may have replaced: `Counter.update`
adds to what there is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ContainerKind:
    """A kind of containers.

    kind      the type that has the methods
    elements  returns a list or dictionary of the elements
    extend    adds elements to an empty container
    changes   names of methods that change a container, and that Thunder's interpreter calls
              without looking inside; none if it follows the elements
    """

    kind: type
    elements: Callable[[Any], list[Any] | dict[Any, Any]]
    extend: Callable[[Any, Any], object]
    changes: str = ""

    @property
    def is_followed(self) -> bool:
        """True if Thunder's interpreter follows the elements."""
        return not self.changes

    def fill(self, container: Any, elements: Iterable[Any]) -> None:
        """Replace the elements of a container."""
        self.kind.clear(container)  # type: ignore[attr-defined]
        self.extend(container, elements)

    def changing(self) -> Iterator[Callable[..., Any]]:
        """Return the methods in `changes`."""
        return (getattr(self.kind, name) for name in self.changes.split())


CONTAINER_KINDS = (
    ContainerKind(list, list.copy, list.extend),
    ContainerKind(OrderedDict, lambda held: dict(OrderedDict.items(held)), OrderedDict.update),
    ContainerKind(dict, dict.copy, dict.update),
    ContainerKind(
        *(deque, list, deque.extend),
        "append appendleft clear extend extendleft insert pop popleft remove reverse rotate "
        "__delitem__ __iadd__ __imul__ __init__ __setitem__",
    ),
    ContainerKind(
        # Their order, which differs from process to process, is not for a program.
        *(set, lambda held: sorted(held, key=repr), set.update),
        "add clear difference_update discard intersection_update pop remove "
        "symmetric_difference_update update __iand__ __ior__ __isub__ __ixor__",
    ),
)
"""A kind comes before the one that it is derived from."""

METHODS_THAT_CHANGE = frozenset(m for kind in CONTAINER_KINDS for m in kind.changing())
METHODS_OF_ITERABLES = frozenset(
    {
        *(deque.__init__, deque.__iadd__, deque.extend, deque.extendleft),
        *(set.update, set.difference_update, set.intersection_update),
        set.symmetric_difference_update,
    }
)
"""Of these, those that read what they are given."""
METHODS_THAT_READ = frozenset({deque.__getitem__, deque.__iter__})
"""Methods of what Thunder's interpreter does not follow. A set has no tensors to read."""


def kind_of_container(container: Any) -> ContainerKind | None:
    """Return the kind of a container; None for other objects."""
    return next((kind for kind in CONTAINER_KINDS if isinstance(container, kind.kind)), None)


def listed(values: Iterable[Any]) -> list[Any]:
    """Return the values, for Thunder's interpreter, which reads each of them."""
    return [value for value in values]  # noqa: C416  (`list` would not be interpreted)
