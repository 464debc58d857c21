"""Attributes that a program sets by `object.__setattr__`, or by a `__setattr__` of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import check, jit


class Plain:
    value: Any = None

    def put(self, value: Any) -> None:
        object.__setattr__(self, "value", value)


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None

    def put(self, value: Any) -> None:
        object.__setattr__(self, "value", value)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value: Any = None

    def put(self, value: Any) -> None:
        object.__setattr__(self, "value", value)


class Output(OrderedDict[str, Any]):
    """A dictionary whose items are attributes, too."""

    value: Any

    def __init__(self) -> None:
        super().__init__()
        self.value = None

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)

    def put(self, value: Any) -> None:
        self["value"] = value


class Halved:
    """Of which each attribute is set to the half."""

    value: Any

    def __init__(self) -> None:
        self.value = 8

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value / 2)

    def put(self, value: Any) -> None:
        self.value = value


class Elsewhere:
    """Attributes that are kept by other names."""

    def __init__(self) -> None:
        self.value = None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[f"_{name}"] = value

    def __getattr__(self, name: str) -> Any:
        return self.__dict__[f"_{name}"]

    def put(self, value: Any) -> None:
        setattr(self, "value", value)  # noqa: B010


@dataclass(frozen=True)
class Frozen:
    value: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value * 3)


@pytest.mark.parametrize("make", [Plain, Slotted, Layer, Output, Halved, Elsewhere])
def test_an_attribute_that_was_read_is_set(make: Callable[[], Any]) -> None:
    def program(x: Tensor) -> list[Any]:
        made = make()
        before = made.value
        made.put(x * 3)
        attributes = getattr(made, "__dict__", {})
        return [before, made.value * 2, *(y for y in attributes.values() if isinstance(y, Tensor))]

    check(program, torch.randn(4, requires_grad=True))


def test_frozen_dataclasses_set_their_fields() -> None:
    check(lambda x: Frozen(x).value * 2, torch.randn(4, requires_grad=True))


@pytest.mark.parametrize("make", [Plain, Slotted, Output, Halved])
def test_an_attribute_of_the_callers_object_is_set(make: Callable[[], Any]) -> None:
    def program(kept: Any, x: Tensor) -> Tensor:
        kept.put(x * 3)
        return kept.value * 2  # type: ignore[no-any-return]

    ours, eager = make(), make()
    compiled = jit(program)
    for _ in range(2):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(ours, x), program(eager, x))
        torch.testing.assert_close(ours.value, eager.value)
