"""Generators of a traced function: what is returned by them, and sent and thrown to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


def running_sum() -> Generator[Tensor, Tensor, None]:
    total = yield torch.zeros(3)
    while True:
        total = total + (yield total)


def sent(x: Tensor) -> list[Tensor]:
    generator = running_sum()
    return [next(generator), *(generator.send(x * k) for k in range(1, 4))]


def sent_numbers(x: Tensor) -> Tensor:
    def scales() -> Generator[int, int | None, None]:
        scale = 1
        while True:
            given = yield scale
            scale = scale * 2 if given is None else given

    generator = scales()
    return x * next(generator) + x * next(generator) ** 2 * generator.send(5) - next(generator)


def returned(x: Tensor) -> list[Tensor]:
    def inner(x: Tensor) -> Generator[Tensor, None, Tensor]:
        yield x + 1
        return x * 5

    def outer() -> Iterator[Tensor]:
        last = yield from inner(x)
        yield last - 1

    return list(outer())


def returned_to_next(x: Tensor) -> Any:
    def inner() -> Generator[Tensor, None, int]:
        yield x
        return 5

    generator = inner()
    first = next(generator)
    try:
        next(generator)
    except StopIteration as stop:
        return first * stop.value
    return first


def thrown(x: Tensor) -> Any:
    def inner() -> Iterator[Tensor]:
        try:
            yield x
        except ValueError:
            yield x * 7

    generator: Any = inner()
    return next(generator) + generator.throw(ValueError("stop"))


@contextlib.contextmanager
def ignoring(kind: type[Exception], seen: list[Any]) -> Iterator[None]:
    try:
        yield
    except kind:
        seen.append(2)
    finally:
        seen.append(3)


def in_context_managers(x: Tensor) -> Tensor:
    seen: list[int] = []
    with ignoring(ValueError, seen):
        raise ValueError
    with contextlib.suppress(KeyError), ignoring(ValueError, seen):
        raise KeyError
    with ignoring(ValueError, seen):
        x = x * 2
    return x * len(seen) + sum(seen)


def replaced_by_another(x: Tensor) -> Tensor:
    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise KeyError from error

    try:
        with manager():
            raise ValueError
    except KeyError:
        return x * 3
    return x


def closed(x: Tensor) -> Tensor:
    seen: list[Tensor] = []

    def inner() -> Iterator[Tensor]:
        try:
            yield x
        finally:
            seen.append(x * 2)

    generator: Any = inner()
    first = next(generator)
    generator.close()
    return first + seen[0]


def not_finished(x: Tensor) -> Tensor:
    def inner() -> Iterator[Tensor]:
        try:
            yield x * 2
        finally:
            torch.sin(x)

    return next(inner())


PROGRAMS = (
    *(sent, sent_numbers, returned, returned_to_next, thrown, in_context_managers),
    *(replaced_by_another, closed, not_finished),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_generators_are_pythons(program: Callable[[Tensor], Any]) -> None:
    compiled = jit(program)
    for k in range(2):
        x = torch.arange(3.0).add(k).requires_grad_()
        outcomes = []
        for call in (compiled, program):
            found = call(x)
            total = sum(y.sum() for y in (found if isinstance(found, list) else [found]))
            outcomes.append([found, *torch.autograd.grad(total, x)])
        torch.testing.assert_close(*outcomes)
