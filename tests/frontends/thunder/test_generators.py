"""Generators of a traced function: what is returned by them, and sent and thrown to them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import thunder
import torch
from thunder.core import interpreter
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


def test_a_generator_collected_in_a_later_trace_is_not_run_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end would be recorded in another program, and set context variables within a collection,
    which up to Python 3.11 may run inside of `ContextVar.set`.
    """
    seen: list[str] = []
    collecting: list[str] = []

    def steps(x: Tensor) -> Iterator[Tensor]:
        try:
            yield x * 2
        finally:
            torch.sin(x)

    def left_in_a_cycle(x: Tensor) -> Tensor:
        held: list[Any] = [steps(x)]
        held.append(held)
        return next(held[0])

    def collects(x: Tensor) -> Tensor:
        gc.collect()
        return x + 1

    def note(phase: str, info: dict[str, int]) -> None:
        collecting[:] = [phase] if phase == "start" else []

    def set_and_noted(context: Any) -> Any:
        seen.extend(collecting)
        return setting(context)

    setting = interpreter.set_interpreterruntimectx
    monkeypatch.setattr(interpreter, "set_interpreterruntimectx", set_and_noted)
    gc.callbacks.append(note)
    gc.disable()
    try:
        jit(left_in_a_cycle)(torch.ones(3))
        compiled = jit(collects)
        torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 2.0))
    finally:
        gc.enable()
        gc.callbacks.remove(note)
    assert not seen
    assert "sin" not in str(thunder.last_traces(compiled)[0])
