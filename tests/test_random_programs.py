"""Random programs (tests/fuzz), a few hundred of those that `python -m tests.fuzz` can make."""

from __future__ import annotations

import pytest

from tests.fuzz.fusions import judge_fusions
from tests.fuzz.kernels import devices

FUSIONS = 150


@pytest.mark.parametrize("device", range(len(devices())), ids=lambda k: devices()[k].name)
def test_fusions_are_within_their_bounds(device: int) -> None:
    each = FUSIONS // len(devices())
    verdicts = judge_fusions(range(device * each, (device + 1) * each), device)
    assert [v for v in verdicts if v.outcome != "right"] == []
