"""What Thunder's interpreter made anew for each frame, and for each question about arguments, is
made once, and is the same.
"""

from __future__ import annotations

import dis
import inspect
import threading
import traceback
from dataclasses import dataclass
from types import CodeType
from typing import Any

import pytest
import torch
from thunder.core import codeutils, interpreter, pytree, symbol

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches.interpreter import frames, trees


def code_at(first: int) -> CodeType:
    made = compile("\n" * first + "def f(x):\n    y = x\n    return y\n", "made.py", "exec")
    return next(c for c in made.co_consts if isinstance(c, CodeType))


def test_a_function_is_disassembled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def seen(code: CodeType) -> Any:
        asked.append(code)
        return kept(code)

    kept = dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", seen)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def calls(x: torch.Tensor) -> torch.Tensor:
        return twice(twice(twice(x)))

    jit(calls)(torch.ones(3))
    assert asked.count(twice.__code__) == 1


def test_equal_code_at_other_lines_has_lines_of_its_own() -> None:
    one = code_at(3).replace(co_firstlineno=1)
    for code in (one, code_at(9), code_at(9).replace(co_name="g"), one):
        assert frames._instructions(code) == tuple(dis.get_instructions(code))


def test_only_so_much_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_MOST", 4)
    monkeypatch.setattr(frames, "_disassembled", {})
    for line in range(11):
        code = code_at(line)
        assert frames._instructions(code) == tuple(dis.get_instructions(code))
        assert len(frames._disassembled) <= 4


def fails(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 2:
        raise LookupError("too long")
    return x


def test_a_traceback_has_the_lines_of_what_raised() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        return fails(x) + 1

    def entries(function: Any) -> list[tuple[str, int | None, str]]:
        with pytest.raises(LookupError, match="too long") as caught:
            function(torch.ones(3))
        found = traceback.extract_tb(caught.value.__traceback__)
        return [(e.filename, e.lineno, e.name) for e in found if e.name in ("outer", "fails")]

    expected = entries(outer)
    assert [name for *_, name in expected] == ["outer", "fails"]
    assert entries(jit(outer)) == expected
    # From the frames that are kept.
    assert entries(jit(outer)) == expected


def test_frames_of_tracebacks_need_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    def caught(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            try:
                fails(x)
            except LookupError:
                x = x + 1
        return x

    monkeypatch.setattr(threading.Thread, "start", counted)
    frames._finished_frame.cache_clear()
    assert torch.equal(jit(caught)(torch.ones(3)), caught(torch.ones(3)))
    # One for the line that raises, however often it does.
    assert 0 < len(started) == frames._finished_frame.cache_info().currsize < 5


def test_the_call_site_is_that_of_the_stack() -> None:
    def inner() -> tuple[list[Any], list[inspect.FrameInfo]]:
        return frames._call_site(), inspect.stack()

    sites, stack = inner()
    assert len(sites) == 3
    for site, frame in zip(sites, stack, strict=False):
        assert (site.filename, site.function) == (frame.filename, frame.function)
    assert [s.lineno for s in sites[1:]] == [f.lineno for f in stack[1:3]]
    assert interpreter.inspect.stack is frames._call_site
    assert inspect.stack is not frames._call_site


@dataclass
class Pair:
    first: Any
    second: Any


class Other:
    pass


@pytest.mark.parametrize(
    "tree",
    [
        (1, [2.0, {"a": None, "b": (True, "c")}], slice(0, None, 2)),
        torch.ones(2, 3).shape,
        (torch.float32, torch.device("cpu"), torch.ones(2).shape),
        {"z": 1, "a": [torch.ones(2)]},
        3,
        None,
        torch.return_types.max((torch.ones(1), torch.zeros(1))),
        torch.float32,
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_trees_are_flattened_as_before(tree: Any) -> None:
    for ours, original in (
        (trees._flatten, trees._original),
        (trees._flatten_with_dataclass, trees._original_with_dataclass),
    ):
        (leaves, spec), (expected, same) = ours(tree), original(tree)
        assert list(map(id, leaves)) == list(map(id, expected))
        rebuilt, as_before = (pytree.tree_unflatten(leaves, s) for s in (spec, same))
        assert type(rebuilt) is type(as_before)
        assert pytree.tree_flatten(rebuilt)[1] == pytree.tree_flatten(as_before)[1]


def test_dataclasses_are_flattened_to_their_fields() -> None:
    for _ in range(2):
        leaves, spec = trees._flatten_with_dataclass([Pair(1, Pair(2, (3,))), 4])
        assert pytree.tree_unflatten(leaves, spec) == [Pair(1, Pair(2, (3,))), 4]
        assert 1 in leaves
        assert not any(leaf is Pair for leaf in leaves)


def test_what_thunder_does_not_accept_is_still_refused() -> None:
    for flatten in (trees._flatten, trees._flatten_with_dataclass):
        with pytest.raises(TypeError, match="Other"):
            flatten(Other())


def test_all_of_thunder_flattens_like_this() -> None:
    assert pytree.tree_flatten is codeutils.tree_flatten is symbol.tree_flatten is trees._flatten
    assert symbol.tree_flatten_with_dataclass is trees._flatten_with_dataclass
