"""The demo is right, says what it did, and does it with kernels."""

from __future__ import annotations

import pytest

from thunder_fuser import demo


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    shown = capsys.readouterr().out
    assert "plan: 1 kernel, 9,469,952 B moved (ideal 9,469,952 B)" in shown
    assert shown.count("right, off float64") == 6
    assert "left to torch" not in shown
