"""Patches act on functions compiled with this executor only."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from thunder_fuser.frontends.thunder.patches import patched


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_replaces_a_call_is_asked_of_patches_first(
    monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    asked: list[Any] = []
    chosen = patched._CHOICE._first

    def first(fn: Any) -> Any:
        asked.append(fn)
        return chosen(fn)

    monkeypatch.setattr(patched._CHOICE, "_first", first)
    executors = [thunder_fuser.executor] if is_ours else thunder.get_default_executors()
    function = thunder.jit(lambda x: torch.sin(x), executors=executors)
    x = torch.randn(3)
    torch.testing.assert_close(function(x), torch.sin(x))
    assert (torch.sin in asked) is is_ours
    assert not patched.is_patched()


def test_a_lookaside_is_asked_for_the_functions_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patched, "is_patched", lambda: True)
    choice = patched._Choice(lambda fn: [])

    def named(name: str) -> Callable[..., list[str]]:
        return lambda original, fn: [name, *original(fn)]

    def asked(fn: Any) -> list[str]:
        return list(choice(fn))

    choice.ask(named("all"), None, ())
    choice.ask(named("len"), (len,), ())
    choice.ask(named("builtin"), None, (type(len),))
    unhashable = SimpleNamespace()
    for _ in range(2):  # Chosen, and remembered.
        assert asked(len) == ["builtin", "len", "all"]
        assert asked(abs) == ["builtin", "all"]
        assert asked(asked) == ["all"]
        assert asked(unhashable) == ["all"]
    choice.ask(named("last"), (len, asked), ())
    assert asked(len) == ["last", "builtin", "len", "all"]
    assert asked(asked) == ["last", "all"]
    assert asked(abs) == ["builtin", "all"]
