"""Containers that a program builds of those of the caller, over calls with other contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import flat, jit


class Options:
    pass


def keywords(first: Any, second: Any = None, **others: Any) -> list[Any]:
    return [first, second, others]


PROGRAMS: list[Callable[[list[Tensor], Options], Any]] = [
    lambda xs, o: {"xs": xs, "o": o, "y": xs[0] * 2},
    lambda xs, o: {"xs": xs, "a": {"o": o}},
    lambda xs, o: {k: v for k, v in (("xs", xs), ("o", o))},  # noqa: C416
    lambda xs, o: {str(k): [v] for k, v in enumerate([xs, o])},
    lambda xs, o: {(1, 2): xs, None: o},
    lambda xs, o: {"xs": xs} | {"o": o},
    lambda xs, o: keywords(first=xs, other=o),
    lambda xs, o: [*xs, *(xs + [xs[0] * 2]), o],  # noqa: RUF005
    lambda xs, o: [[xs] + [o], xs * 2, 2 * xs, (o,) + (xs,), (xs,) * 2],  # noqa: RUF005
    lambda xs, o: [[x * 2 for x in xs + xs], sum(xs * 2), o],
]


@pytest.mark.parametrize("k", range(len(PROGRAMS)))
def test_the_contents_of_each_call_are_returned(k: int) -> None:
    compiled = jit(PROGRAMS[k])
    for number in range(3):
        xs, options = [torch.full((2,), number), torch.randn(2)], Options()
        ours, eager = (f(xs, options) for f in (compiled, PROGRAMS[k]))
        assert str(ours) == str(eager)  # with the addresses of objects
        assert [x is y for x in flat(ours) for y in xs] == [x is y for x in flat(eager) for y in xs]
        torch.testing.assert_close(flat(ours), flat(eager))


def test_the_last_value_of_a_key_remains() -> None:
    def program(x: Tensor) -> dict[Any, Any]:
        found = dict([(1, x), *{True: x + 1, "a": x}.items()])
        found["a"] = x * 3
        del found[1]
        return {**found, "n": len(found)}

    x = torch.randn(2)
    assert str(jit(program)(x)) == str(program(x))
