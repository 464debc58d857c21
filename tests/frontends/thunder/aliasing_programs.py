"""Random programs with views and updates in place: what one memory is, and what it holds, matters.

`random_aliasing_program(seed)` draws one: views of views of arguments and of results, updates
through them in any order, reads before and after, copies, reductions and matrix products between,
loops, branches and blocks without gradients, and some of all tensors as results. A statement is
kept if eager torch runs it.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

SHAPES = ((4, 4), (6,), (2, 3, 4), (4, 6), (1, 4), (3, 4))


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that a program is given: random numbers, whose dimensions may be permuted."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def tensor(self, generator: torch.Generator) -> torch.Tensor:
        stored = [self.shape[k] for k in self.order]
        numbers = torch.randint(-8, 9, stored, generator=generator).to(self.dtype) / 4
        back = [self.order.index(k) for k in range(len(self.order))]
        return numbers.to(self.dtype).permute(back)


@dataclass(frozen=True, slots=True)
class Program:
    """`source` defines `program`, a function of tensors like `arguments`."""

    source: str
    arguments: tuple[Argument, ...]

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [a.tensor(generator) for a in self.arguments]

    @property
    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(self.source, scope)
        found: Callable[..., Any] = scope["program"]
        return found


def random_aliasing_program(seed: int, statements: int = 9) -> Program:
    """The program of a seed, always the same."""
    return _Writer(random.Random(seed)).program(statements)


class _Writer:
    """Writes statements, and runs each at once, to know what there is."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.values: dict[str, torch.Tensor] = {}
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"torch": torch, "F": F}

    def program(self, statements: int) -> Program:
        arguments = [self._argument() for _ in range(self.draw.randint(1, 3))]
        for k, argument in enumerate(arguments):
            self.values[f"x{k}"] = argument.tensor(torch.Generator().manual_seed(k))
        kinds = (
            *(self._view, self._view, self._update, self._update, self._compute),
            *(self._chain, self._write, self._block),
        )
        tries = 0
        while len(self.lines) < statements and tries < 20 * statements:
            tries += 1
            self.draw.choice(kinds)()
        names = list(self.values)
        self.draw.shuffle(names)
        returned = ", ".join(sorted(names[: self.draw.randint(1, 4)]))
        parameters = ", ".join(f"x{k}" for k in range(len(arguments)))
        body = textwrap.indent("".join(f"{line}\n" for line in self.lines), "    ")
        source = f"def program({parameters}):\n{body}    return {returned}\n"
        return Program(source, tuple(arguments))

    def _argument(self) -> Argument:
        shape = self.draw.choice(SHAPES)
        order = list(range(len(shape)))
        if self.draw.random() < 0.3:
            self.draw.shuffle(order)
        whole = self.draw.random() < 0.15
        return Argument(shape, tuple(order), torch.int64 if whole else torch.float32)

    # ---- statements

    def _view(self) -> None:
        name = self._any()
        chosen = self.draw.choice(_views(self.draw, self.values[name]))
        if "=" in chosen:
            names, _, call = chosen.partition("=")
            new = [f"v{len(self.values) + k}" for k in range(int(names))]
            self._run(f"{', '.join(new)} = {name}{call}", new)
        else:
            self._new("v", f"{name}{chosen}")

    def _compute(self) -> None:
        name = self._any()
        other = self._like(name)
        k = self.draw.randint(0, max(self.values[name].dim() - 1, 0))
        self._new(
            "y",
            self.draw.choice(
                (
                    *(f"{name} * 2", f"{name} + {other}", f"torch.sin({name}) * 1.5", f"-{name}"),
                    *(f"{name}.sum({k})", f"{name}.sum({k}, keepdim=True)", f"{name}.clone()"),
                    *(f"torch.cat(({name}, {name}), {k})", f"torch.relu({name}) + 1"),
                    *(f"F.pad({name}, (1, 1))", f"{name} @ {other}", f"{name}.repeat(2, 1)"),
                    *(f"F.softmax({name}, {k})", f"torch.where({name} > 0, {name}, {other})"),
                    *(f"{name} * 1", f"torch.floor({name})", f"{name}.expand(2, -1, -1) * 1"),
                    *(f"torch.stack(({name}, {other}), {k})", f"{name}.repeat(1, 1)"),
                    f"{name}.repeat_interleave(1, {k})",
                    *(f"{name}.t() * {name}", f"torch.zeros_like({name})", f"{name}.float()"),
                    *(f"torch.amax({name}, {k})", f"F.layer_norm({name}, (4,))"),
                )
            ),
        )

    def _update(self) -> None:
        self._run(self._update_of(self._any()), [])

    def _chain(self) -> None:
        """Update through views of views, none of which has a name."""
        name = self._any()
        shown, calls = self.values[name], ""
        for _ in range(self.draw.randint(2, 4)):
            call = self.draw.choice([c for c in _views(self.draw, shown) if "=" not in c])
            try:
                shown = eval(f"shown{call}", {"shown": shown})
            except (RuntimeError, IndexError):
                continue
            calls += call
        found = (".mul_(2)", ".add_(1)", ".copy_(-1)", f".add_({name}.sum())", ".sin_()", "[:] = 2")
        self._run(f"{name}{calls}{self.draw.choice(found)}", [])

    def _write(self) -> None:
        """Write into a region: strides, lists, inserted axes, masks; from a region elsewhere."""
        name = self._any()
        other, n = self._like(name), self.values[name].dim()
        here, there = _region(self.draw, self.values[name]), _region(self.draw, self.values[other])
        number = self.draw.choice((2, -1, 0.5))
        chosen = (
            *(f"{name}[{here}] = {number}", f"{name}[{here}] += {number}"),
            *(f"{name}[{here}] = {other}[{there}]", f"{name}[{here}] += {other}[{there}]"),
            *(f"{name}[{here}] *= {other}[{here}]", f"{name}[{here}] = {name}[{here}].flip(0)"),
            *(f"{name}[1:] += {name}[:-1] * 2", f"{name}[..., 1:] = {name}[..., :-1] + 1"),
            *(f"{name}[1:] += {other}[:-1]", f"{name}[:, ({name} > 0)[0]] = {number}"),
            *(f"{name}[({name} > 0).{'any(-1)' if n > 1 else 'clone()'}] = {number}",),
            f"{name}[torch.arange(1)] = {other}[:1]",
        )
        self._run(self.draw.choice(chosen), [])

    def _block(self) -> None:
        """Several updates: in a loop, a branch, over a list of tensors, without gradients."""
        name, other = self._any(), self._any()
        one, two = self._update_of(name), self._update_of(other)
        k = self.draw.randint(1, 3)
        chosen = (
            *(f"with torch.no_grad():\n    {one}", f"with torch.no_grad():\n    {one}\n    {two}"),
            *(
                f"for k in range({k}):\n    {one}\n    {two}",
                f"for k in range(2):\n    {name}[k] += k",
            ),
            f"for t in [{name}, {other}]:\n    t.mul_(0.5)",
            f"if {name}.dim() > {k}:\n    {one}\nelse:\n    {two}",
            f"rows = [*{name}]\nfor row in rows:\n    row.mul_(0.5)\nrows[-1] += rows[0]",
            f"torch.add({name}, {self._like(name)}, out={name})",
            f"{name}.detach().{self.draw.choice(('mul_(2)', 'add_(1)', 'zero_()'))}",
        )
        self._run(self.draw.choice(chosen), [])

    def _update_of(self, name: str) -> str:
        other, third = self._like(name), self._like(name)
        chosen = (
            *(f"{name}.add_(1)", f"{name}.mul_(2)", f"{name}.zero_()", f"{name}.copy_({other})"),
            *(f"{name}.add_({other})", f"{name}.sub_({other}, alpha=0.5)", f"{name} += {other}"),
            *(f"{name}.mul_({other})", f"{name}.add_({name}.sum())", f"{name}.clamp_(-1, 1)"),
            *(f"{name}.relu_()", f"{name}[0] = {other}[0]", f"{name}[..., :1] = 3"),
            *(f"{name}.addcmul_({other}, {third}, value=0.5)", f"{name}.copy_({other}.sum())"),
            *(f"{name}[{name} > 0] = 2", f"{name}[{name} > 1] = {other}.sum()"),
            *(f"{name}.mul_(0.5).add_({other})", f"{name}.neg_()", f"{name}.fill_(2)"),
        )
        return self.draw.choice(chosen)

    # ---- names

    def _any(self) -> str:
        names = list(self.values)
        # What is new is used more often.
        return self.draw.choice(names + names[-3:])

    def _like(self, name: str) -> str:
        """A tensor that can meet another one, or a view of one."""
        shape = self.values[name].shape
        found = [n for n, t in self.values.items() if t.shape == shape]
        found += [n for n, t in self.values.items() if t.dim() and t.shape == shape[-1:]]
        return self.draw.choice(found or [name])

    def _new(self, letter: str, expression: str) -> None:
        new = f"{letter}{len(self.values)}"
        self._run(f"{new} = {expression}", [new])

    def _run(self, line: str, names: Sequence[str]) -> None:
        """Keep a statement that eager torch takes and that leaves small numbers and tensors."""
        before = {name: t.clone() for name, t in self.values.items()}
        scope = {**self.scope, **self.values}
        try:
            exec(line, scope)
        except (RuntimeError, IndexError, ValueError, TypeError):
            for name, value in before.items():
                if not _overlaps(self.values[name]):
                    self.values[name].copy_(value)
            return
        new = {name: scope[name] for name in names}
        everything = [*new.values(), *self.values.values()]
        sane = all(t.numel() <= 200 and not (t.abs() > 1e4).any() for t in everything)
        if sane and all(t.dim() <= 4 for t in new.values()):
            self.lines.append(line)
            self.values.update(new)
            return
        for name, value in before.items():
            if not _overlaps(self.values[name]):
                self.values[name].copy_(value)


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _region(draw: random.Random, tensor: torch.Tensor) -> str:
    """An index of one to all dimensions: ints, strided slices, lists and inserted axes."""
    entries = []
    for size in tensor.shape[: draw.randint(1, max(tensor.dim(), 1))]:
        place = draw.randrange(size) if size else 0
        found = (str(place), f"{place}:", "::2", ":", f"{place}::3", ":-1", f"[{place}, 0]", "[-1]")
        entries.append(draw.choice(found))
    if draw.random() < 0.2:
        entries.insert(draw.randint(0, len(entries)), draw.choice(("None", "...")))
    return ", ".join(entries) or "..."


