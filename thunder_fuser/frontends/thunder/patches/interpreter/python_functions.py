"""Functions and methods that Python implements in C, written in Python for Thunder to interpret.

Thunder calls a C function without looking inside. `sum(tensors)` read tensors that had no proxies
yet, `map(torch.sigmoid, xs)` called torch's function with proxies that it does not accept, and the
iterators of `itertools` returned tensors whose origin Thunder did not know.
"""

from __future__ import annotations

import collections
import itertools
import operator
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter

from thunder_fuser.frontends.thunder.patches.changes.container_kinds import (
    METHODS_THAT_CHANGE,
    METHODS_THAT_READ,
)
from thunder_fuser.frontends.thunder.patches.interpreter.python_versions import python_versions
from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_KEEPING = frozenset(
    {*(value for value in vars(deque).values() if callable(value)), partial.__new__}
).difference(METHODS_THAT_CHANGE, METHODS_THAT_READ)
"""Methods that keep the tensors which they are given."""

# ruff: noqa: B905, C416, UP028  (interpreted: builtin functions would not be)


def _map(function: Function, *values: Iterable[Any]) -> Iterator[Any]:
    return (function(*items) for items in zip(*values))


def _filter(function: Function | None, values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if (value if function is None else function(value)))


def _sum(values: Iterable[Any], /, start: Any = 0) -> Any:
    for value in values:
        start = start + value
    return start


def _reversed(values: Any) -> Iterator[Any]:
    if hasattr(values, "__reversed__"):
        found: Iterator[Any] = values.__reversed__()
        return found
    if hasattr(values, "__getitem__"):  # By position, as of any sequence, such as `nn.ModuleList`.
        return (values[k] for k in range(len(values) - 1, -1, -1))
    return iter([value for value in values][::-1])


def _chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for values in iterables:
        for value in values:
            yield value


