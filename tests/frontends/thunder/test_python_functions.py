"""Functions and methods of Python that are written in C, on tensors."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor

import thunder_fuser
from tests.frontends.thunder.programs import check, jit
from tests.support.shares import each_value


def _updated(xs: list[Tensor]) -> list[Tensor]:
    found = [xs[0] * 2]
    found.insert(0, xs[1] * 3)
    found.insert(-5, xs[1] * 5)
    found *= 2
    found.remove(found[0])
    found.sort(key=lambda t: t.ndim, reverse=True)
    copy = list(found)
    found.clear()
    return copy


def _queue(xs: list[Tensor]) -> Tensor:
    queue = deque([xs[0]], maxlen=2)
    for k in range(3):
        queue.append(xs[1] * k)
    return queue.popleft() * 3 + queue[0] + len(queue) + sum(queue)


LAYERS = torch.nn.ModuleList([torch.nn.Tanh(), torch.nn.Softplus()])


class _Pair:
    """A sequence by position."""

    def __init__(self, xs: list[Tensor]) -> None:
        self.xs = xs

    def __len__(self) -> int:
        return 2

    def __getitem__(self, k: int) -> Tensor:
        if not 0 <= k < 2:
            raise IndexError(k)
        return self.xs[k]


def _steps(xs: list[Tensor]) -> Generator[Tensor, float | None, Tensor]:
    for x in xs:
        got = yield x * 2
        if got is not None:
            yield x * got
    return xs[0] + 1


def _delegated(xs: list[Tensor]) -> Iterator[Tensor]:
    last = yield from _steps(xs)
    yield last * 3


def _sent(xs: list[Tensor]) -> list[Tensor]:
    steps = _steps(xs[:1])
    found = [next(steps), steps.send(5.0)]
    try:
        next(steps)
    except StopIteration as stop:
        found.append(stop.value)
    return found


def _stopped(xs: list[Tensor]) -> list[Tensor]:
    def failing() -> Iterator[Tensor]:
        yield xs[0]
        raise KeyError("after the first")

    found = []
    try:
        for x in failing():
            found.append(x * 2)
    except KeyError:
        found.append(xs[1] * 3)
    return found


PROGRAMS: list[Callable[[list[Tensor]], Any]] = [
    sum,
    lambda xs: functools.partial(torch.mul, xs[0])(2),
    lambda xs: functools.partial(torch.clamp, min=xs[0].mean())(xs[0] * 2),
    lambda xs: functools.partial(functools.partial(torch.addcmul, xs[0]), xs[0])(xs[0], value=3),
    lambda xs: sum(xs[1:], xs[0]),
    lambda xs: sum(xs[1:], start=xs[0] * 2),
    lambda xs: sum({"a": xs[0], "b": xs[1]}.values()),
    lambda xs: sum(x.sin() for x in xs),
    lambda xs: torch.stack(list(itertools.chain(xs, [xs[0] * 2]))),
    lambda xs: torch.stack([*itertools.chain.from_iterable([xs, xs])]),
    lambda xs: [*itertools.accumulate(xs), *itertools.accumulate(xs, torch.mul, initial=xs[0])],
    lambda xs: [a * b for a, b in itertools.product(xs, xs)],
    lambda xs: [a * b for a, b in itertools.product(xs, repeat=2)],
    lambda xs: [b - a for a, b in itertools.pairwise(xs)],
    lambda xs: [a * b for a, b in itertools.combinations(xs, 2)],
    lambda xs: [a - b for a, b in itertools.permutations(xs)],
    lambda xs: [a - 2 * b for a, b in itertools.combinations_with_replacement(xs, 2)],
    lambda xs: [x * 2 for x in itertools.islice(xs, 1)],
    lambda xs: [x * 2 for x in itertools.islice(itertools.cycle(xs), 1, 6, 2)],
    lambda xs: list(itertools.starmap(torch.add, [(xs[0], xs[1])])),
    lambda xs: [a if b is None else a + b for a, b in itertools.zip_longest(xs, xs[1:])],
    lambda xs: torch.cat(list(itertools.repeat(xs[0], 2))),
    lambda xs: [x * 2 for x in itertools.takewhile(lambda x: x.ndim == 2, xs)],
    lambda xs: [x * 2 for x in itertools.dropwhile(lambda x: x.ndim == 2, xs)],
    lambda xs: operator.itemgetter("a", "b")({"a": xs[0], "b": xs[1]}),
    lambda xs: operator.itemgetter(1)(xs) * 2,
    lambda xs: operator.attrgetter("T.mT")(xs[0]) * 2,
    lambda xs: operator.methodcaller("sum", 0, keepdim=True)(xs[0]) * 2,
    lambda xs: functools.reduce(operator.mul, xs),
    lambda xs: xs[0] * xs[0].shape.count(3) + (1, 2, 1).count(1),
    lambda xs: [a * b for a, b in zip(xs, reversed(xs), strict=True)],
    lambda xs: [x * 2 for x in reversed(_Pair(xs))],
    lambda xs: [layer(xs[0]) for layer in reversed(LAYERS)],
    lambda xs: [k * xs[0] for k in reversed(range(3))] + [*reversed({1: xs[0], 2: xs[1]}.values())],
    lambda xs: [*_delegated(xs)],
    _sent,
    _stopped,
    _updated,
    _queue,
]


@each_value(case=range(len(PROGRAMS)), fuel=[0, None])
def test_functions_of_python(case: int, fuel: int | None) -> None:
    """The tensors are in a list that the program is given. Without fuel: what Python does, does not
    depend on what is fused.
    """
    torch.manual_seed(0)

    def program(x: Tensor, y: Tensor) -> Any:
        return PROGRAMS[case]([x, y]), x * y

    x, y = torch.randn(2, 4, 3, dtype=torch.float64)
    with thunder_fuser.options(fuel=fuel):
        check(program, x.clone().requires_grad_(), y.clone().requires_grad_())
        compiled = jit(lambda xs: PROGRAMS[case](xs))
        for given in ([x, y], [y, x]):
            torch.testing.assert_close(compiled(given), PROGRAMS[case](given))