def _views(draw: random.Random, tensor: torch.Tensor) -> list[str]:
    """Calls that give views of a tensor; `2=` before a call that gives two."""
    shape = tensor.shape
    found = ["[None]", ".unsqueeze(-1)", ".reshape(-1)", ".view(-1)", ".detach()"]
    if not shape:
        return found
    # Thunder's own of a number's raises.
    found += [".contiguous()"]
    dim = draw.randrange(len(shape))
    size = shape[dim]
    before = ":, " * dim
    low = draw.randint(0, max(size - 1, 0))
    high = draw.randint(min(low + 1, size), size)
    found += [f"[{before}{low}:{high}]", f"[{before}{low}:{high}]", f"[{before}{low}]"]
    found += [f"[{before}::2]", f".narrow({dim}, {low}, {high - low})", f".select({dim}, {low})"]
    found += [f"[..., {draw.randrange(shape[-1]) if shape[-1] else 0}]", f".squeeze({dim})"]
    found += [f"2=.chunk(2, {dim})", f"{size}=.unbind({dim})"] if 2 <= size <= 3 else []
    found += [f"2=.split({size // 2}, {dim})"] if size % 2 == 0 and size else []
    if len(shape) > 1:
        other = draw.randrange(len(shape))
        found += [f".transpose({dim}, {other})", ".diagonal()", ".flatten(0, 1)", ".mT"]
        found += [f".movedim({dim}, {other})", f".reshape({shape[0]}, -1)"]
        # Thunder does not differentiate an empty one.
        found += [".diagonal(1)"] * (shape[1] > 1)
    found += [".t()"] * (len(shape) == 2)
    if size % 2 == 0 and size:
        found += [f".unflatten({dim}, (2, {size // 2}))"]
        found += (
            [f".view({', '.join(map(str, (*shape[:-1], 2, -1)))})"] if shape[-1] % 2 == 0 else []
        )
    found += [f".expand(2, {', '.join(map(str, shape))})"] if len(shape) < 3 else []
    return found
