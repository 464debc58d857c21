"""Keywords of a program's functions and classes, named as the tracer names its own parameters."""

from __future__ import annotations

from collections import namedtuple
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import check

NAMES = ("fn", "original", "kind", "cls", "held", "self", "method", "function", "name", "make")


class Kept:
    def __init__(own, **named: Any) -> None:
        own.named = named

    def sum(own, **named: Any) -> Any:
        return sum(own.named.values()) + sum(named.values())


class Layer(nn.Module):
    def forward(own, **named: Tensor) -> Tensor:
        return sum(named.values()) * 2  # type: ignore[return-value]


def _total(**named: Any) -> Any:
    return sum(named.values())


LAYER = Layer()
KEPT = Kept(scale=3.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_keyword_is_the_programs(name: str) -> None:
    record = namedtuple("record", [name])  # type: ignore[misc]
    total = partial(_total, **{name: 2.0})

    def program(x: Tensor) -> list[Tensor]:
        named = {name: x}
        found = [_total(**named), dict(**named)[name] * 3, x * total()]
        kept = {"scale": 2.0}
        kept.update(**{name: 4.0})
        found += [x * kept[name], getattr(record(**named), name) * 5]
        if name != "self":  # Nor could Python call these.
            found += [Kept(**named).sum(), KEPT.sum(**named), LAYER(**named)]
        return found

    check(program, torch.randn(4, requires_grad=True))
