"""Every operation of `fd.ops`, called with arguments of all kinds, most of which mean nothing: a
call that is not taken is an error of ours, which names the operation and the user's line.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition import DataType, FusionDefinition

CALLS = 12
"""Calls of each operation."""
_SIZES = (-1, 0, 1, 2, 3, 4, 8)
_DTYPES = tuple(d for d in DataType if d is not DataType.Null)
_NUMBERS = (0, 1, 2, -1, -2, 5, 100, 2**40, 2**70, 0.0, 1.5, float("nan"), 1j, True, False)
_OTHERS = (None, "x", {}, (), object, torch.float32, torch.ones(2), *DataType)
_ITEMS = (1.5, None, "a", True, (1, 2), ("split", 0, 2, 2), ("merge", 7))
_OF_PYTHON = re.compile(r"' object |not iterable|unsupported operand|NoneType' |out of range$")


def _argument(rng: random.Random, tensors: Sequence[Any], scalars: Sequence[Any]) -> Any:
    count = rng.randrange(4)
    choices = (
        lambda: rng.choice(tensors),
        lambda: rng.choice(scalars),
        lambda: rng.choice(_NUMBERS),
        lambda: rng.choice(_OTHERS),
        lambda: rng.choices(range(-2, 9), k=count),
        lambda: rng.choices(tensors, k=count),
        lambda: rng.choices(scalars, k=count),
        lambda: rng.choices(_ITEMS, k=count),
    )
    (made,) = rng.choices(choices, (9, 2, 3, 2, 3, 1, 1, 1))
    return made()


def _arguments(rng: random.Random, operation: Any, fd: FusionDefinition) -> list[Any]:
    """As many as the operation takes, as a rule; the first is a tensor, mostly."""
    tensors = [
        fd.define_tensor(rng.choices(_SIZES, k=rng.randrange(6)), True, rng.choice(dtypes))
        for dtypes in (_DTYPES, _DTYPES, (DataType.Float,), (DataType.Float,), (DataType.Int,))
    ]
    scalars = [fd.define_scalar(None, DataType.Int), fd.define_scalar(None, DataType.Double)]
    scalars.append(fd.define_scalar(3, DataType.Int))
    taken = operation.__signature__.parameters.values()
    places = [p for p in taken if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    needed = sum(p.default is inspect.Parameter.empty for p in places)
    # Pointwise operations take any number.
    count = rng.randint(max(needed - rng.choice((0, 0, 0, 1)), 0), max(len(places), 3))
    found = [_argument(rng, tensors, scalars) for _ in range(count)]
    return [rng.choice(tensors), *found[1:]] if rng.random() < 0.8 else found


@pytest.mark.parametrize("name", dir(FusionDefinition().ops))
def test_a_call_is_taken_or_says_what_is_wrong(name: str) -> None:
    rng = random.Random(f"wrong {name}")
    for _ in range(CALLS):
        with FusionDefinition() as fd:
            operation = getattr(fd.ops, name)
            arguments = _arguments(rng, operation, fd)
            try:
                operation(*arguments)
            except FuserError as error:
                text, _, place = str(error).rpartition(" (in ")
                assert re.fullmatch(rf"fd\.ops\.{name} at .*test_wrong_arguments\.py:\d+\)", place)
                assert not _OF_PYTHON.search(text), (text, arguments)
