"""What planning and code generation cost as programs grow: about as fast as these do.

Ratios of CPU time within one run, with wide margins: what was quadratic was twenty times as slow at
ten times the size, and cubic hundreds of times.
"""

from __future__ import annotations

import pytest

from benchmarks.growing import FAMILIES, Cost, cost

MOST = 25
"""Times as slow at ten times the size: 10 is linear, 100 quadratic."""
LONGEST = 200_000
"""Characters of a kernel: compilers take more than a second for each 100,000."""


def grown(family: str, count: int) -> Cost:
    """The cost of a program, after that of a tenth of it."""
    small = min((cost(family, count // 10) for _ in range(2)), key=lambda c: c.seconds)
    large = cost(family, count)
    if large.seconds > MOST * small.seconds:
        large = min(large, cost(family, count), key=lambda c: c.seconds)
    assert large.seconds < MOST * max(small.seconds, 0.02)
    text, before = (sum(map(len, c.sources)) for c in (large, small))
    assert text < 15 * before
    assert max(map(len, large.sources)) < LONGEST
    return large


@pytest.mark.parametrize("family", ["pointwise", "norms", "norms with cuts"])
def test_five_thousand_operations(family: str) -> None:
    assert grown(family, 5000).plan.kernels < 720


@pytest.mark.parametrize("family", ["cat", "sum of inputs", "outputs", "updates"])
def test_a_thousand_tensors(family: str) -> None:
    assert grown(family, 1000).plan.kernels <= 8


def test_blocks_that_repeat_are_one_kernel() -> None:
    found = cost("norms with cuts", 700)
    assert found.plan.kernels == 100
    # The first one has no weights before it that it could share.
    assert len(found.sources) <= 2


def test_every_family_is_small_when_it_is_small() -> None:
    for family in FAMILIES:
        assert cost(family, 10).plan.kernels <= 2
