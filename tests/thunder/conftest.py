"""Settings of the executor's tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Thunder 0.2.6 warns about torch's interfaces at every compilation; that is not ours."""
    for pattern in ("transformer_engine module not found", r"torch\.is_autocast_cpu_enabled"):
        config.addinivalue_line("filterwarnings", f"ignore:{pattern}")
