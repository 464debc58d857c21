"""A program with state as data: where it keeps what, lines in blocks, and what its caller does.

It is printed as a module whose `made()` gives the program, what the caller does before each call,
and what is kept, so that it can be made afresh for eager torch and for us, and cut down.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import heapq
import itertools
import math
import operator
import textwrap
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tests.fuzz.source import compiled


class Assigned(Enum):
    """Who may put something else in a place; to assign a parameter keeps nothing."""

    BY_NOBODY = 0
    BY_CALLER = 1
    BY_ALL = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is kept.

    inside   what the program calls it
    outside  what its caller calls it
    scope    "global", "nonlocal", or "" where it is an attribute or an item of something
    """

    inside: str
    outside: str
    kind: str
    value: str
    scope: str = ""
    assigned_by: Assigned = Assigned.BY_ALL


@dataclass(frozen=True, slots=True)
class Statement:
    """A line, and the lines of its block."""

    text: str
    block: tuple[Statement, ...] = ()

    def lines(self) -> Iterator[str]:
        yield self.text
        if self.text.endswith(":"):
            for statement in self.block or (Statement("pass"),):
                yield from (f"    {line}" for line in statement.lines())
        if self.text == "try:":
            yield from ("    x = x + {'a': 1.0}[str(x.dim())]", "except LookupError:")
            yield "    x = x + 3"


@dataclass(frozen=True, slots=True)
class Call:
    """A tensor to call the program with, and what the caller does before."""

    x: str
    before: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class StatefulProgram:
    """What `seed` stands for, or what is left of it after cutting.

    step               what the line `x = step(x)` does
    takes_gradients    whether `x` wants one
    """

    seed: int
    owner: str
    places: tuple[Place, ...]
    step: tuple[Statement, ...]
    body: tuple[Statement, ...]
    results: tuple[str, ...]
    calls: tuple[Call, ...]
    takes_gradients: bool = False

    @property
    def source(self) -> str:
        """The module. Only places that are named in it are made."""
        body = [line for statement in self.body for line in statement.lines()]
        step = [line for statement in self.step for line in statement.lines()]
        before = [
            (k, line)
            for k, call in enumerate(self.calls)
            for statement in call.before
            for line in statement.lines()
        ]
        text = "\n".join((*body, *step, *self.results, *(line for _, line in before)))
        kept = [p for p in self.places if p.inside in text or p.outside in text]
        globals_ = [p for p in kept if p.scope == "global"]
        cells = [p for p in kept if p.scope == "nonlocal"]
        defaults = [p for p in kept if p.outside.startswith("program.")]
        attributes = [p for p in kept if not p.scope and p not in defaults]
        named = [f"global {p.inside}" for p in globals_] + [f"nonlocal {p.inside}" for p in cells]
        parameters = ", ".join(("x", *(f"{p.inside}={p.value}" for p in defaults)))
        # Their places among the defaults depend on which of them are left.
        numbers = {p.outside: f"program.__defaults__[{k}]" for k, p in enumerate(defaults)}

        def outside(line: str) -> str:
            for old, new in numbers.items():
                line = line.replace(old, new)
            return line

        made = [
            *(f"{p.inside} = {p.value}" for p in cells),
            *_OWNERS[self.owner],
            "held = [None] * 9",
            "inner = SimpleNamespace(inner=SimpleNamespace())",
            *(f"{p.outside} = {p.value}" for p in attributes),
            "def step(x):",
            *(f"    {line}" for line in (*named, *step)),
            "    return x",
            f"def program({parameters}):",
            *(f"    {line}" for line in (*named, *body)),
            f"    return ({', '.join((*self.results, 'x'))},)",
            "def before(k):",
            *(f"    {line}" for line in named),
            "    x = torch.tensor([k + 1.0, 2.0, 3.0])",
            *(f"    if k == {k}:\n        {_indented(outside(line))}" for k, line in _runs(before)),
            "def kept():",
            f"    return [{', '.join(outside(p.outside) for p in kept)}]",
            "return program, before, kept",
        ]
        return "\n".join(
            (
                *(f"{p.inside} = {p.value}" for p in globals_),
                "def made():",
                *(textwrap.indent(line, "    ") for line in made),
                "",
            )
        )

    def made(self) -> tuple[Callable[..., Any], Callable[[int], None], Callable[[], list[Any]]]:
        """The program, what its caller does before call `k`, and what is kept."""
        space = {**NAMESPACE}
        exec(compiled(self.source, f"<state {self.seed} {id(self)}>"), space)
        made: tuple[Callable[..., Any], Callable[[int], None], Callable[[], list[Any]]]
        made = space["made"]()
        return made

    def inputs(self) -> list[torch.Tensor]:
        made = (eval(call.x, {**NAMESPACE}) for call in self.calls)
        return [x.requires_grad_(self.takes_gradients) for x in made]

    def script(self) -> str:
        """The program as a file that shows what torch returns and what we do."""
        inputs = ", ".join(call.x for call in self.calls)
        shown = "compiled(x)"
        if self.takes_gradients:
            shown = "y := compiled(x.requires_grad_()), torch.autograd.grad(y[-1].sum(), x)"
        return (
            "import bisect, copy, functools, heapq, itertools, math, operator\n"
            "import torch, thunder, thunder_fuser\n"
            "from collections import Counter, OrderedDict, defaultdict, deque\n"
            "from contextlib import suppress\nfrom dataclasses import asdict, replace\n"
            "from types import SimpleNamespace\n"
            f"from tests.fuzz.states.program import Meter, Point, Record, Slotted\n{self.source}\n"
            "def ours(f): return thunder.jit(f, executors=[thunder_fuser.executor])\n"
            "for compiler in (lambda f: f, ours):\n"
            "    program, before, kept = made()\n    compiled = compiler(program)\n"
            f"    for k, x in enumerate([{inputs}]):\n"
            f"        before(k)\n        print(k, {shown}, kept())\n"
        )

    # ---- cutting

    def smaller(self) -> Iterator[StatefulProgram]:
        """With a statement less, or with its block in its place; with a result or a call less."""
        if self.takes_gradients:
            yield replace(self, takes_gradients=False)
        for k in range(len(self.calls) - 1, 0, -1):
            yield replace(self, calls=self.calls[:k] + self.calls[k + 1 :])
        for body in _cut(self.body):
            yield replace(self, body=body)
        for step in _cut(self.step):
            yield replace(self, step=step)
        for k, call in enumerate(self.calls):
            for before in _cut(call.before):
                yield replace(
                    self, calls=(*self.calls[:k], Call(call.x, before), *self.calls[k + 1 :])
                )
        for k in range(len(self.results)):
            yield replace(self, results=self.results[:k] + self.results[k + 1 :])

    @property
    def size(self) -> int:
        statements = [*self.body, *self.step, *(s for call in self.calls for s in call.before)]
        return len("\n".join(line for s in statements for line in s.lines())) + 20 * (
            len(self.calls) + len(self.results) + self.takes_gradients
        )


