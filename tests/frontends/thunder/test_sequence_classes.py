"""Lists, tuples and dictionaries whose class defines `__len__`, `__getitem__`, `append`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import flat, jit


class Irrep(tuple):  # type: ignore[type-arg]
    """As e3nn's: two numbers, without a length."""

    def __new__(cls, degree: int, parity: int = 1) -> Irrep:
        return super().__new__(cls, (degree, parity))

    @property
    def dim(self) -> int:
        return 2 * int(self[0]) + 1

    def __len__(self) -> int:
        raise NotImplementedError


class Irreps(tuple):  # type: ignore[type-arg]
    """As e3nn's: pairs of a multiplicity and an Irrep; the length counts multiplicities."""

    def __len__(self) -> int:
        return sum(count for count, _ in tuple.__iter__(self))

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Irreps(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return Irreps(super().__add__(tuple(other)))

    def slices(self) -> list[slice]:
        found, start = [], 0
        for count, irrep in self:
            found.append(slice(start, start + count * irrep.dim))
            start += count * irrep.dim
        return found


def irreps() -> Irreps:
    return Irreps([(2, Irrep(0)), (1, Irrep(1))])


class Doubling(list):  # type: ignore[type-arg]
    """Doubles what is appended, and adds 1 to what is read."""

    def append(self, value: Any) -> None:
        super().append(value * 2)

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) + 1

    def __iter__(self) -> Iterator[Any]:
        for k in range(len(self)):
            yield self[k]


class Counting(list):  # type: ignore[type-arg]
    """Of its arguments; counts, and has a length of its own."""

    def __init__(self, *values: Any) -> None:
        super().__init__(values)
        self.count_of_values = len(values)

    def __len__(self) -> int:
        return 99

    def insert(self, index: Any, value: Any) -> None:
        super().insert(index, value * 3)
        self.count_of_values += 1

    def pop(self, index: Any = -1) -> Any:
        self.count_of_values -= 1
        return super().pop(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value * 5)

    def __contains__(self, value: Any) -> bool:
        return True


class Halving(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) / 2

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


class Pair(NamedTuple):
    first: Any
    second: Any = 2

    def total(self) -> Any:
        return self.first + self.second

    def __add__(self, other: Any) -> Any:
        return Pair(self.first + other.first, self.second + other.second)

    def __len__(self) -> int:
        return 7


def made_irreps(x: Tensor, _: Any) -> Any:
    given = irreps() + irreps()[:1]
    first, parity = given[0][1]
    return [x[part] * 2 for part in given.slices()], x * len(given), x * given[0][0], first, parity


def passed_irreps(x: Tensor, held: Irreps) -> Any:
    parts = [x[part] * 2 for part in held.slices()]
    return parts, x * len(held), x * len(held[1:]), held[-1][1].dim


def made_list(x: Tensor, _: Any) -> Any:
    held = Doubling()
    held.append(x)
    held.extend([x, x * 3])
    held += [x]
    return held[0], sum(held), len(held), list(held), held[-1], [*held]


def passed_list(x: Tensor, held: Doubling) -> Any:
    return x * held[0], x * sum(held), [y * x for y in held], x * max(held)


def changed_list(x: Tensor, _: Any) -> Any:
    held = Counting(x, x * 2)
    held.insert(0, x)
    held[1] = x
    copy = held.copy()
    held.reverse()
    held.sort(key=lambda _: 0)
    last = held.pop()
    held.remove(held[0])
    return (
        copy,
        last,
        held.count_of_values,
        len(held),
        5 in held,
        held[0],
        list(held),
        x * len(copy),
    )


def passed_dictionary(x: Tensor, held: Halving) -> Any:
    return x * held["a"], x * sum(value for _, value in held.items()), x * held.get("a")


def pairs(x: Tensor, _: Any) -> Any:
    pair = Pair(x)
    return pair.total(), pair + Pair(x, x), (pair + pair).total(), len(pair), Pair(x, x)


def passed_pair(x: Tensor, held: Pair) -> Any:
    first, second = held
    return held.total() * x, (held + held).total(), first * second, held[-1] * x


PROGRAMS: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (made_irreps, (None,)),
    (passed_irreps, (irreps(), Irreps([(3, Irrep(0)), (2, Irrep(1))]), irreps()[:1])),
    (made_list, (None,)),
    (passed_list, (Doubling([1.0, 2.0]), Doubling([1.0, 2.0, 4.0]), Doubling([3.0]))),
    (changed_list, (None,)),
    (passed_dictionary, (Halving(a=2.0), Halving(a=2.0, b=3.0), Halving(b=1.0, a=2.0))),
    (pairs, (None,)),
    (passed_pair, (Pair(2.0, 3.0), Pair(torch.ones(9)), Pair(1, torch.ones(9)))),
)


@pytest.mark.parametrize(("program", "given"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_methods_of_the_class_and_of_python(
    program: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    """These raised, or called methods of the class where Python calls its own: `Halving` halved
    twice. The arguments are of several lengths, in two rounds.
    """
    x = torch.linspace(-1, 2, 9)
    compiled = jit(program)
    for held in given * 2:
        ours, eager = compiled(x, held), program(x, held)
        torch.testing.assert_close(flat(ours), flat(eager))
        numbers = [
            [y for y in found if isinstance(y, (int, float, bool))] for found in (ours, eager)
        ]
        assert numbers[0] == numbers[1]