def _chain_of(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for values in iterables:
        for value in values:
            yield value


def _accumulate(
    values: Iterable[Any], func: Function | None = None, *, initial: Any = None
) -> Iterator[Any]:
    total, is_first = initial, initial is None
    if not is_first:
        yield total
    for value in values:
        if is_first:
            total = value
        else:
            total = total + value if func is None else func(total, value)
        is_first = False
        yield total


def _chosen(places: Function) -> Function:
    """Make an iterator over choices of elements, of which `places` gives the positions."""
    at = interpreter.make_opaque(lambda *sizes: [*places(*map(range, sizes[:1]), *sizes[1:])])

    def function(iterable: Iterable[Any], r: int | None = None) -> Iterator[Any]:
        pool = [value for value in iterable]
        for chosen in at(len(pool), len(pool) if r is None else r):
            yield tuple([pool[k] for k in chosen])

    return function


_positions = interpreter.make_opaque(lambda sizes: [*itertools.product(*map(range, sizes))])


def _product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[Any]:
    pools = [[value for value in values] for values in iterables] * repeat
    for chosen in _positions([len(pool) for pool in pools]):
        yield tuple([pool[k] for pool, k in zip(pools, chosen)])


def _pairwise(iterable: Iterable[Any]) -> Iterator[Any]:
    pool = [value for value in iterable]
    for k in range(len(pool) - 1):
        yield pool[k], pool[k + 1]


def _islice(iterable: Iterable[Any], *bounds: Any) -> Iterator[Any]:
    bound = slice(*bounds)
    start, step = bound.start or 0, bound.step or 1
    for k, value in enumerate(iterable):
        if bound.stop is not None and k >= bound.stop:
            return
        if k >= start and (k - start) % step == 0:
            yield value


def _starmap(function: Function, values: Iterable[Iterable[Any]]) -> Iterator[Any]:
    return (function(*items) for items in values)


def _takewhile(predicate: Function, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if not predicate(value):
            return
        yield value


def _dropwhile(predicate: Function, values: Iterable[Any]) -> Iterator[Any]:
    is_dropping = True
    for value in values:
        is_dropping = is_dropping and predicate(value)
        if not is_dropping:
            yield value


def _zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[Any]:
    pools = [[value for value in values] for values in iterables]
    for k in range(max([len(pool) for pool in pools], default=0)):
        yield tuple([pool[k] if k < len(pool) else fillvalue for pool in pools])


def _repeat(object: Any, times: int | None = None) -> Iterator[Any]:
    times = None if times is None else operator.index(times)
    while times is None or times > 0:
        yield object
        times = None if times is None else times - 1


def _cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    pool = [value for value in iterable]
    while pool:
        for value in pool:
            yield value


def _itemgetter(*keys: Any) -> Function:
    if len(keys) == 1:
        return lambda held: held[keys[0]]
    return lambda held: tuple([held[key] for key in keys])


def _attribute(held: Any, path: str) -> Any:
    for name in path.split("."):
        held = getattr(held, name)
    return held


def _attrgetter(*paths: str) -> Function:
    if len(paths) == 1:
        return lambda held: _attribute(held, paths[0])
    return lambda held: tuple([_attribute(held, path) for path in paths])


def _methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Function:
    return lambda held: getattr(held, name)(*args, **kwargs)


def _vars(held: Any) -> dict[str, Any]:
    found: dict[str, Any] = held.__dict__
    return found


def _from_keys(keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
    return {key: value for key in keys}  # noqa: C420  # which would call this again


def _clear_items(held: dict[Any, Any]) -> None:
    for key in [*dict.keys(held)]:
        dict.__delitem__(held, key)


def _pop_item(held: dict[Any, Any]) -> tuple[Any, Any]:
    if not held:
        raise KeyError("popitem(): dictionary is empty")
    key = [*held][-1]
    return key, held.pop(key)


def _pop_item_at(held: OrderedDict[Any, Any], last: bool = True) -> tuple[Any, Any]:
    if not held:
        raise KeyError("dictionary is empty")
    key = [*OrderedDict.keys(held)][-1 if last else 0]
    return key, _taken(held, key)


def _taken(held: OrderedDict[Any, Any], key: Any) -> Any:
    value = dict.__getitem__(held, key)
    OrderedDict.__delitem__(held, key)
    return value


def _missing(held: defaultdict[Any, Any], key: Any) -> Any:
    if held.default_factory is None:
        raise KeyError(key)
    held[key] = held.default_factory()
    return held[key]


def _move_to_end(held: OrderedDict[Any, Any], key: Any, last: bool = True) -> None:
    others = [] if last else [name for name in OrderedDict.keys(held) if name != key]
    for name in [key, *others]:
        value = _taken(held, name)
        OrderedDict.__setitem__(held, name, value)


def _clear_in_order(held: OrderedDict[Any, Any]) -> None:
    for key in [*OrderedDict.keys(held)]:
        OrderedDict.__delitem__(held, key)


def _count_elements(counts: Any, elements: Iterable[Any]) -> None:
    for element in elements:
        counts[element] = counts.get(element, 0) + 1


def _copied(held: deque[Any]) -> deque[Any]:
    return type(held)(held, held.maxlen)


def _as_strided(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    return input.as_strided(size, stride, storage_offset)


def _substituted(pattern: Any, repl: Any, string: Any, count: int = 0) -> Any:
    return _substituted_and_counted(pattern, repl, string, count)[0]


def _substituted_and_counted(
    pattern: Any, repl: Any, string: Any, count: int = 0
) -> tuple[Any, int]:
    parts, end, number = [], 0, 0
    for match in pattern.finditer(string):
        if count and number == count:
            break
        replaced = repl(match) if callable(repl) else match.expand(repl)
        parts += [string[end : match.start()], replaced]
        end = match.end()
        number += 1
    return string[:0].join([*parts, string[end:]]), number


_INTERPRETED: Mapping[Any, Function] = {
    map: _map,
    filter: _filter,
    sum: _sum,
    reversed: _reversed,
    itertools.chain: _chain,
    itertools.chain.from_iterable: _chain_of,
    itertools.accumulate: _accumulate,
    itertools.product: _product,
    itertools.pairwise: _pairwise,
    itertools.islice: _islice,
    itertools.starmap: _starmap,
    itertools.takewhile: _takewhile,
    itertools.dropwhile: _dropwhile,
    itertools.zip_longest: _zip_longest,
    itertools.repeat: _repeat,
    itertools.cycle: _cycle,
    **{
        choose: _chosen(choose)
        for choose in (
            itertools.combinations,
            itertools.combinations_with_replacement,
            itertools.permutations,
        )
    },
    vars: _vars,
    re.Pattern.sub: _substituted,
    re.Pattern.subn: _substituted_and_counted,
    torch.as_strided: _as_strided,  # Thunder knows the method
    operator.itemgetter: _itemgetter,
    operator.attrgetter: _attrgetter,
    operator.methodcaller: _methodcaller,
    dict.fromkeys: _from_keys,
    dict.clear: _clear_items,
    dict.popitem: _pop_item,
    OrderedDict.popitem: _pop_item_at,
    defaultdict.__missing__: _missing,
    OrderedDict.clear: _clear_in_order,
    OrderedDict.move_to_end: _move_to_end,
    collections._count_elements: _count_elements,  # type: ignore[attr-defined]
    **dict.fromkeys((deque.copy, deque.__copy__), _copied),
    **python_versions(),
}


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if fn in _INTERPRETED:
        return partial(interpreter._interpret_call, _INTERPRETED[fn])
    return None  # Thunder would take it for an operation on the tensors that it keeps


def _compile(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return what compiles a pattern as Python does: its cache is not the program's."""
    return interpreter.interpreter_needs_wrap(interpreter.make_opaque(lambda *given: fn(*given)))


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_compile, of=(re._compile,))  # type: ignore[attr-defined]
    ask_first(_lookaside, of=(*_INTERPRETED, *_KEEPING))
