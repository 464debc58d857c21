"""Arguments that are no tensors: a program is compiled again for those that it was not made for."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit

MASK = torch.tensor([1.0, 2.0, 3.0])
NUMBERS = [1.0, 2.0]


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


@dataclass
class Batch:
    mask: Tensor | None


class Pair(NamedTuple):
    mask: Tensor | None
    scale: float = 2.0


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x * 5 if mask is None else x * mask


def nested(x: Tensor, given: Any) -> Tensor:
    return masked(x, given[0]["mask"])


def truth(x: Tensor, given: Any) -> Tensor:
    return x * 2 if given else x * 3


def of_object(x: Tensor, given: Any) -> Tensor:
    return masked(x, given.mask)


def by_mode(x: Tensor, mode: Mode) -> Tensor:
    return x * 2 if mode is Mode.FAST else x * 3


def by_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x * 2 if dtype == torch.float32 else x * 3


def applied(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(x)


def twice(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


def thrice(x: Tensor, factor: float = 3.0) -> Tensor:
    return x * factor


def kind(x: Tensor, given: Any) -> Tensor:
    return x * 2 if isinstance(given, list) else x * 3


PROGRAMS: list[tuple[Callable[[Tensor, Any], Tensor], Any, Any]] = [
    (masked, None, MASK),
    (masked, MASK, None),
    (nested, [{"mask": None}], [{"mask": MASK}]),
    (of_object, Batch(None), Batch(MASK)),
    (of_object, Pair(None), Pair(MASK)),
    (of_object, SimpleNamespace(mask=None), SimpleNamespace(mask=MASK)),
    (truth, OrderedDict(), OrderedDict(a=1)),
    (truth, {}, {"a": 1}),
    (truth, [], [1]),
    (nested, [OrderedDict(mask=None)], [OrderedDict(mask=MASK)]),
    (by_mode, Mode.FAST, Mode.EXACT),
    (by_dtype, torch.float32, torch.float64),
    (applied, torch.neg, torch.abs),
    (applied, twice, thrice),
    (kind, [MASK], (MASK,)),
    (lambda x, names: x * 2 if "a" in names else x * 3, {"a", "b"}, {"b"}),
    (lambda x, numbers: x * sum(numbers), range(3), range(5)),
    (lambda x, numbers: x * sum(numbers), [1, 2], [3, 4]),
    (lambda x, numbers: x * math.prod(numbers), [1, 2], [3, 4]),
    (lambda x, numbers: x * max(numbers, key=lambda n: -n), [1, 2], [3, 4]),
    (lambda x, numbers: x * 2 if numbers == [1, 2] else x * 3, [1, 2], [3, 4]),
    (lambda x, numbers: x * 2 if numbers < [2] else x * 3, [1, 2], [3, 4]),
    (lambda x, numbers: x * 2 if numbers == {"a": 1} else x * 3, {"a": 1}, {"a": 2}),
    (lambda x, numbers: x * sorted(numbers)[0], (2, 1), (4, 3)),
]


@pytest.mark.parametrize("case", range(len(PROGRAMS)))
def test_other_values_are_compiled_for(case: int) -> None:
    function, first, second = PROGRAMS[case]
    compiled, x = jit(function), torch.tensor([1.0, -2.0, 3.0])
    for given in (first, second, first, second):
        torch.testing.assert_close(compiled(x, given), function(x, given), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2


def test_values_by_keyword() -> None:
    def function(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return masked(x, mask)

    compiled, x = jit(function), torch.ones(3)
    for mask in (None, MASK, None):
        assert torch.equal(compiled(x, mask=mask), function(x, mask=mask))


def test_values_that_are_made_anew_are_the_same() -> None:
    compiled, x = jit(applied), torch.ones(3)
    for factor in (2.0, 2.0, 3.0):
        function = lambda x, factor=factor: x * factor  # noqa: E731
        assert torch.equal(compiled(x, function), function(x))
    assert thunder.cache_misses(compiled) == 2
    compiled = jit(of_object)
    for mask in (MASK, MASK + 1):
        assert torch.equal(compiled(x, Batch(mask)), mask)
    assert thunder.cache_misses(compiled) == 1


def test_numbers_of_a_list_that_the_program_names(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = jit(lambda x: x * max(NUMBERS)), torch.ones(3)
    for number in (3.0, 4.0):
        monkeypatch.setitem(globals(), "NUMBERS", [1.0, number])
        assert torch.equal(compiled(x), x * number)
