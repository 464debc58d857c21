"""Settings of the executor's tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run, whatever runs before."""
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    """Thunder 0.2.6 warns about torch's interfaces at every compilation; that is not ours."""
    patterns = (
        "transformer_engine module not found",
        r"torch\.(is|get)_autocast_\w+ is deprecated",
        r"torch\.(is|get)_autocast_\w+\(\) is deprecated",
        "Warning. Profiler clears events",
    )
    for pattern in patterns:
        config.addinivalue_line("filterwarnings", f"ignore:{pattern}")
