"""Seeds of a random test in blocks: a share for every run, and more for `pytest --campaign`."""

from __future__ import annotations

from typing import Any

import pytest


def blocks(cases: int, batch: int, *, always: int, first: int = 0) -> Any:
    """Parametrizes `first`, the first seed of each `batch`; `always` of `cases` run anyway."""
    return pytest.mark.parametrize(
        "first",
        [
            pytest.param(seed, marks=[] if seed - first < always else pytest.mark.campaign)
            for seed in range(first, first + cases, batch)
        ],
    )
