"""Patches act on functions compiled with this executor only."""

from __future__ import annotations

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
    chosen = patched._CHOICE.first

    def first(fn: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(fn)
        return chosen(fn, *args, **kwargs)

    monkeypatch.setattr(patched._CHOICE, "first", first)
    executors = [thunder_fuser.executor] if is_ours else thunder.get_default_executors()
    function = thunder.jit(lambda x: torch.sin(x), executors=executors)
    x = torch.randn(3)
    torch.testing.assert_close(function(x), torch.sin(x))
    assert (torch.sin in asked) is is_ours
    assert not patched.is_patched()
