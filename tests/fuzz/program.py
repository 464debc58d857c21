"""A random program as data: tensors, lines of Python, and what is returned.

It can be printed as a script that runs by itself, cut down line by line, and replayed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.fuzz.source import compiled

_NAME = re.compile(r"\b[ax]\d+\b")
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_CONVERTS = re.compile(r"\.(to|type_as)\([^()]*\)$")
_NARROW = re.compile(r"torch\.(float16|bfloat16|float32|complex64)\b")


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """A tensor that a program is called with, laid out in memory in one way or another."""

    name: str
    layouts: tuple[torch.Tensor, ...]
    requires_grad: bool = False

    def at(self, layout: int) -> torch.Tensor:
        return self.layouts[layout % len(self.layouts)]

    def fresh(
        self, layout: int, memories: dict[int, torch.Tensor], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """The tensor with its strides and offset, in new memory.

        `memories` are those made so far: arguments that share memory do so in every call.
        """
        given = self.at(layout)
        place = given.untyped_storage().data_ptr()
        if place not in memories or not given.numel():
            memory = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage()).clone()
            memories[place] = memory if dtype is None else memory.to(dtype)
        made = memories[place].as_strided(given.size(), given.stride(), given.storage_offset())
        return made.requires_grad_(self.requires_grad)

    def literal(self, layout: int) -> str:
        """Python that makes the tensor."""
        given = self.at(layout)
        grad = ".requires_grad_()" if self.requires_grad else ""
        if given.is_contiguous() and not given.storage_offset() and given.numel():
            return f"torch.tensor({given.tolist()}, dtype={given.dtype}){grad}"
        memory = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage()).tolist()
        place = f"{tuple(given.size())}, {given.stride()}, {given.storage_offset()}"
        return f"torch.tensor({memory}, dtype={given.dtype}).as_strided({place}){grad}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a program; `row` is the entry of the tables that it came from."""

    text: str
    row: str
    makes: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        text = self.text.partition(" = ")[2] if self.makes else self.text
        return tuple(dict.fromkeys(_NAME.findall(text)))


