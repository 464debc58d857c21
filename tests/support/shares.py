"""Parameters of which a plain run takes a share, and `pytest --campaign` the whole product.

Most faults depend on one parameter or on two together, so the share has every value, or every pair.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from thunder_fuser.device_table import A100, B200, H200

GPUS = (A100, H200, B200)
"""One of each architecture."""


def each_value(**factors: Sequence[Any]) -> Any:
    """Parametrizes the factors together: a plain run has every value of each of them."""
    return _parametrized(factors, 1)


def each_pair(**factors: Sequence[Any]) -> Any:
    """Parametrizes the factors together: a plain run has every pair of values of two of them."""
    return _parametrized(factors, 2)


def each_architecture(always: str = "sm_90", name: str = "device") -> Any:
    """Parametrizes by a GPU of each architecture; a plain run compiles for the one called."""
    marks = {always: ()}
    return pytest.mark.parametrize(
        name,
        [pytest.param(d, marks=marks.get(d.arch, pytest.mark.campaign)) for d in GPUS],
        ids=lambda d: d.arch,
    )


def _parametrized(factors: dict[str, Sequence[Any]], together: int) -> Any:
    """A factor of several parameters is called `**{"rows,columns": [(3, 4)]}`."""
    values = list(factors.values())
    always = covering([len(v) for v in values], together)
    return pytest.mark.parametrize(
        ",".join(factors),
        [
            pytest.param(
                *(
                    value
                    for (name, v), n in zip(factors.items(), at, strict=True)
                    for value in (v[n] if "," in name else (v[n],))
                ),
                marks=[] if at in always else pytest.mark.campaign,
                id="-".join(_name(v[n], n) for v, n in zip(values, at, strict=True)),
            )
            for at in itertools.product(*(range(len(v)) for v in values))
        ],
    )


def covering(sizes: Sequence[int], together: int) -> set[tuple[int, ...]]:
    """Combinations of one number below each size, that have every combination of any `together`
    numbers: few, though not the fewest, and each number about as often as the others.
    """
    chosen: set[tuple[int, ...]] = set()
    uses: Counter[tuple[int, int]] = Counter()
    together = min(together, len(sizes))
    combinations = list(itertools.product(*map(range, sizes)))
    missing = {part for at in combinations for part in _parts(at, together)}
    while missing:
        best = max(
            combinations,
            key=lambda at: (
                sum(part in missing for part in _parts(at, together)),
                -sum(uses[place] for place in enumerate(at)),
            ),
        )
        chosen.add(best)
        uses.update(enumerate(best))
        missing.difference_update(_parts(best, together))
    return chosen


def _parts(at: tuple[int, ...], together: int) -> Iterator[tuple[tuple[int, int], ...]]:
    return itertools.combinations(enumerate(at), together)


def _name(value: Any, number: int) -> str:
    """What a value calls itself in the name of a test."""
    if isinstance(value, (str, int, float)):
        return str(value)
    for attribute in ("arch", "name", "__name__"):
        found = getattr(value, attribute, "")
        if found and found != "<lambda>":
            return str(found)
    text = str(value)
    return str(number) if len(text) > 30 or " at 0x" in text else text
