"""The smallest program that still shows a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from tests.fuzz.generate import without_dead_lines
from tests.fuzz.judge import Verdict, judge
from tests.fuzz.program import Argument, Program

_ROUNDS = 12


def shrunk(
    verdict: Verdict, judge: Callable[[Sequence[Program]], list[Verdict]] = judge
) -> Verdict:
    """Cut the program while one of the same kinds of differences is left."""
    kinds = set(verdict.signature)
    for _ in range(_ROUNDS):
        tried = list(_smaller(verdict.program))
        failing = [v for v in judge(tried) if v.outcome == "wrong" and kinds & set(v.signature)]
        if not failing:
            break
        verdict = min(failing, key=lambda v: _size(v.program))
    return verdict


def _size(program: Program) -> tuple[int, ...]:
    tensors = [t for a in program.arguments for t in a.layouts]
    return (
        len(program.lines),
        len(program.results) + len(program.arguments),
        sum(a.requires_grad for a in program.arguments),
        sum(t.untyped_storage().nbytes() + 50 * (not t.is_contiguous()) for t in tensors),
        sum(len(a.literal(0)) for a in program.arguments),
    )


def _smaller(program: Program) -> Iterator[Program]:
    """Half of the lines, each line, each result, plainer arguments."""
    for candidate in _cut(program):
        if candidate is not None and _size(candidate) < _size(program):
            yield candidate


def _cut(program: Program) -> Iterator[Program | None]:
    for k in range(len(program.lines)):
        yield program.without(k, None)
        for read in program.lines[k].reads[:3]:
            yield program.without(k, read)
    for result in program.results:
        if len(program.results) > 1:
            rest = tuple(r for r in program.results if r != result)
            yield without_dead_lines(replace(program, results=rest))
        one = replace(program, results=(result,))
        yield without_dead_lines(one)
    for a in program.arguments:
        for change in (_dense, _without_gradient, _one_layout, _counted):
            yield program.with_arguments(lambda b, a=a, f=change: f(b) if b is a else b)


def _dense(a: Argument) -> Argument:
    return replace(a, layouts=tuple(t.detach().clone().contiguous() for t in a.layouts))


def _without_gradient(a: Argument) -> Argument:
    return replace(a, requires_grad=False)


def _one_layout(a: Argument) -> Argument:
    return replace(a, layouts=a.layouts[:1])


def _counted(a: Argument) -> Argument:
    """Numbers that can be read."""

    def counted(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        memory = torch.arange(t.untyped_storage().nbytes() // t.itemsize) % 7 - 2
        return memory.to(t.dtype).as_strided(t.size(), t.stride(), t.storage_offset())

    return replace(a, layouts=tuple(map(counted, a.layouts)))