@dataclass(frozen=True, slots=True)
class Program:
    """What `seed` stands for, or what is left of it after cutting.

    changed  arguments and results whose elements change places between forward and backward
    budget   what it may save for the backward, if that is limited
    """

    seed: int
    arguments: tuple[Argument, ...]
    lines: tuple[Line, ...]
    results: tuple[str, ...]
    changed: tuple[str, ...] = ()
    budget: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What thunder.jit is asked for: what the documents tell users who change tensors before
        the backward, and a budget.
        """
        asked: dict[str, Any] = {"save_like_torch": True} if self.changed else {}
        return asked if self.budget is None else asked | {"memory_budget": self.budget}

    @property
    def source(self) -> str:
        names = ", ".join(a.name for a in self.arguments)
        body = "".join(f"    {line.text}\n" for line in self.lines)
        results = ", ".join(self.results) + ("," if len(self.results) == 1 else "")
        return f"def program({names}):\n{body}    return ({results})\n"

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(sorted({line.row for line in self.lines}))

    @property
    def takes_gradients(self) -> bool:
        return any(a.requires_grad for a in self.arguments)

    def function(self, *, wide: bool = False) -> Callable[..., tuple[Any, ...]]:
        """The function itself; `wide`: with double precision in the place of every other."""
        source = self.source
        if wide:
            source = _NARROW.sub(
                lambda m: "torch.complex128" if m[1] == "complex64" else "torch.float64",
                self._with_copies().source,
            )
        file = f"<program {self.seed} {id(self)}>"
        space = {**NAMESPACE}
        exec(compiled(source, file), space)
        made: Callable[..., tuple[Any, ...]] = space["program"]
        return made

    def _with_copies(self) -> Program:
        """What a conversion copies is copied, too, where all floats are of one dtype."""
        space = dict(NAMESPACE)
        space.update(zip((a.name for a in self.arguments), self.inputs(0), strict=True))
        lines = []
        for line in self.lines:
            with suppress(Exception):
                exec(line.text, space)
            is_new = all(space.get(line.makes or "") is not space.get(name) for name in line.reads)
            copies = _CONVERTS.search(line.text) and is_new
            lines.append(replace(line, text=f"{line.text}.clone()") if copies else line)
        return replace(self, lines=tuple(lines))

    def inputs(self, layout: int, *, wide: bool = False) -> list[torch.Tensor]:
        memories: dict[int, torch.Tensor] = {}
        return [
            a.fresh(layout, memories, _WIDER.get(a.layouts[0].dtype) if wide else None)
            for a in self.arguments
        ]

    def script(self, layouts: Sequence[int] = (0,)) -> str:
        """The program as a file that shows what torch returns and what we do."""
        called = "".join(self._call(layout) for layout in layouts)
        if self.takes_gradients:
            shown = (
                "given = arguments()\n"
                "    made = f(*given)\n"
                "    outs = [t for t in made if t.requires_grad]\n"
                "    wanted = [a for a in given if a.requires_grad]\n"
                f"{self._change()}"
                "    ones = [torch.ones_like(t) for t in outs]\n"
                "    print(outs, torch.autograd.grad(outs, wanted, ones, allow_unused=True))"
            )
        else:
            shown = "given = arguments()\n    print(f(*given), given)"
        asked = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return (
            "import torch, torch.nn.functional as F, thunder, thunder_fuser\n"
            f"from math import inf, nan\n\n{self.source}\n"
            f"ours = thunder.jit(program, executors=[thunder_fuser.executor]{asked})\n{called}"
        ).replace("SHOWN", shown)

    def _change(self) -> str:
        places = {a.name: f"given[{k}]" for k, a in enumerate(self.arguments)}
        places |= {name: f"made[{k}]" for k, name in enumerate(self.results)}
        tensors = ", ".join(places[name] for name in self.changed)
        change = "t.detach().copy_(t.detach().clone().flip(tuple(range(t.dim()))))"
        return f"    for t in [{tensors}]: {change}\n" if tensors else ""

    def _call(self, layout: int) -> str:
        made, owners = "", dict[int, str]()
        for a in self.arguments:
            given = a.at(layout)
            owner = owners.setdefault(given.untyped_storage().data_ptr(), a.name)
            place = f"{tuple(given.size())}, {given.stride()}, {given.storage_offset()}"
            shared = owner != a.name and given.numel()
            text = f"{owner}.as_strided({place})" if shared else a.literal(layout)
            made += f"    {a.name} = {text}\n"
        names = ", ".join(a.name for a in self.arguments)
        return (
            f"def arguments():\n{made}    return [{names}]\n"
            "for f in (program, ours):\n    SHOWN\n\n"
        )

    # ---- cutting

    def without(self, k: int, instead: str | None) -> Program | None:
        """Without a line; who reads what it makes reads `instead`, or goes as well."""
        gone = self.lines[k].makes
        lines = list(self.lines[:k])
        lost = {gone} - {None}
        results = list(self.results)
        for line in self.lines[k + 1 :]:
            if gone is not None and instead is not None:
                lines.append(_renamed(line, gone, instead))
            elif lost.isdisjoint(line.reads):
                lines.append(line)
            elif line.makes:
                lost.add(line.makes)
        if gone is not None and instead is not None:
            results = [instead if r == gone else r for r in results]
        results = [r for r in results if r not in lost or instead is not None]
        return self.trimmed(lines, results) if results else None

    def trimmed(self, lines: Sequence[Line], results: Sequence[str]) -> Program:
        """With the arguments that are still read."""
        read = {name for line in lines for name in line.reads} | set(results)
        kept = tuple(a for a in self.arguments if a.name in read)
        there = {*results, *(a.name for a in kept)}
        return replace(
            self,
            arguments=kept,
            lines=tuple(lines),
            results=tuple(results),
            changed=tuple(name for name in self.changed if name in there),
        )

    def with_arguments(self, change: Callable[[Argument], Argument]) -> Program:
        return replace(self, arguments=tuple(map(change, self.arguments)))


def _renamed(line: Line, old: str, new: str) -> Line:
    return replace(line, text=re.sub(rf"\b{old}\b", new, line.text))


NAMESPACE: Mapping[str, Any] = {
    "torch": torch,
    "F": torch.nn.functional,
    "inf": math.inf,
    "nan": math.nan,
}
"""What the lines of a program may name."""
