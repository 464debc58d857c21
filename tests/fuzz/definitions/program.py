"""A definition as data: calls of `fd` and `fd.ops`, what is returned, inputs of several calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.inputs import copy_of
from thunder_fuser.frontends.definition import DataType, FusionDefinition

_METHODS = ("define_tensor", "define_scalar", "define_constant", "define_vector")
"""Calls of the definition itself; all others are operations."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program, by its place among all that its steps make."""

    place: int

    def __repr__(self) -> str:
        return f"v{self.place}"


@dataclass(frozen=True, slots=True)
class Step:
    """One call, which makes `count` values from place `first` on."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0
    count: int = 1

    def __str__(self) -> str:
        made = ", ".join(f"v{self.first + k}" for k in range(self.count))
        owner = "fd" if self.op in _METHODS else "fd.ops"
        given = [*map(_text, self.args), *(f"{n}={_text(v)}" for n, v in self.kwargs.items())]
        return f"{made} = {owner}.{self.op}({', '.join(given)})"

    def call(self, fd: FusionDefinition, values: Sequence[Any]) -> list[Any]:
        """What the definition makes of it."""
        owner = fd if self.op in _METHODS else fd.ops
        args, kwargs = self.resolved(lambda ref: values[ref.place])
        made = getattr(owner, self.op)(*args, **kwargs)
        return list(made) if isinstance(made, (list, tuple)) else [made]

    def resolved(self, value: Callable[[Ref], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with values in the place of references."""
        args = [_resolved(x, value) for x in self.args]
        return args, {name: _resolved(x, value) for name, x in self.kwargs.items()}

    @property
    def reads(self) -> set[int]:
        """The places that it refers to."""
        return set(_places([*self.args, *self.kwargs.values()]))


def _resolved(x: Any, value: Callable[[Ref], Any]) -> Any:
    if isinstance(x, Ref):
        return value(x)
    return [_resolved(y, value) for y in x] if isinstance(x, (list, tuple)) else x


def _places(x: Any) -> Iterator[int]:
    if isinstance(x, Ref):
        yield x.place
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from _places(y)


def _text(x: Any) -> str:
    if isinstance(x, DataType):
        return f"DataType.{x.name}"
    if isinstance(x, float) and (x != x or x in (float("inf"), -float("inf"))):
        return f'float("{x}")'
    return f"[{', '.join(map(_text, x))}]" if isinstance(x, (list, tuple)) else repr(x)


@dataclass(frozen=True, slots=True)
class Output:
    """A value that is returned; `how` is the input that it updates, or its stride order."""

    value: Ref
    how: Ref | tuple[int, ...] | None = None

    def __str__(self) -> str:
        more = "" if self.how is None else f", {_text(self.how)}"
        return f"fd.add_output({self.value!r}{more})"


Inputs = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What a seed stands for. `scalars`: numbers of every value that is none of a tensor's, by
    place, one per call.
    """

    seed: int
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    calls: tuple[Inputs, ...]
    scalars: Mapping[int, tuple[torch.Tensor, ...]]

    def define(self) -> tuple[FusionDefinition, list[Any]]:
        """The definition, and the handle of every value."""
        values: list[Any] = []
        with FusionDefinition() as fd:
            for step in self.steps:
                values += step.call(fd, values)
            for output in self.outputs:
                how = output.how
                plain = values[how.place] if isinstance(how, Ref) else how and list(how)
                fd.add_output(values[output.value.place], plain)
        return fd, values

    def inputs(self, k: int) -> list[Any]:
        """The inputs of a call, in memory of their own; those that share memory share it there."""
        memories: dict[int, torch.Tensor] = {}
        return [fresh(x, memories) if isinstance(x, torch.Tensor) else x for x in self.calls[k]]

    def __str__(self) -> str:
        body = "\n".join(f"    {line}" for line in (*self.steps, *self.outputs))
        calls = "\n".join(f"# call {k}: {_inputs_text(c)}" for k, c in enumerate(self.calls))
        return f"with FusionDefinition() as fd:\n{body}\n{calls}"


def fresh(x: torch.Tensor, memories: dict[int, torch.Tensor]) -> torch.Tensor:
    """A copy with strides and offset of `x`; `memories` are the storages copied so far."""
    place = x.untyped_storage().data_ptr()
    if place not in memories or not x.numel():
        memories[place] = copy_of(x)
    made = torch.empty(0, dtype=x.dtype).set_(memories[place].untyped_storage())
    return made.as_strided(x.size(), x.stride(), x.storage_offset())


def _inputs_text(inputs: Inputs) -> str:
    return "; ".join(
        f"{tuple(x.shape)} {x.stride()} +{x.storage_offset()}"
        if isinstance(x, torch.Tensor)
        else repr(x)
        for x in inputs
    )
