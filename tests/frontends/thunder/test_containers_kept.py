"""Containers of every kind that a program looks into, fills and empties from call to call."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.frontends.thunder.programs import jit

X = torch.tensor([3.0, 5.0])


class Dictionary(dict[str, Tensor]):
    def __setitem__(self, name: str, value: Tensor) -> None:
        dict.__setitem__(self, name, value)


class List(list[Tensor]):
    pass


def absent(x: Tensor, kept: Any) -> Any:
    if "scale" not in kept:
        kept["scale"] = x * 2
    return x * kept["scale"]


def got(x: Tensor, kept: Any) -> Any:
    scale = kept.get("scale")
    if scale is None:
        scale = kept["scale"] = x * 2
    return x * scale


def set_once(x: Tensor, kept: Any) -> Any:
    return x * kept.setdefault("scale", x * 2)


def caught(x: Tensor, kept: Any) -> Any:
    try:
        scale = kept["scale"]
    except KeyError:
        scale = kept["scale"] = x * 2
    return x * scale


def empty(x: Tensor, kept: Any) -> Any:
    if not kept:
        kept["scale"] = x * 2
    return x * kept["scale"]


def by_shape(x: Tensor, kept: Any) -> Any:
    if (x.shape, x.dtype) not in kept:
        kept[x.shape, x.dtype] = x * 2
    return x * kept[x.shape, x.dtype]


def summed(x: Tensor, kept: Any) -> Any:
    kept["sum"] = kept.get("sum", 0) + x
    return kept["sum"] * 2


def popped(x: Tensor, kept: Any) -> Any:
    scale = kept.pop("scale", None)
    kept["other"] = x
    return x if scale is None else x * scale


def last_item(x: Tensor, kept: Any) -> Any:
    kept["new"] = x
    name, value = kept.popitem()
    return value * len(name), len(kept)


def two_at_most(x: Tensor, kept: Any) -> Any:
    if len(kept) < 2:
        kept.append(x * 2)
    return x * sum(kept)


def of_default(x: Tensor, kept: Any) -> Any:
    if len(kept["scales"]) < 2:
        kept["scales"].append(x * 2)
    return x * sum(kept["scales"])


def counted(x: Tensor, kept: Any) -> Any:
    kept["calls"] += 1
    return x * kept["calls"] + kept["absent"]


def least_recent(x: Tensor, kept: Any) -> Any:
    kept.move_to_end("a")
    kept["c"] = x
    if len(kept) > 2:
        kept.popitem(last=False)
    return [*kept], sum(kept.values())


def history(x: Tensor, kept: Any) -> Any:
    kept.append(x * 2)
    return x * sum(kept)


def ends(x: Tensor, kept: Any) -> Any:
    kept.append(x * 3)
    return kept[0] * x + kept[-1] * len(kept)


def queue(x: Tensor, kept: Any) -> Any:
    kept.appendleft(x * 3)
    first = kept.pop()
    return [first * y for y in kept]


def rotated(x: Tensor, kept: Any) -> Any:
    kept.rotate(1)
    kept[0] = kept[0] * 2
    return [*kept.copy()]


def pairs(x: Tensor, kept: Any) -> Any:
    kept.append((x, x * 2))
    return sum(a * b for a, b in kept)


def numbers(x: Tensor, kept: Any) -> Any:
    kept.extend([x.shape[0], 5])
    kept.popleft()
    return x * sum(kept), 5 in kept


def seen(x: Tensor, kept: Any) -> Any:
    if "seen" in kept:
        return x * 3
    kept.add("seen")
    return x * 2


def factors(x: Tensor, kept: Any) -> Any:
    kept.discard(1)
    kept |= {5, 7}
    for factor in sorted(kept):
        x = x * factor
    return x


CASES: list[tuple[Callable[[Tensor, Any], Any], Callable[[], Any]]] = [
    *((program, dict) for program in (absent, got, set_once, caught, empty, by_shape, summed)),
    *((program, OrderedDict) for program in (absent, got, set_once, summed)),
    *((absent, kind) for kind in (Counter, Dictionary, lambda: defaultdict(list))),
    *((popped, lambda kind=kind: kind(scale=X)) for kind in (dict, OrderedDict)),
    *((last_item, lambda kind=kind: kind(a=X, b=X * 2)) for kind in (dict, OrderedDict)),
    *((two_at_most, kind) for kind in (list, List, deque)),
    (of_default, lambda: defaultdict(list)),
    (counted, Counter),
    (least_recent, lambda: OrderedDict(a=X, b=X * 2)),
    *((program, lambda: deque([X, X * 2], maxlen=2)) for program in (history, ends)),
    *((program, lambda: deque([X, X * 2, X * 3])) for program in (queue, rotated)),
    (pairs, lambda: deque(maxlen=2)),
    (numbers, lambda: deque([1, 2])),
    (seen, set),
    (factors, lambda: {1, 2}),
]


def _parts(kept: Any) -> list[Any]:
    if isinstance(kept, dict):
        return [[str(name) for name in kept], tree_leaves([*kept.values()])]
    return sorted(kept) if isinstance(kept, set) else tree_leaves([*kept])


@pytest.mark.parametrize(("program", "make"), CASES)
def test_containers_kept_from_call_to_call(
    program: Callable[[Tensor, Any], Any], make: Callable[[], Any]
) -> None:
    """Dictionaries were not looked into again if the program had changed them, and of the other
    kinds what the trace made was left in them.
    """
    runs = []
    for run in (jit(program), program):
        kept = make()
        runs.append([[run(X + k, kept), _parts(kept)] for k in range(4)])
    _assert_same(*runs)


def _assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Tensor):
        torch.testing.assert_close(ours, theirs)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            _assert_same(*pair)
    else:
        assert ours == theirs


def test_a_set_that_does_not_change_is_compiled_for_once() -> None:

    compiled, kept = jit(seen), {"seen"}
    for k in range(3):
        torch.testing.assert_close(compiled(X + k, kept), (X + k) * 3)
    assert thunder.cache_misses(compiled) == 1


READS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    **{
        name: (lambda: {1.0, 5.0}, lambda kept, given, name=name: getattr(kept, name)(given))
        for name in (
            *("update", "intersection_update", "difference_update"),
            "symmetric_difference_update",
        )
    },
    "extend": (deque, lambda kept, given: kept.extend(given)),
    "extendleft": (deque, lambda kept, given: kept.extendleft(given)),
    "deque": (lambda: [0], lambda kept, given: kept.append(len(deque(given, maxlen=9)))),
    "copy": (lambda: [0], lambda kept, given: kept.extend(deque(given, 2).copy())),
    "keys": (Counter, lambda kept, given: kept.update(given)),
    "elements": (Counter, lambda kept, given: kept.update([*Counter(given).elements()])),
}


@pytest.mark.parametrize("name", READS)
def test_methods_read_what_they_are_given(name: str) -> None:
    """A list that sets and deques read was not looked into again; keys were strings."""
    make, change = READS[name]

    def program(x: Tensor, kept: Any, given: list[float]) -> Tensor:
        change(kept, given)
        return x * len(kept)

    compiled, ours, theirs, given = jit(program), make(), make(), [1.0, 2.0]
    for new in (3.0, 7.0, 2.0):
        torch.testing.assert_close(compiled(X, ours, given), program(X, theirs, given))
        assert ours == theirs
        given[0] = new
        given.append(new + 1)


def moved(x: Tensor, kept: OrderedDict[str, float]) -> Any:
    kept["c"] = 0.5
    return x * kept["a"], [*kept], [*kept.items()]


def test_the_order_of_an_ordered_dictionary_is_guarded() -> None:
    """That of a plain dictionary was, which `move_to_end` does not change."""
    compiled, ours, theirs = jit(moved), OrderedDict(a=2.0, b=3.0), OrderedDict(a=2.0, b=3.0)
    for key in "abca":
        assert str(compiled(X, ours)) == str(moved(X, theirs))
        assert list(ours.items()) == list(theirs.items())
        ours.move_to_end(key)
        theirs.move_to_end(key)


def test_an_item_that_the_caller_removes_from_a_defaultdict_stays_away() -> None:
    """It was looked for by a method that makes it."""

    def program(x: Tensor, kept: defaultdict[str, list[float]]) -> Tensor:
        return x * len(kept["b"])

    compiled, kept = jit(program), defaultdict(list, a=[1.0])
    compiled(X, kept)
    del kept["a"]
    compiled(X, kept)
    assert kept == {"b": []}


def test_an_empty_deque_raises_as_in_python() -> None:
    def pop(x: Tensor, kept: deque[Tensor]) -> Tensor:
        try:
            return x * kept.pop()
        except IndexError:
            return x * 5

    torch.testing.assert_close(jit(pop)(X, deque()), X * 5)