def _cut(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    for k, statement in enumerate(statements):
        before, after = statements[:k], statements[k + 1 :]
        yield (*before, *after)
        if statement.block:
            yield (*before, *statement.block, *after)
        for block in _cut(statement.block):
            yield (*before, replace(statement, block=block), *after)


def _runs(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines of one call, together."""
    for k in dict.fromkeys(k for k, _ in lines):
        yield k, "\n".join(line for j, line in lines if j == k)


def _indented(lines: str) -> str:
    return textwrap.indent(lines, "        ").lstrip()


class Meter:
    """An object with methods, and a property that can be set."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count, self.last = 0.0, 0, None

    def add(self, n: float) -> float:
        self.total += n
        self.count += 1
        return self.mean

    def keep(self, x: torch.Tensor) -> None:
        self.last = x if self.last is None else self.last * 0.5 + x

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)

    @mean.setter
    def mean(self, value: float) -> None:
        self.total = value * self.count

    total: float
    count: int
    last: torch.Tensor | None


class Slotted:
    """An object without a dictionary of attributes; `m` may be missing."""

    __slots__ = ("m", "n")

    def __init__(self, n: Any) -> None:
        self.n = n


@dataclass
class Record:
    """A dataclass whose constructor computes an attribute."""

    n: Any
    rate: float = 0.5
    last: torch.Tensor | None = None
    doubled: Any = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = self.n * 2


class Point(NamedTuple):
    a: Any
    b: Any


_OWNERS: Mapping[str, Sequence[str]] = {
    "object": (
        "class Owner:",
        "    def __init__(self): pass",
        "owner = Owner()",
    ),
    "namespace": ("class Owner(SimpleNamespace): pass", "owner = Owner()"),
    "module": (
        "class Owner(torch.nn.Module):",
        "    pass",
        "owner = Owner()",
    ),
    "dictionary": ("Owner = type('Owner', (), {})", "owner = {}"),
}
"""What attributes and items are of. `Owner` is a class, whose attributes are shared."""

NAMESPACE: Mapping[str, Any] = {
    "torch": torch,
    "bisect": bisect,
    "copy": copy,
    "asdict": asdict,
    "replace": replace,
    "functools": functools,
    "heapq": heapq,
    "itertools": itertools,
    "math": math,
    "operator": operator,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
    "deque": deque,
    "suppress": contextlib.suppress,
    "SimpleNamespace": SimpleNamespace,
    "Meter": Meter,
    "Point": Point,
    "Slotted": Slotted,
    "Record": Record,
}
"""What the lines of a program may name."""
