"""Lists and dictionaries that functions of C change: they are those of the caller afterwards."""

from __future__ import annotations

import bisect
import heapq
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches.interpreter.python_versions import python_versions

CHANGES: dict[str, Callable[[Any], Any]] = {
    "heappush": lambda held: heapq.heappush(held, 2.5),
    "heappop": lambda held: heapq.heappop(held),
    "heapify": lambda held: heapq.heapify(held),
    "heapreplace": lambda held: heapq.heapreplace(held, 4.0),
    "heappushpop": lambda held: heapq.heappushpop(held, 1.5),
    "nlargest": lambda held: heapq.nlargest(2, held),
    "nsmallest": lambda held: heapq.nsmallest(2, held, key=lambda n: -n),
    "insort": lambda held: bisect.insort(held, 1.5),
    "insort_left": lambda held: bisect.insort_left(held, 2.0),
    "setitem": lambda held: operator.setitem(held, 0, 9.0),
    "delitem": lambda held: operator.delitem(held, -1),
    "iadd": lambda held: operator.iadd(held, [1.0])[-1],
}


def _called(compiler: Callable[[Any], Any], change: Callable[[Any], Any], held: Any) -> list[Any]:
    def program(x: torch.Tensor) -> Any:
        made = change(held)
        return x * sum(held), made

    compiled, found = compiler(program), []
    for k in range(4):
        if k == 2:
            held[1] = 6.0
        found.append([compiled(torch.ones(2)), [*held]])
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_functions_of_c_change_lists(name: str) -> None:
    """Thunder's interpreter failed at the next use of the list."""
    runs = [_called(f, CHANGES[name], [3.0, 1.0, 2.0, 5.0, 4.0]) for f in (jit, lambda f: f)]
    torch.testing.assert_close(*runs)


def test_a_counter_counts_in_each_call() -> None:
    """What `Counter.update` counts was lost."""
    ours, theirs = Counter("a"), Counter("a")

    def program(x: torch.Tensor, counts: Counter[Any], words: str) -> Any:
        counts.update(words)
        return x * counts["a"], counts.most_common(1)

    compiled, x = jit(program), torch.ones(2)
    for words in ("ab", "ab", "bbb", "ba"):
        assert str(compiled(x, ours, words)) == str(program(x, theirs, words))
        assert ours == theirs


def test_each_function_of_c_has_a_python_version() -> None:
    for of_c, in_python in python_versions().items():
        assert not hasattr(of_c, "__code__")
        assert in_python.__code__.co_argcount >= 1
