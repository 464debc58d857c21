"""Elements and global names are read in one step; what a function does and checks is as before."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thunder
import torch
from thunder.core import interpreter

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches.interpreter import subscripts

SCALE = 2.0
SHIFTS = {"a": 1.0, "b": [3.0, (4.0, 5.0)]}
WEIGHT = torch.arange(3.0)


def of_globals(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE + SHIFTS["a"] + SHIFTS["b"][1][-1] + WEIGHT + max(len(SHIFTS), abs(-1))


def of_arguments(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    first, *others = given["many"]
    return x * first + others[-1] * given["many"][1:][0] + given["few"][0]["deep"][1]


def of_missing(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    try:
        return x * given["nothing"]
    except KeyError:
        pass
    try:
        return x * given["many"][7]
    except IndexError:
        return x + given["many"][0]


def of_no_name(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * never_defined  # type: ignore[name-defined,no-any-return]
    except NameError:
        return x - 1


def of_a_class(x: torch.Tensor) -> torch.Tensor:
    class Doubled(dict[float, float]):
        def __getitem__(self, key: float) -> float:
            return 2 * key

    return x * Doubled()[3.0]


def of_a_shape(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], 1)[:, 0] * x.shape[-1]


def of_writes(x: torch.Tensor) -> torch.Tensor:
    made = {"a": x}
    made["b"] = made["a"] * 2
    seen = [made["b"], x]
    seen[1] = seen[0] + 1
    return seen[1] * made["b"]


def of_members_of_a_class(x: torch.Tensor) -> torch.Tensor:
    class Full(dict[str, float]):
        def __contains__(self, key: object) -> bool:
            return key != "a"

    return x * float("b" in Full()) + float("a" not in Full())


def of_parts(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    rows, (columns,) = x.reshape(1, 3).shape[0], x.shape
    (first, second, third), (deep,) = given["many"], [given["few"][0]["deep"][1]]
    a, b = [x * first, second]
    c, *others = given["many"]
    return a * rows + b * columns + third * deep + c * others[1]


def of_wrong_counts(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    try:
        first, second = given["many"]
    except ValueError:
        first, second = given
    return x * len(first) * len(second)


def arguments() -> dict[str, Any]:
    return {"many": [torch.full((3,), k) for k in (1.0, 2.0, 3.0)], "few": ({"deep": [0.0, 7.0]},)}


CASES: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...]]] = [
    (of_globals, ()),
    (of_arguments, (arguments(),)),
    (of_missing, (arguments(),)),
    (of_no_name, ()),
    (of_a_class, ()),
    (of_a_shape, ()),
    (of_writes, ()),
    (of_members_of_a_class, ()),
    (of_parts, (arguments(),)),
    (of_wrong_counts, (arguments(),)),
]


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        handlers = interpreter._default_opcode_handler_map
        patch.setitem(handlers, "BINARY_SUBSCR", subscripts._original_subscript)
        patch.setitem(handlers, "CONTAINS_OP", subscripts._original_membership)
        patch.setitem(handlers, "UNPACK_SEQUENCE", subscripts._original_elements)
        patch.setattr(interpreter, "globals_lookup", subscripts._original_global)
        yield patch


def traced(function: Callable[..., torch.Tensor], *given: Any) -> tuple[list[str], torch.Tensor]:
    """Lines of what checks the inputs and of what is computed, without times; and the result."""
    compiled = jit(function)
    found = compiled(*given)
    texts = (thunder.last_prologue_traces(compiled)[-1], thunder.last_traces(compiled)[0])
    lines = [line for text in texts for line in str(text).splitlines()]
    return [line for line in lines if not line.startswith("#")], found


@pytest.mark.parametrize(("function", "given"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_inputs_are_checked_and_computed_with_as_before(
    function: Callable[..., torch.Tensor],
    given: tuple[Any, ...],
    request: pytest.FixtureRequest,
) -> None:
    x = torch.arange(1.0, 4.0)
    lines, found = traced(function, x, *given)
    assert torch.equal(found, function(x, *given))
    request.getfixturevalue("unpatched")
    before, same = traced(function, x, *given)
    assert lines == before
    assert torch.equal(found, same)


def test_a_global_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = jit(of_globals), torch.ones(3)
    assert torch.equal(compiled(x), of_globals(x))
    monkeypatch.setattr("tests.frontends.thunder.test_subscripts.SCALE", 5.0)
    assert torch.equal(compiled(x), of_globals(x))


def test_other_functions_of_thunder_are_traced_by_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def original(names: object, name: object) -> object:
        asked.append(interpreter.unwrap(name))
        return kept(names, name)

    kept = subscripts._original_global
    monkeypatch.setattr(subscripts, "_original_global", original)
    thunder.jit(of_globals, executors=[])(torch.ones(3))
    assert "SCALE" in asked
    asked.clear()
    jit(of_globals)(torch.ones(3))
    assert asked == []


def has(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    return x * (2.0 if "a" in given else 3.0) * (5.0 if "b" not in given else 7.0)


class Holder:
    given: dict[str, Any]


HELD = Holder()
GIVEN: dict[str, Any] = {}


def of_an_argument(x: torch.Tensor, held: Holder, given: dict[str, Any]) -> torch.Tensor:
    return has(x, given)


def of_an_element(x: torch.Tensor, held: Holder, given: dict[str, Any]) -> torch.Tensor:
    return has(x, [given][0])


def of_an_attribute(x: torch.Tensor, held: Holder, given: dict[str, Any]) -> torch.Tensor:
    return has(x, held.given)


def of_a_global(x: torch.Tensor, held: Holder, given: dict[str, Any]) -> torch.Tensor:
    return has(x, GIVEN)


@pytest.mark.parametrize("function", [of_an_argument, of_an_element, of_an_attribute, of_a_global])
def test_keys_that_come_and_go_are_noticed(function: Callable[..., torch.Tensor]) -> None:
    compiled, x = jit(function), torch.ones(3)
    for keys in ("a", "ab", "b", "", "a"):
        HELD.given = dict.fromkeys(keys, 1.0)
        GIVEN.clear()
        GIVEN.update(HELD.given)
        given = x, HELD, dict(HELD.given)
        assert torch.equal(compiled(*given), function(*given)), keys


def test_to_look_for_a_key_reads_no_elements_of_elements() -> None:
    """Thunder read them all on the way to `__contains__`, and checked what it had read."""
    compiled, x, held = jit(of_an_attribute), torch.ones(3), Holder()
    for sizes in ([4], [5], [4, 4]):
        held.given = {"a": [torch.ones(size) for size in sizes]}
        assert torch.equal(compiled(x, held, {}), of_an_attribute(x, held, {}))
    assert thunder.cache_misses(compiled) == 1


class Reduction(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


class Table(type):
    """Of classes that have items."""

    def __getitem__(cls, scale: int) -> int:
        return scale + 1


class Scales(metaclass=Table):
    pass


def of_an_unknown_member(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * len(Reduction["MAX"].value)
    except KeyError:
        return x + 1


ITEMS_OF_CLASSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a member": lambda x: x.mean() if Reduction["MEAN"] is Reduction.MEAN else x,
    "a member by a computed name": lambda x: x * len(Reduction["su".upper() + "M"].value),
    "no member": of_an_unknown_member,
    "an item of a class": lambda x: x * Scales[2],
    "a generic class": lambda x: x * 2 if list[int] is not None else x,
}


@pytest.mark.parametrize("name", ITEMS_OF_CLASSES)
def test_items_of_classes(name: str) -> None:
    x = torch.arange(3.0)
    assert torch.equal(jit(ITEMS_OF_CLASSES[name])(x), ITEMS_OF_CLASSES[name](x))
